//! A driver of a few hundred lines for tests: executes everything at once, except on streams that a test has stopped.
//!
//! Handles are unique in the process, so that sessions of different tests share none.

use driverapi::types::{
    CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUgraphEdgeData, CUlaunchConfig, CUmemAccessDesc, CUmemAllocationProp,
};
use remotegpu_worker::driver::{Driver, Raw, Table};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{c_char, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

pub const GRANULARITY: u64 = 2 << 20;
/// A real driver blocks at about as many operations in a stream; here that fails the test.
const QUEUE: usize = 1024;

/// The parameters of both ends, port and kind.
pub type Edge = (Vec<u8>, Vec<u8>, u8, u8);

type Work = Box<dyn FnOnce(&mut World) + Send>;

#[derive(Default)]
pub struct World {
    last_handle: usize,
    last_arena: u64,
    newest_stream: usize,
    /// Work that waits in streams that are stopped.
    queues: HashMap<usize, VecDeque<Work>>,
    /// Number of incomplete records, by event.
    events: HashMap<usize, usize>,
    /// Physical memory by its handle, and the handle that is mapped at each address.
    physical: HashMap<u64, Vec<u8>>,
    mapped: BTreeMap<u64, u64>,
    pub launches: Vec<(usize, Vec<u8>)>,
    /// The address from which each copy to the host was to read.
    pub copied_to_host: Vec<u64>,
    /// The edges of each graph and each executable, by its handle.
    pub graphs: HashMap<usize, Vec<Edge>>,
    /// Parameters of kernel nodes.
    nodes: HashMap<usize, Vec<u8>>,
    /// The executable graph that was launched last.
    pub launched_graph: usize,
    /// A stream got more than a driver takes without blocking.
    pub overflowed: bool,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);
/// Streams that the next `cuStreamCreate` with this priority creates are stopped from the start.
pub const STOPPED: i32 = 77;
/// A programmatic edge from this port is refused.
pub const REFUSED_PORT: u8 = 2;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

pub fn world() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(|e| e.into_inner())
}

impl World {
    fn handle(&mut self) -> Raw {
        self.last_handle += 16;
        std::ptr::without_provenance_mut(0x10_0000 + self.last_handle)
    }

    fn stream(stream: Raw) -> usize {
        // Each context has a null stream of its own.
        if stream.is_null() { CURRENT.get() } else { stream.addr() }
    }

    fn submit(&mut self, stream: Raw, work: impl FnOnce(&mut World) + Send + 'static) -> u32 {
        match self.queues.get_mut(&World::stream(stream)) {
            Some(queue) => {
                self.overflowed |= queue.len() >= QUEUE;
                queue.push_back(Box::new(work));
            }
            None => work(self),
        }
        0
    }

    /// Stops the stream that was created last.
    pub fn stop_newest(&mut self) {
        self.queues.insert(self.newest_stream, VecDeque::new());
    }

    /// Lets all stopped streams continue.
    pub fn go_on(&mut self) {
        for (_, queue) in std::mem::take(&mut self.queues) {
            queue.into_iter().for_each(|work| work(self));
        }
    }

    fn slice(&mut self, address: u64, len: usize) -> Option<&mut [u8]> {
        let (base, memory) = self.mapped.range(..=address).next_back()?;
        let bytes = self.physical.get_mut(memory)?;
        let from = (address - base) as usize;
        bytes.get_mut(from..from.checked_add(len)?)
    }
}

/// # Safety
/// `out` may be written.
unsafe fn give<T>(out: *mut T, value: T) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
    0
}

macro_rules! fake {
    ($($name:ident($($arg:ident: $type:ty),*) $body:block)*) => {
        $(unsafe extern "C" fn $name($($arg: $type),*) -> u32 $body)*
        /// A driver with one device; some functions are missing.
        pub fn driver() -> Arc<Driver> {
            let table = Table { $($name: Some($name),)* ..Table::default() };
            Arc::new(Driver::from_table(table))
        }
    };
}

fake! {
    device_count(out: *mut i32) { unsafe { give(out, 1) } }
    device_get(out: *mut i32, _ordinal: i32) { unsafe { give(out, 0) } }
    device_attribute(out: *mut i32, _attribute: u32, _device: i32) { unsafe { give(out, 0) } }
    primary_retain(out: *mut Raw, _device: i32) { unsafe { give(out, world().handle()) } }
    primary_release(_device: i32) { 0 }
    context_create(out: *mut Raw, _flags: u32, _device: i32) { unsafe { give(out, world().handle()) } }
    context_destroy(_context: Raw) { 0 }
    context_set_current(context: Raw) { CURRENT.set(context.addr()); 0 }
    context_synchronize() { 0 }
    granularity(out: *mut usize, _prop: *const CUmemAllocationProp, _flags: u32) { unsafe { give(out, GRANULARITY as usize) } }
    address_reserve(out: *mut u64, size: usize, _alignment: usize, _hint: u64, _flags: u64) {
        let mut world = world();
        world.last_arena += 1 << 41;
        if size > 1 << 40 { 2 } else { unsafe { give(out, world.last_arena) } }
    }
    address_free(_base: u64, _size: usize) { 0 }
    memory_create(out: *mut u64, size: usize, _prop: *const CUmemAllocationProp, _flags: u64) {
        let mut world = world();
        let memory = world.handle().addr() as u64;
        // Another tenant's bytes, unless the worker zeroes them.
        world.physical.insert(memory, vec![0xee; size]);
        unsafe { give(out, memory) }
    }
    memory_release(_memory: u64) { 0 }
    memory_map(address: u64, _size: usize, _offset: usize, memory: u64, _flags: u64) {
        world().mapped.insert(address, memory);
        0
    }
    memory_unmap(address: u64, _size: usize) { if world().mapped.remove(&address).is_some() { 0 } else { 1 } }
    memory_set_access(_address: u64, _size: usize, _access: *const CUmemAccessDesc, _count: usize) { 0 }
    host_alloc(out: *mut Raw, size: usize, _flags: u32) {
        unsafe { give(out, vec![0u8; size].leak().as_mut_ptr().cast()) }
    }
    host_free(_memory: Raw) { 0 }
    copy_to_device(address: u64, host: *const c_void, bytes: usize, stream: Raw) {
        let host = host.expose_provenance();
        if world().slice(address, bytes).is_none() {
            return 1;
        }
        world().submit(stream, move |world| {
            if let Some(target) = world.slice(address, bytes) {
                target.copy_from_slice(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(host), bytes) });
            }
        })
    }
    copy_to_host(host: Raw, address: u64, bytes: usize, stream: Raw) {
        let host = host.expose_provenance();
        if world().slice(address, bytes).is_none() {
            return 1;
        }
        world().copied_to_host.push(address);
        world().submit(stream, move |world| {
            if let Some(source) = world.slice(address, bytes) {
                unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(host), bytes) }.copy_from_slice(source);
            }
        })
    }
    copy_on_device(to: u64, from: u64, bytes: usize, stream: Raw) {
        world().submit(stream, move |world| {
            let bytes = world.slice(from, bytes).map(|source| source.to_vec()).unwrap_or_default();
            if let Some(target) = world.slice(to, bytes.len()) {
                target.copy_from_slice(&bytes);
            }
        })
    }
    copy_3d(_copy: *const CUDA_MEMCPY3D, stream: Raw) { world().submit(stream, |_| ()) }
    set_bytes(address: u64, value: u8, bytes: usize, stream: Raw) {
        world().submit(stream, move |world| {
            if let Some(target) = world.slice(address, bytes) {
                target.fill(value);
            }
        })
    }
    stream_create(out: *mut Raw, _flags: u32, priority: i32) {
        let mut world = world();
        let stream = world.handle();
        if priority == STOPPED {
            world.queues.insert(stream.addr(), VecDeque::new());
        }
        world.newest_stream = stream.addr();
        unsafe { give(out, stream) }
    }
    stream_destroy(_stream: Raw) { 0 }
    stream_query(stream: Raw) {
        let waiting = world().queues.get(&World::stream(stream)).is_some_and(|queue| !queue.is_empty());
        if waiting { 600 } else { 0 }
    }
    stream_wait_event(stream: Raw, event: Raw, _flags: u32) {
        let mut world = world();
        if world.events.get(&event.addr()).copied().unwrap_or(0) > 0 {
            world.queues.entry(World::stream(stream)).or_default();
        }
        world.submit(stream, |_| ())
    }
    event_create(out: *mut Raw, _flags: u32) { unsafe { give(out, world().handle()) } }
    event_record(event: Raw, stream: Raw) {
        let event = event.addr();
        let mut world = world();
        *world.events.entry(event).or_default() += 1;
        world.submit(stream, move |world| *world.events.entry(event).or_default() -= 1)
    }
    event_query(event: Raw) {
        if world().events.get(&event.addr()).copied().unwrap_or(0) > 0 { 600 } else { 0 }
    }
    event_synchronize(event: Raw) {
        assert_eq!(world().events.get(&event.addr()).copied().unwrap_or(0), 0, "this would block");
        0
    }
    module_load(out: *mut Raw, image: *const c_void, _count: u32, _options: *mut u32, _values: *mut Raw) {
        if unsafe { image.cast::<u8>().read() } == b'!' { 218 } else { unsafe { give(out, world().handle()) } }
    }
    module_unload(_module: Raw) { 0 }
    module_function_count(out: *mut u32, _module: Raw) { unsafe { give(out, 1) } }
    module_functions(out: *mut Raw, _count: u32, _module: Raw) { unsafe { give(out, world().handle()) } }
    module_global(_out: *mut u64, _size: *mut usize, _module: Raw, _name: *const c_char) { 500 }
    function_name(out: *mut *const c_char, _function: Raw) { unsafe { give(out, c"kernel".as_ptr()) } }
    function_load(_function: Raw) { 0 }
    function_param(_function: Raw, index: usize, offset: *mut usize, size: *mut usize) {
        if index == 0 { unsafe { give(offset, 0); give(size, 8) } } else { 1 }
    }
    graph_create(out: *mut Raw, _flags: u32) {
        let mut world = world();
        let graph = world.handle();
        world.graphs.insert(graph.addr(), Vec::new());
        unsafe { give(out, graph) }
    }
    graph_add_kernel(
        out: *mut Raw, graph: Raw, after: *const Raw, count: usize, params: *const CUDA_KERNEL_NODE_PARAMS
    ) {
        let after = unsafe { (0..count).map(|i| *after.add(i)) };
        let packed = unsafe {
            let extra = (*params).v1.extra;
            std::slice::from_raw_parts((*extra.add(1)).cast::<u8>(), *(*extra.add(3)).cast::<usize>()).to_vec()
        };
        let mut world = world();
        let node = world.handle();
        for from in after {
            let edge = (world.nodes[&from.addr()].clone(), packed.clone(), 0, 0);
            world.graphs.entry(graph.addr()).or_default().push(edge);
        }
        world.nodes.insert(node.addr(), packed);
        unsafe { give(out, node) }
    }
    graph_connect(graph: Raw, from: *const Raw, to: *const Raw, data: *const CUgraphEdgeData, count: usize) {
        assert_eq!(count, 1);
        let (from, to, data) = unsafe { (*from, *to, *data) };
        // Like a GPU that has no use for such an edge.
        if data.from_port == REFUSED_PORT && data.type_ == 1 {
            return 801;
        }
        let mut world = world();
        let edge = (world.nodes[&from.addr()].clone(), world.nodes[&to.addr()].clone(), data.from_port, data.type_);
        world.graphs.entry(graph.addr()).or_default().push(edge);
        0
    }
    graph_instantiate(out: *mut Raw, graph: Raw, _flags: u64) {
        let mut world = world();
        let (executable, edges) = (world.handle(), world.graphs[&graph.addr()].clone());
        world.graphs.insert(executable.addr(), edges);
        unsafe { give(out, executable) }
    }
    graph_launch(executable: Raw, _stream: Raw) {
        let mut world = world();
        world.launched_graph = executable.addr();
        0
    }
    graph_exec_destroy(executable: Raw) { if world().graphs.remove(&executable.addr()).is_some() { 0 } else { 1 } }
    graph_destroy(graph: Raw) { if world().graphs.remove(&graph.addr()).is_some() { 0 } else { 1 } }
    function_attribute(out: *mut i32, attribute: u32, _function: Raw) { unsafe { give(out, attribute as i32) } }
    launch(config: *const CUlaunchConfig, function: Raw, _parameters: *mut Raw, extra: *mut Raw) {
        let (stream, function) = (unsafe { (*config).hStream }, function.addr());
        let parameters = unsafe { std::slice::from_raw_parts((*extra.add(1)).cast::<u8>(), *(*extra.add(3)).cast::<usize>()) }.to_vec();
        // A programmatic event is complete with its kernel, a completion event at once.
        let triggered: Vec<usize> = unsafe { (0..(*config).numAttrs as usize).map(|i| (*config).attrs.add(i).read()) }
            .filter(|attribute| attribute.id == 7)
            .map(|attribute| unsafe { attribute.value.programmaticEvent }.event.addr())
            .collect();
        let mut world = world();
        triggered.iter().for_each(|event| *world.events.entry(*event).or_default() += 1);
        world.submit(stream, move |world| {
            world.launches.push((function, parameters));
            triggered.iter().for_each(|event| *world.events.entry(*event).or_default() -= 1);
        })
    }
}
