//! A CUDA driver that is loaded by its path, with the functions that are measured.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;

use driverapi::types::{
    CUcontext, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUresult, CUstream,
};

/// A kernel that adds its number to a counter. The counter shows which launches have run.
pub const KERNEL: &CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 counter, .param .u32 number)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [counter];
    ld.param.u32 %r1, [number];
    cvta.to.global.u64 %rd2, %rd1;
    red.global.add.u32 [%rd2], %r1;
    ret;
}
";

macro_rules! driver {
    ($($field:ident = $symbol:ident($($type:ty),*);)*) => {
        pub struct Driver { $($field: unsafe extern "C" fn($($type),*) -> CUresult,)* }

        impl Driver {
            /// Loads the driver's library.
            ///
            /// # Errors
            /// If the library does not exist, or lacks a function.
            pub fn load(path: &str) -> Result<Driver, String> {
                let name = CString::new(path).map_err(|error| error.to_string())?;
                // SAFETY: dlopen runs the library's constructors, which the driver needs.
                let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    // SAFETY: after a failure dlerror returns a string that is valid until the next call.
                    let reason = unsafe { CStr::from_ptr(libc::dlerror()) };
                    return Err(format!("cannot load {path}: {}", reason.to_string_lossy()));
                }
                Ok(Driver { $($field: {
                    let name = concat!(stringify!($symbol), "\0");
                    // SAFETY: the name ends with a NUL; the address is that of a C function with this signature.
                    unsafe {
                        let address = libc::dlsym(library, name.as_ptr().cast());
                        if address.is_null() {
                            return Err(format!("{path} has no {}", stringify!($symbol)));
                        }
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> CUresult>(address)
                    }
                },)* })
            }
        }
    };
}

driver! {
    init = cuInit(c_uint);
    retain = cuDevicePrimaryCtxRetain(*mut CUcontext, c_int);
    set_current = cuCtxSetCurrent(CUcontext);
    synchronize_context = cuCtxSynchronize();
    mem_info = cuMemGetInfo_v2(*mut usize, *mut usize);
    alloc = cuMemAlloc_v2(*mut CUdeviceptr, usize);
    free = cuMemFree_v2(CUdeviceptr);
    alloc_host = cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    free_host = cuMemFreeHost(*mut c_void);
    to_device = cuMemcpyHtoD_v2(CUdeviceptr, *const c_void, usize);
    to_host = cuMemcpyDtoH_v2(*mut c_void, CUdeviceptr, usize);
    to_device_async = cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    to_host_async = cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    set_bytes_async = cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
    create_stream = cuStreamCreate(*mut CUstream, c_uint);
    synchronize_stream = cuStreamSynchronize(CUstream);
    create_event = cuEventCreate(*mut CUevent, c_uint);
    record_event = cuEventRecord(CUevent, CUstream);
    query_event = cuEventQuery(CUevent);
    begin_capture = cuStreamBeginCapture_v2(CUstream, c_uint);
    end_capture = cuStreamEndCapture(CUstream, *mut CUgraph);
    instantiate = cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
    launch_graph = cuGraphLaunch(CUgraphExec, CUstream);
    destroy_executable = cuGraphExecDestroy(CUgraphExec);
    destroy_graph = cuGraphDestroy(CUgraph);
    load_module = cuModuleLoadData(*mut CUmodule, *const c_void);
    get_function = cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    launch = cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );
}

const NOT_READY: CUresult = 600;
const NON_BLOCKING: c_uint = 1;
const NO_TIMING: c_uint = 2;

fn check(function: &str, code: CUresult) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{function} failed with CUDA error {code}")) }
}

impl Driver {
    /// Creates a context with one stream and synchronises it, so that lazy initialisation is complete.
    ///
    /// # Errors
    /// The name of the function that failed, with its code.
    pub fn start(&self) -> Result<Session<'_>, String> {
        let (mut context, mut stream) = (null_mut(), null_mut());
        // SAFETY: out-parameters are locals.
        unsafe {
            check("cuInit", (self.init)(0))?;
            check("cuDevicePrimaryCtxRetain", (self.retain)(&mut context, 0))?;
            check("cuCtxSetCurrent", (self.set_current)(context))?;
            check("cuStreamCreate", (self.create_stream)(&mut stream, NON_BLOCKING))?;
        }
        let session = Session { driver: self, stream, this_thread: PhantomData };
        session.synchronize()?;
        Ok(session)
    }
}

/// A context with one stream. The context is current in this thread.
pub struct Session<'d> {
    driver: &'d Driver,
    stream: CUstream,
    this_thread: PhantomData<*mut ()>,
}

impl Session<'_> {
    pub fn synchronize(&self) -> Result<(), String> {
        // SAFETY: the stream exists.
        check("cuStreamSynchronize", unsafe { (self.driver.synchronize_stream)(self.stream) })
    }

    pub fn synchronize_context(&self) -> Result<(), String> {
        // SAFETY: no parameters.
        check("cuCtxSynchronize", unsafe { (self.driver.synchronize_context)() })
    }

    pub fn free_memory(&self) -> Result<usize, String> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: out-parameters are locals.
        check("cuMemGetInfo", unsafe { (self.driver.mem_info)(&mut free, &mut total) })?;
        Ok(free)
    }

    pub fn alloc(&self, len: usize) -> Result<CUdeviceptr, String> {
        let mut address = 0;
        // SAFETY: the out-parameter is a local.
        check("cuMemAlloc", unsafe { (self.driver.alloc)(&mut address, len) })?;
        Ok(address)
    }

    pub fn free(&self, address: CUdeviceptr) -> Result<(), String> {
        // SAFETY: the driver checks the address.
        check("cuMemFree", unsafe { (self.driver.free)(address) })
    }

    pub fn set_byte(&self, address: CUdeviceptr) -> Result<(), String> {
        // SAFETY: the driver checks the address.
        check("cuMemsetD8Async", unsafe { (self.driver.set_bytes_async)(address, 1, 1, self.stream) })
    }

    pub fn to_device(&self, address: CUdeviceptr, from: &[u8]) -> Result<(), String> {
        // SAFETY: the function reads the slice before it returns.
        check("cuMemcpyHtoD", unsafe { (self.driver.to_device)(address, from.as_ptr().cast(), from.len()) })
    }

    pub fn to_host(&self, to: &mut [u8], address: CUdeviceptr) -> Result<(), String> {
        // SAFETY: the function writes the slice before it returns.
        check("cuMemcpyDtoH", unsafe { (self.driver.to_host)(to.as_mut_ptr().cast(), address, to.len()) })
    }

    pub fn pinned(&self, len: usize) -> Result<Pinned<'_>, String> {
        let mut address = null_mut();
        // SAFETY: the out-parameter is a local.
        check("cuMemHostAlloc", unsafe { (self.driver.alloc_host)(&mut address, len, 0) })?;
        Ok(Pinned { session: self, address, len })
    }

    pub fn event(&self) -> Result<Event<'_>, String> {
        let mut event = null_mut();
        // SAFETY: the out-parameter is a local.
        check("cuEventCreate", unsafe { (self.driver.create_event)(&mut event, NO_TIMING) })?;
        Ok(Event { session: self, event })
    }

    /// Loads PTX text and returns its kernel with this name.
    pub fn function(&self, text: &CStr, name: &CStr) -> Result<Kernel<'_>, String> {
        let (mut module, mut function) = (null_mut(), null_mut());
        // SAFETY: text and name end with a NUL; out-parameters are locals.
        unsafe {
            check("cuModuleLoadData", (self.driver.load_module)(&mut module, text.as_ptr().cast()))?;
            check("cuModuleGetFunction", (self.driver.get_function)(&mut function, module, name.as_ptr()))?;
        }
        Ok(Kernel { session: self, function })
    }

    pub fn kernel(&self) -> Result<Kernel<'_>, String> {
        self.function(KERNEL, c"count")
    }

    /// Captures the work that `work` launches on the stream, and returns it as a graph.
    pub fn graph(&self, work: impl FnOnce() -> Result<(), String>) -> Result<Graph<'_>, String> {
        const THREAD_LOCAL: c_uint = 1;
        let (mut graph, mut executable) = (null_mut(), null_mut());
        // SAFETY: the stream exists; out-parameters are locals.
        unsafe {
            check("cuStreamBeginCapture", (self.driver.begin_capture)(self.stream, THREAD_LOCAL))?;
            let worked = work();
            check("cuStreamEndCapture", (self.driver.end_capture)(self.stream, &mut graph))?;
            worked?;
            check("cuGraphInstantiate", (self.driver.instantiate)(&mut executable, graph, 0))?;
            check("cuGraphDestroy", (self.driver.destroy_graph)(graph))?;
        }
        Ok(Graph { session: self, executable })
    }
}

/// An executable graph.
pub struct Graph<'s> {
    session: &'s Session<'s>,
    executable: CUgraphExec,
}

impl Graph<'_> {
    pub fn launch(&self) -> Result<(), String> {
        // SAFETY: graph and stream exist.
        check("cuGraphLaunch", unsafe { (self.session.driver.launch_graph)(self.executable, self.session.stream) })
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        if self.session.synchronize().is_ok() {
            // SAFETY: no work uses the graph any more.
            unsafe { (self.session.driver.destroy_executable)(self.executable) };
        }
    }
}

/// Page-locked memory that the driver allocated.
pub struct Pinned<'s> {
    session: &'s Session<'s>,
    address: *mut c_void,
    len: usize,
}

impl Pinned<'_> {
    pub fn to_device(&self, address: CUdeviceptr) -> Result<(), String> {
        let Session { driver, stream, .. } = self.session;
        // SAFETY: the driver allocated the memory, which exists until `drop`; `drop` synchronises.
        check("cuMemcpyHtoDAsync", unsafe { (driver.to_device_async)(address, self.address, self.len, *stream) })
    }

    /// Returns the current first word, also while a copy writes the memory.
    pub fn word(&self) -> u32 {
        assert!(self.len >= size_of::<u32>());
        // SAFETY: the word is inside the memory and aligned, as all allocations of the driver are. The read is
        // volatile, because the driver writes the word.
        unsafe { self.address.cast::<u32>().read_volatile() }
    }

    pub fn to_host(&self, address: CUdeviceptr) -> Result<(), String> {
        let Session { driver, stream, .. } = self.session;
        // SAFETY: the same as in `to_device`.
        check("cuMemcpyDtoHAsync", unsafe { (driver.to_host_async)(self.address, address, self.len, *stream) })
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if self.session.synchronize().is_ok() {
            // SAFETY: no work uses the memory any more.
            unsafe { (self.session.driver.free_host)(self.address) };
        }
    }
}

pub struct Event<'s> {
    session: &'s Session<'s>,
    event: CUevent,
}

impl Event<'_> {
    pub fn record(&self) -> Result<(), String> {
        // SAFETY: event and stream exist.
        check("cuEventRecord", unsafe { (self.session.driver.record_event)(self.event, self.session.stream) })
    }

    /// Whether the last record is complete.
    pub fn query(&self) -> Result<bool, String> {
        // SAFETY: the event exists.
        match unsafe { (self.session.driver.query_event)(self.event) } {
            NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }
}

pub struct Kernel<'s> {
    session: &'s Session<'s>,
    function: CUfunction,
}

impl Kernel<'_> {
    /// Adds 1 to the counter at `address`, asynchronously.
    pub fn launch(&self, address: CUdeviceptr) -> Result<(), String> {
        self.launch_grid([1; 3], [1; 3], &[address, 1])
    }

    /// Launches a grid, asynchronously. Each parameter of the kernel gets the low bytes of its u64, as many as the
    /// parameter has in the kernel.
    pub fn launch_grid(&self, grid: [u32; 3], block: [u32; 3], parameters: &[u64]) -> Result<(), String> {
        let mut addresses: Vec<_> = parameters.iter().map(|value| (&raw const *value).cast_mut().cast()).collect();
        let Session { driver, stream, .. } = self.session;
        let ([x, y, z], [bx, by, bz]) = (grid, block);
        // SAFETY: the parameters match the kernel's, none has more than 8 bytes, and the driver copies them before the
        // call returns.
        let code = unsafe {
            (driver.launch)(self.function, x, y, z, bx, by, bz, 0, *stream, addresses.as_mut_ptr(), null_mut())
        };
        check("cuLaunchKernel", code)
    }
}
