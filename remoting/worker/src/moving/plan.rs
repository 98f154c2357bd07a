//! The plan that recreates a session at another worker: the commands, and the contents of the memory. `departure`
//! collects it.

use crate::driver::loaded::LoadedModule;
use crate::driver::{Driver, Handle};
use crate::memory::overwriting::Filler;
use crate::moving::ahead::Ahead;
use crate::moving::arrival::now;
use crate::moving::ground::Ground;
use crate::moving::image::{Failed, Image, Piece, Place, read};
use crate::moving::replay::{Replay, answered};
use crate::moving::suspend::settle;
use crate::session::calls::replies;
use driverapi::variables::Variables;
use protocol::{
    Adopt, AdoptKept, ContextCreate, EventCreate, EventQuery, EventRecord, EventTime, GateOpen, GraphBuild,
    KernelDescribe, MAX_PAYLOAD, MirrorAdd, ModuleGlobal, ModuleLoad, ModuleLoaded, PeerAccess, StreamCreate, Symbol,
    bundled_images,
};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;

/// Everything that belongs to a session, as the commands that create it, in their order.
pub struct Plan {
    pub ground: Ground,
    pub streams: Vec<StreamCreate>,
    pub peers: Vec<PeerAccess>,
    pub modules: Vec<Code>,
    pub graphs: Vec<Arc<GraphBuild>>,
    pub events: Vec<Recorded>,
    /// A recorded event of each context, the reference for event times.
    pub clocks: BTreeMap<u64, Handle>,
    pub gates: Vec<GateOpen>,
    /// The mirrors with their streams. The client has their contents.
    pub mirrors: Vec<(u64, MirrorAdd)>,
    /// The context and the stream that copy memory, by device.
    pub fillers: BTreeMap<u32, Filler>,
    /// The places of slabs. The places of variables are added later.
    pub places: Vec<Place>,
    /// The saved contents of the slabs, if the session is suspended.
    pub image: Option<Arc<Image>>,
    pub adopt: Adopt,
    pub kept: Vec<u8>,
    /// Bytes that were received from the client and not executed.
    pub unread: Vec<u8>,
}

pub struct Code {
    pub load: ModuleLoad,
    /// The image, with a zero byte after its end.
    pub image: Arc<Vec<u8>>,
    pub loaded: Arc<LoadedModule>,
    pub kernels: Vec<Handle>,
    pub described: Vec<u32>,
    /// The functions that change settings of a kernel, with their arguments.
    pub settings: Vec<(u32, Vec<u8>)>,
}

pub struct Recorded {
    pub create: EventCreate,
    /// The record to make at the other worker, and its stream.
    pub record: Option<(EventRecord, u64)>,
    pub followed: bool,
    /// The driver's event and its context, if the event has timing.
    pub timed: Option<(Handle, Handle)>,
}

pub fn driver_says(code: u32) -> Failed {
    format!("Broken: the driver answers CUDA error {code}")
}

impl Plan {
    /// Recreates the session at the other worker, on a helper's thread. Returns the number of bytes of memory that were
    /// sent.
    ///
    /// # Errors
    /// The reason why the same session cannot be recreated there.
    pub fn carry_out(mut self, driver: &Driver, mut ahead: Ahead) -> Result<u64, Failed> {
        let handles: Vec<Handle> = self.ground.contexts.iter().map(|(_, handle, _)| *handle).collect();
        settle(driver, &handles).map_err(driver_says)?;
        ahead.free_buffers(driver);
        self.ground.make(&mut ahead.there, ahead.ground.as_ref())?;
        self.make_streams(&mut ahead.there)?;
        let slabs = self.places.len();
        let globals = self.load_code(driver, &mut ahead.there)?;
        self.places.extend(globals);
        self.make_graphs(&mut ahead.there)?;
        self.copy_contents(driver, &mut ahead, slabs)?;
        let mut there = ahead.there;
        self.make_events(&mut there)?;
        self.ground.synchronise(&mut there)?;
        for (stream, mirror) in &self.mirrors {
            let seq = there.tell(*stream, mirror, &[])?;
            there.expect(seq, "NoRoom: mirrors of its page-locked memory");
        }
        there.settle()?;
        self.adopt.times = self.times(driver).map_err(driver_says)?;
        for piece in self.kept.chunks(MAX_PAYLOAD / 2) {
            there.tell(0, &AdoptKept {}, piece)?;
        }
        there.tell(0, &self.adopt, &[])?;
        there.write(&self.unread)?;
        there.finish()
    }

    fn make_streams(&self, there: &mut Replay) -> Result<(), Failed> {
        for stream in &self.streams {
            there.tell(0, stream, &[])?;
        }
        for gate in &self.gates {
            there.tell(0, gate, &[])?;
        }
        for peer in &self.peers {
            there.tell(0, peer, &[])?;
        }
        self.ground.synchronise(there)
    }

    /// Loads the modules, and compares the addresses of their variables. Returns the places of the variables.
    fn load_code(&self, driver: &Driver, there: &mut Replay) -> Result<Vec<Place>, Failed> {
        let mut places = Vec::new();
        for code in &self.modules {
            let context = self.ground.contexts.iter().find(|(create, ..)| create.context == code.load.context);
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

    /// Sends the contents of the memory. The first `slabs` places are slabs. Bytes that the other worker already has
    /// are not sent again. This applies only to slabs that stayed: a new slab may have the address of an old one, and
    /// its contents must be sent.
    fn copy_contents(&self, driver: &Driver, ahead: &mut Ahead, slabs: usize) -> Result<(), Failed> {
        let (slabs, variables) = self.places.split_at(slabs);
        let kept = self.ground.kept(ahead.ground.as_ref());
        let send = |piece: &Piece, bytes: &mut [u8]| {
            let slab = kept.range(..=piece.address).next_back();
            let stayed = slab.is_some_and(|(start, size)| piece.address - start < *size);
            if stayed && ahead.has(piece, bytes)? {
                return Ok(());
            }
            let (context, stream) = self.ground.stream(piece.device)?;
            ahead.there.copy(context, stream, piece.address, bytes, !stayed)
        };
        match &self.image {
            Some(image) => image.for_each(slabs, send)?,
            None => read(driver, slabs, send)?,
        }
        read(driver, variables, |piece, bytes| {
            let (context, stream) = self.ground.stream(piece.device)?;
            ahead.there.copy(context, stream, piece.address, bytes, false)
        })?;
        self.ground.synchronise(&mut ahead.there)
    }

    fn make_events(&self, there: &mut Replay) -> Result<(), Failed> {
        for event in &self.events {
            there.tell(0, &event.create, &[])?;
            if let Some((record, stream)) = &event.record {
                there.tell(*stream, record, &[])?;
            }
        }
        self.ground.synchronise(there)?;
        for event in self.events.iter().filter(|event| event.followed) {
            let generation = event.record.as_ref().map_or(0, |(record, _)| record.generation);
            let seq = there.tell(0, &EventQuery { event: event.create.event, generation }, &[])?;
            there.expect(seq, "NotMade: a record of an event");
        }
        there.settle()
    }

    /// Returns the times at which the records of events with timing were complete.
    fn times(&self, driver: &Driver) -> Result<Vec<EventTime>, u32> {
        let mut times = Vec::new();
        for (create, handle, _) in &self.ground.contexts {
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

/// Returns the address and size of each variable of a module. The addresses must be the same at the other worker.
fn variables(driver: &Driver, code: &Code, image: &[u8], there: &mut Replay) -> Result<Vec<(u64, u64)>, Failed> {
    let unreadable = |error| format!("UnknownCode: a module cannot be read: {error}");
    let found = Variables::of(bundled_images(image).as_deref().unwrap_or(&[image])).map_err(unreadable)?;
    if found.allocates {
        return Err("DeviceHeapUsed: its kernels call malloc, whose memory no function of CUDA's reaches".into());
    }
    let mut places = Vec::new();
    for name in found.names {
        let Ok(c_name) = CString::new(name.as_str()) else { continue };
        // The variable belongs to another architecture, or no kernel uses it.
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
