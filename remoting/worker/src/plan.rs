//! What makes a session anew at another worker: its commands, and what its memory holds. `departure` collects it.

use crate::arrival::now;
use crate::calls::replies;
use crate::driver::{Driver, Handle};
use crate::image::{Failed, Image, Piece, Place, read};
use crate::objects::LoadedModule;
use crate::overwriting::Filler;
use crate::replay::{Replay, answered};
use crate::suspend::settle;
use driverapi::variables::Variables;
use protocol::{
    Adopt, AdoptKept, ArenaAt, ContextCreate, ContextLimit, ContextSynchronize, EventCreate, EventQuery, EventRecord,
    EventTime, GateOpen, Grant, GraphBuild, KernelDescribe, MAX_PAYLOAD, ModuleGlobal, ModuleLoad, ModuleLoaded, Open,
    Opened, PeerAccess, SlabMap, StreamCreate, Symbol, UNCOUNTED, bundled_images, table_hash,
};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Everything that a session is, as the commands that make it, in their order.
pub struct Plan {
    pub arena: (u64, u64),
    pub granularity: u64,
    /// The version of the wire that the client speaks.
    pub wire: u32,
    pub grants: Vec<Grant>,
    pub contexts: Vec<(ContextCreate, Handle, Vec<ContextLimit>)>,
    pub streams: Vec<StreamCreate>,
    pub slabs: Vec<SlabMap>,
    pub peers: Vec<PeerAccess>,
    pub modules: Vec<Code>,
    pub graphs: Vec<Arc<GraphBuild>>,
    pub events: Vec<Recorded>,
    /// An event of each context, for times.
    pub clocks: BTreeMap<u64, Handle>,
    pub gates: Vec<GateOpen>,
    /// By device.
    pub fillers: BTreeMap<u32, Filler>,
    /// What the slabs hold, and later what the variables do.
    pub places: Vec<Place>,
    /// Holds what the slabs do, if the session is suspended.
    pub image: Option<Arc<Image>>,
    pub adopt: Adopt,
    pub kept: Vec<u8>,
    /// Of the client, received and not carried out.
    pub unread: Vec<u8>,
}

pub struct Code {
    pub load: ModuleLoad,
    /// With a zero byte behind it.
    pub image: Arc<Vec<u8>>,
    pub loaded: Arc<LoadedModule>,
    pub kernels: Vec<Handle>,
    pub described: Vec<u32>,
    /// Functions that set something of a kernel, with their arguments.
    pub settings: Vec<(u32, Vec<u8>)>,
}

pub struct Recorded {
    pub create: EventCreate,
    /// The record, and where it is to be made.
    pub record: Option<(EventRecord, u64)>,
    pub followed: bool,
    /// Of an event with timing: what was recorded, and in which context.
    pub timed: Option<(Handle, Handle)>,
}

pub fn driver_says(code: u32) -> Failed {
    format!("Broken: the driver answers CUDA error {code}")
}

impl Plan {
    /// For a helper's thread. Returns how many bytes of memory were sent.
    ///
    /// # Errors
    /// Why the session cannot be made there as it is here.
    pub fn carry_out(mut self, driver: &Driver, connection: OwnedFd) -> Result<u64, Failed> {
        let handles: Vec<Handle> = self.contexts.iter().map(|(_, handle, _)| *handle).collect();
        settle(driver, &handles).map_err(driver_says)?;
        let mut there = Replay::new(connection)?;
        self.open(&mut there)?;
        self.make_contexts(&mut there)?;
        self.make_slabs(&mut there)?;
        let slabs = self.places.len();
        let globals = self.load_code(driver, &mut there)?;
        self.places.extend(globals);
        self.make_graphs(&mut there)?;
        self.copy_contents(driver, &mut there, slabs)?;
        self.make_events(&mut there)?;
        self.synchronise(&mut there)?;
        self.adopt.times = self.times(driver).map_err(driver_says)?;
        for piece in self.kept.chunks(MAX_PAYLOAD / 2) {
            there.tell(0, &AdoptKept {}, piece)?;
        }
        there.tell(0, &self.adopt, &[])?;
        there.write(&self.unread)?;
        there.finish()
    }

    fn open(&self, there: &mut Replay) -> Result<(), Failed> {
        let open = Open {
            wire_version: self.wire,
            table_hash: table_hash(self.wire).unwrap_or_default(),
            client_pid: std::process::id(),
            client_name: "a session that moves".into(),
        };
        let opened: Opened = answered(&there.call(&open)?, "NotOpened")?;
        if opened.granularity != self.granularity {
            let (ours, theirs) = (self.granularity, opened.granularity);
            return Err(format!("OtherGranularity: memory is mapped in units of {ours} bytes here and {theirs} there"));
        }
        let (base, size) = self.arena;
        match there.call(&ArenaAt { base, size })? {
            (0, _) => Ok(()),
            _ => Err(format!(
                "RangeTaken: its addresses {base:#x} to {:#x} are not free in the worker there",
                base + size
            )),
        }
    }

    fn make_contexts(&self, there: &mut Replay) -> Result<(), Failed> {
        for grant in &self.grants {
            let seq = there.tell(0, grant, &[])?;
            there.expect(seq, "NoRoom: memory");
        }
        there.settle()?;
        for (create, _, limits) in &self.contexts {
            there.tell(0, create, &[])?;
            for limit in limits {
                let seq = there.tell(0, limit, &[])?;
                there.expect(seq, "OtherLimits: a limit of a context");
            }
        }
        for stream in &self.streams {
            there.tell(0, stream, &[])?;
        }
        for gate in &self.gates {
            there.tell(0, gate, &[])?;
        }
        self.synchronise(there)
    }

    /// Errors of commands without an answer are told by this.
    fn synchronise(&self, there: &mut Replay) -> Result<(), Failed> {
        for (create, ..) in &self.contexts {
            let seq = there.tell(0, &ContextSynchronize { context: create.context, launches: UNCOUNTED }, &[])?;
            there.expect(seq, "NotMade: a context, a stream or memory");
        }
        there.settle()
    }

    fn make_slabs(&self, there: &mut Replay) -> Result<(), Failed> {
        for slab in &self.slabs {
            there.tell(0, slab, &[])?;
        }
        for peer in &self.peers {
            there.tell(0, peer, &[])?;
        }
        self.synchronise(there)
    }

    /// Loads the modules, and compares where their variables lie. Returns these places.
    fn load_code(&self, driver: &Driver, there: &mut Replay) -> Result<Vec<Place>, Failed> {
        let mut places = Vec::new();
        for code in &self.modules {
            let context = self.contexts.iter().find(|(create, ..)| create.context == code.load.context);
            let Some((ContextCreate { device, .. }, context, _)) = context else { continue };
            driver.set_current(*context).map_err(driver_says)?;
            let sent = code.image.split_last().map_or(&code.image[..], |(_, sent)| sent);
            there.image(code.load.hash, sent)?;
            let loaded: ModuleLoaded = answered(&there.call(&code.load)?, "NotLoaded: a module")?;
            let names = code.kernels.iter().map(|kernel| driver.function_name(*kernel));
            if names.collect::<Result<Vec<_>, _>>().map_err(driver_says)? != loaded.kernels {
                return Err("OtherDriver: the driver there lists the kernels of a module in another order".into());
            }
            for kernel in &code.described {
                let seq = there.tell(0, &KernelDescribe { module: code.load.module, kernel: *kernel }, &[])?;
                there.expect(seq, "NotLoaded: a kernel");
            }
            there.settle()?;
            for (number, arguments) in &code.settings {
                let seq = there.send(*number, 0, arguments, &[])?;
                if replies(*number) {
                    there.expect(seq, "OtherSettings: a setting of a kernel");
                }
            }
            for (address, size) in variables(driver, code, sent, there)? {
                places.push(Place { address, size, device: *device, filler: self.fillers.get(device).copied() });
            }
        }
        Ok(places)
    }

    fn make_graphs(&self, there: &mut Replay) -> Result<(), Failed> {
        for graph in &self.graphs {
            let seq = there.tell(0, &**graph, &[])?;
            there.expect(seq, "NotBuilt: a graph");
        }
        there.settle()
    }

    /// The first `slabs` places are new memory there.
    fn copy_contents(&self, driver: &Driver, there: &mut Replay, slabs: usize) -> Result<(), Failed> {
        let mut streams = BTreeMap::new();
        for (create, handle, _) in &self.contexts {
            streams.entry(create.device).or_insert((create.context, create.legacy_stream, *handle));
        }
        let (fresh, variables) = self.places.split_at(slabs);
        let mut copy = |piece: &Piece, bytes: &[u8], fresh| {
            let (context, stream, _) = streams.get(&piece.device).ok_or("NoContext: its memory has no context")?;
            there.copy(*context, *stream, piece.address, bytes, fresh)
        };
        match &self.image {
            Some(image) => image.for_each(fresh, |piece, bytes| copy(piece, bytes, true))?,
            None => read(driver, fresh, |piece, bytes| copy(piece, bytes, true))?,
        }
        read(driver, variables, |piece, bytes| copy(piece, bytes, false))?;
        self.synchronise(there)
    }

    fn make_events(&self, there: &mut Replay) -> Result<(), Failed> {
        for event in &self.events {
            there.tell(0, &event.create, &[])?;
            if let Some((record, stream)) = &event.record {
                there.tell(*stream, record, &[])?;
            }
        }
        self.synchronise(there)?;
        for event in self.events.iter().filter(|event| event.followed) {
            let generation = event.record.as_ref().map_or(0, |(record, _)| record.generation);
            let seq = there.tell(0, &EventQuery { event: event.create.event, generation }, &[])?;
            there.expect(seq, "NotMade: a record of an event");
        }
        there.settle()
    }

    /// When the records of events with timing were complete.
    fn times(&self, driver: &Driver) -> Result<Vec<EventTime>, u32> {
        let mut times = Vec::new();
        for (create, handle, _) in &self.contexts {
            let mut here = self.events.iter().filter_map(|event| {
                let (record, context) = event.timed.filter(|(_, context)| context == handle)?;
                Some((event, record, context))
            });
            let Some(first) = here.next() else { continue };
            let all: Vec<_> = std::iter::once(first).chain(here).collect();
            let Some(reference) = self.clocks.get(&create.context).copied() else { continue };
            driver.set_current(*handle)?;
            driver.event_record(reference, Handle::NULL, 0)?;
            driver.event_synchronize(reference)?;
            let at = now();
            for (event, record, _) in all {
                let since = driver.event_elapsed(record, reference)?;
                let generation = event.record.as_ref().map_or(0, |(record, _)| record.generation);
                let nanoseconds = at.saturating_sub((f64::from(since) * 1e6) as u64);
                times.push(EventTime { event: event.create.event, generation, nanoseconds });
            }
        }
        Ok(times)
    }
}

/// The variables of a module, which lie at the same addresses there.
fn variables(driver: &Driver, code: &Code, image: &[u8], there: &mut Replay) -> Result<Vec<(u64, u64)>, Failed> {
    let unreadable = |error| format!("UnknownCode: a module cannot be read: {error}");
    let found = Variables::of(bundled_images(image).as_deref().unwrap_or(&[image])).map_err(unreadable)?;
    if found.allocates {
        return Err("DeviceHeapUsed: its kernels call malloc, whose memory no function of CUDA's reaches".into());
    }
    let mut places = Vec::new();
    for name in found.names {
        let Ok(c_name) = CString::new(name.as_str()) else { continue };
        // Of another architecture, or of no use to its kernels.
        let Ok((address, size)) = driver.module_global(code.loaded.handle, &c_name) else { continue };
        let asked = ModuleGlobal { module: code.load.module, name: name.clone() };
        let symbol: Symbol = answered(&there.call(&asked)?, "OtherCode: a variable of a module")?;
        if (symbol.address, symbol.size) != (address, size as u64) {
            return Err(format!(
                "ModuleAddressesDiffer: {name} is at {address:#x} here and at {:#x} there",
                symbol.address
            ));
        }
        places.push((address, size as u64));
    }
    Ok(places)
}
