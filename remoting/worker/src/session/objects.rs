//! The tables of the client's objects: contexts, streams, events and modules, by their ids.

use crate::code::image_rules::Attributes;
use crate::driver::events::{DISABLE_TIMING, EventPool, RealEvent};
use crate::driver::loaded::LoadedModule;
use crate::driver::staging::Pool;
use crate::driver::{Code, Handle, Result};
use crate::order::command::StreamKind;
use crate::order::completions::Entry;
use crate::session::settings::KernelSettings;
use driverapi::errors::*;
use driverapi::rules::{Rule, kept};
use protocol::{GraphBuild, ModuleLoad};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

/// A table of objects of one kind, by id. If the creation of an object failed late, its id is *poisoned*: every use
/// returns the error.
#[derive(Debug)]
pub struct Table<T> {
    objects: HashMap<u64, Result<T>>,
    missing: Code,
    most: u64,
}

impl<T> Table<T> {
    /// Creates an empty table. `missing` is the error code for an unknown id. A client that creates more than `most`
    /// objects gets the error that memory is out.
    pub fn new(missing: Code, most: u64) -> Self {
        Table { objects: HashMap::new(), missing, most }
    }

    pub fn get(&self, id: u64) -> Result<&T> {
        self.objects.get(&id).ok_or(self.missing)?.as_ref().map_err(|code| *code)
    }

    pub fn get_mut(&mut self, id: u64) -> Result<&mut T> {
        self.objects.get_mut(&id).ok_or(self.missing)?.as_mut().map_err(|code| *code)
    }

    pub fn contains(&self, id: u64) -> bool {
        self.objects.contains_key(&id)
    }

    pub fn is_full(&self) -> bool {
        self.objects.len() as u64 >= self.most
    }

    pub fn insert(&mut self, id: u64, object: Result<T>) {
        self.objects.insert(id, object);
    }

    pub fn remove(&mut self, id: u64) -> Result<T> {
        self.objects.remove(&id).ok_or(self.missing)?
    }

    /// Returns the ids of objects whose creation failed, each with the error.
    pub fn failed(&self) -> impl Iterator<Item = (u64, Code)> {
        self.objects.iter().filter_map(|(id, object)| Some((*id, *object.as_ref().err()?)))
    }

    pub fn live(&self) -> impl Iterator<Item = (u64, &T)> {
        self.objects.iter().filter_map(|(id, object)| Some((*id, object.as_ref().ok()?)))
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.objects.retain(|_, object| object.as_ref().map_or(true, &mut keep));
    }
}

#[derive(Debug)]
pub struct Context {
    pub handle: Handle,
    pub device: u32,
    pub primary: bool,
    pub flags: u32,
    /// A non-blocking stream of the worker, in which memory is zeroed.
    pub internal: Handle,
    pub legacy: u64,
    pub staging: Pool,
    pub events: EventPool,
    /// Whether the legacy stream was given work after the last event that was recorded there.
    pub legacy_unmarked: bool,
    pub streams: Vec<u64>,
    /// The limits that the client has set.
    pub limits: HashMap<u32, Limit>,
    /// The bytes that the appliance was asked to charge for the context, including the stacks of kernels.
    pub charged: u64,
    pub stacks: u64,
    /// Page-locked zeros, the source for filling arrays. They are allocated for the first array.
    pub zeros: Option<Handle>,
}

#[derive(Debug, Clone, Copy)]
pub struct Limit {
    pub value: u64,
    /// The bytes of memory that the driver takes for the limit.
    pub taken: u64,
}

#[derive(Debug)]
pub struct Stream {
    pub context: u64,
    pub kind: StreamKind,
    pub handle: Handle,
    pub flags: u32,
    pub priority: i32,
    /// The number of operations given to the stream since the last entry with an event.
    pub issued: u32,
    /// The number of operations that are not known to be complete, including events.
    pub in_flight: u32,
    /// The actions to run when the stream reaches them, in the stream's order.
    pub entries: VecDeque<Entry>,
    /// The last driver event that is known to be complete.
    pub completed: Option<Rc<RealEvent>>,
    /// The number of the last zeroing of memory that this stream waits for.
    pub zeroing_seen: u64,
    /// Whether the stream was destroyed. If so, only its entries are left.
    pub destroyed: bool,
}

impl Stream {
    pub fn new(context: u64, kind: StreamKind, handle: Handle, flags: u32, priority: i32) -> Stream {
        Stream {
            context,
            kind,
            handle,
            flags,
            priority,
            issued: 0,
            in_flight: 0,
            entries: VecDeque::new(),
            completed: None,
            zeroing_seen: 0,
            destroyed: false,
        }
    }
}

#[derive(Debug)]
pub struct Event {
    pub context: u64,
    pub timing: bool,
    /// The records, sorted by generation. Older records stay while open commands refer to the event.
    records: Vec<(u64, Result<Rc<RealEvent>>)>,
    references: u32,
    pub destroyed: bool,
    /// Whether the event was queried. If so, the client is notified of every later record that completes.
    pub followed: bool,
}

impl Event {
    pub fn new(context: u64, flags: u32) -> Event {
        let timing = flags & DISABLE_TIMING == 0;
        Event { context, timing, records: Vec::new(), references: 0, destroyed: false, followed: false }
    }

    pub fn record(&mut self, generation: u64, event: Result<Rc<RealEvent>>) {
        if self.references == 0 {
            self.records.clear();
        }
        // Streams may reach the records in another order than that in which the program made them.
        let later = self.records.iter().rposition(|(g, _)| *g <= generation || !kept(Rule::EventLatest));
        self.records.insert(later.map_or(0, |place| place + 1), (generation, event));
    }

    /// Returns the record of `generation` or, if it is gone, the latest record. Returns `None` if there was no record;
    /// then a wait ends at once.
    pub fn at(&self, generation: u64) -> Option<Result<Rc<RealEvent>>> {
        let exact = self.records.iter().rev().find(|(g, _)| *g == generation);
        exact.or(self.records.last()).map(|(_, event)| event.clone())
    }

    pub fn latest(&self) -> Option<Result<Rc<RealEvent>>> {
        self.records.last().map(|(_, event)| event.clone())
    }

    /// Returns the generation of the latest record.
    pub fn generation(&self) -> Option<u64> {
        self.records.last().map(|(generation, _)| *generation)
    }

    pub fn refer(&mut self) {
        self.references += 1;
    }

    /// Drops a reference of a command. Returns whether it was the last one and the event was destroyed.
    pub fn release(&mut self) -> bool {
        self.references -= 1;
        if self.references == 0 && self.records.len() > 1 {
            self.records.drain(..self.records.len() - 1);
        }
        self.destroyed && self.references == 0
    }

    pub fn is_referred_to(&self) -> bool {
        self.references > 0
    }
}

#[derive(Debug)]
pub struct Kernel {
    pub function: Handle,
    /// The launch rules that the kernel's image states.
    pub rules: Attributes,
    /// The size in bytes of the packed parameter buffer. `None` until the kernel has been loaded and described.
    pub parameter_bytes: Option<usize>,
    pub settings: KernelSettings,
}

#[derive(Debug)]
pub struct Module {
    pub context: u64,
    pub made: ModuleLoad,
    pub loaded: Arc<LoadedModule>,
    pub kernels: Vec<Kernel>,
}

impl Module {
    /// Returns a kernel that has been described. Any other kernel would be loaded by the driver at its launch, which
    /// would block the sequencer.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for any other kernel.
    pub fn kernel(&self, index: u32) -> Result<&Kernel> {
        let kernel = self.kernels.get(index as usize).filter(|kernel| kernel.parameter_bytes.is_some());
        kernel.ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// Like [`Module::kernel`], to change the kernel.
    ///
    /// # Errors
    /// The same errors as [`Module::kernel`].
    pub fn kernel_mut(&mut self, index: u32) -> Result<&mut Kernel> {
        let kernel = self.kernels.get_mut(index as usize).filter(|kernel| kernel.parameter_bytes.is_some());
        kernel.ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}

/// An executable graph of the driver.
#[derive(Debug)]
pub struct Graph {
    pub context: u64,
    pub made: Arc<GraphBuild>,
    pub executable: Handle,
}
