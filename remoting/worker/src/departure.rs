//! A session moves to another worker: it is made anew there by the commands that make such a session, with what its memory
//! holds. What cannot be made the same there is a reason to stay; nothing here changes before the appliance says so.

use crate::arrival::{MOST_KEPT, now};
use crate::calls::replies;
use crate::driver::{Driver, Handle};
use crate::image::{Failed, Place, read};
use crate::objects::{Context, DISABLE_TIMING, LoadedModule, RealEvent};
use crate::overwriting::Filler;
use crate::replay::{Replay, answered};
use crate::requests::Request;
use crate::session::Session;
use crate::settings::Setting;
use crate::suspend::settle;
use driverapi::variables::Variables;
use protocol::{
    Adopt, AdoptKept, ArenaAt, ContextCreate, ContextLimit, ContextSynchronize, EventCreate, EventQuery, EventRecord,
    EventTime, FailedObject, GateOpen, Grant, GraphBuild, HEADER_BYTES, KernelDescribe, MAX_PAYLOAD, Message,
    ModuleGlobal, ModuleLoad, ModuleLoaded, Open, Opened, PeerAccess, SlabMap, StreamCreate, Symbol, UNCOUNTED, Writer,
    bundled_images, function, table_hash,
};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

/// Everything that a session is, as the commands that make it, in their order.
struct Plan {
    arena: (u64, u64),
    granularity: u64,
    /// The version of the wire that the client speaks.
    wire: u32,
    grants: Vec<Grant>,
    contexts: Vec<(ContextCreate, Handle, Vec<ContextLimit>)>,
    streams: Vec<StreamCreate>,
    slabs: Vec<SlabMap>,
    peers: Vec<PeerAccess>,
    modules: Vec<Code>,
    graphs: Vec<Arc<GraphBuild>>,
    events: Vec<Recorded>,
    /// An event of each context, for times.
    clocks: BTreeMap<u64, Handle>,
    gates: Vec<GateOpen>,
    /// By device.
    fillers: BTreeMap<u32, Filler>,
    /// What the slabs hold, and later what the variables do.
    places: Vec<Place>,
    adopt: Adopt,
    kept: Vec<u8>,
    /// Of the client, received and not carried out.
    unread: Vec<u8>,
}

struct Code {
    load: ModuleLoad,
    /// With a zero byte behind it.
    image: Arc<Vec<u8>>,
    loaded: Arc<LoadedModule>,
    kernels: Vec<Handle>,
    described: Vec<u32>,
    /// Functions that set something of a kernel, with their arguments.
    settings: Vec<(u32, Vec<u8>)>,
}

struct Recorded {
    create: EventCreate,
    /// The record, and where it is to be made.
    record: Option<(EventRecord, u64)>,
    followed: bool,
    /// Of an event with timing: what was recorded, and in which context.
    timed: Option<(Handle, Handle)>,
}

impl Session {
    /// Moves to the worker at the other end. `rest`: what was received of the client behind the last frame.
    pub fn depart(&mut self, connection: OwnedFd, rest: &[u8], epoch: u64) {
        self.push_text();
        match self.plan(rest, epoch) {
            Err(reason) => self.stayed(reason),
            Ok((plan, records)) => {
                // They stay until it is known how long ago they were made.
                self.hold.records = records;
                self.helpers.start_in_order(
                    move |driver| plan.carry_out(driver, connection),
                    move |session: &mut Session, moved: Result<u64, Failed>| match moved {
                        Ok(bytes) => session.requests.push(Request::Moved { bytes }),
                        Err(reason) => session.stayed(reason),
                    },
                );
            }
        }
    }

    fn stayed(&mut self, reason: Failed) {
        self.requests.push(Request::NotMoved { reason });
        self.let_go();
    }

    /// The session did not move after all.
    pub fn stay(&mut self) {
        if self.hold.is_away() && self.helpers.is_idle() {
            self.let_go();
        }
    }

    fn plan(&mut self, rest: &[u8], epoch: u64) -> Result<(Plan, Records), Failed> {
        self.check_movable()?;
        let arena = self.memory.arenas.last().copied().ok_or("NotOpened: no session was begun")?;
        let mut contexts: Vec<_> = self.contexts.live().collect();
        contexts.sort_by_key(|(id, _)| *id);
        let charged = |device| contexts.iter().filter(|(_, c)| c.device == device).map(|(_, c)| c.charged).sum::<u64>();
        let mut granted: Vec<_> = self.memory.granted.iter().map(|(device, size)| (*device, *size)).collect();
        granted.sort_unstable();
        let grant = |(device, size): (u32, u64)| {
            let size = size.saturating_sub(charged(device));
            (size > 0).then_some(Grant { device, least: size, want: size })
        };
        let grants = granted.into_iter().filter_map(grant).collect();
        let contexts = contexts.into_iter().map(|(id, context)| {
            let limits =
                context.limits.iter().map(|(limit, is)| ContextLimit { context: id, limit: *limit, value: is.value });
            let create = ContextCreate {
                context: id,
                device: context.device,
                flags: context.flags,
                primary: context.primary,
                legacy_stream: context.legacy,
            };
            (create, context.handle, limits.collect::<Vec<_>>())
        });
        let contexts: Vec<_> = contexts.collect();
        let legacy = |stream: u64| contexts.iter().any(|(create, ..)| create.legacy_stream == stream);
        let mut streams: Vec<_> =
            self.streams.live().filter(|(id, stream)| !stream.destroyed && !legacy(*id)).collect();
        streams.sort_by_key(|(id, _)| *id);
        let streams = streams.into_iter().map(|(id, stream)| StreamCreate {
            stream: id,
            context: stream.context,
            flags: stream.flags,
            priority: stream.priority,
        });
        let slabs = self.memory.slabs.iter().filter(|(_, slab)| slab.memory != 0);
        let slabs: Vec<_> =
            slabs.map(|(at, slab)| SlabMap { device: slab.device, address: *at, size: slab.size }).collect();
        let places = slabs.iter().map(|slab| Place {
            address: slab.address,
            size: slab.size,
            device: slab.device,
            filler: self.filler(slab.device),
        });
        let places = places.collect();
        let streams = streams.collect();
        let peers =
            self.memory.peers.iter().map(|(device, peer)| PeerAccess { device: *device, peer: *peer, allowed: true });
        let peers = peers.collect();
        let gates = self.gates.open.iter().map(|token| GateOpen { token: *token }).collect();
        let (events, mut records) = self.recorded();
        let clocks = self.clocks(&mut records).map_err(driver_says)?;
        let mut graphs: Vec<_> = self.graphs.live().map(|(id, graph)| (id, Arc::clone(&graph.made))).collect();
        graphs.sort_by_key(|(id, _)| *id);
        let unread = self.unread(rest);
        let (acknowledged, kept) = self.out.all();
        if kept.len() > MOST_KEPT {
            return Err(format!("Unread: {} bytes of answers wait for its program", kept.len()));
        }
        let (received, counts) = (self.out.received(), self.counts());
        let adopt = Adopt {
            seq: counts.seq,
            received: received - unread.len() as u64,
            until: received,
            acknowledged,
            epoch,
            launches: counts.launches,
            refused: counts.refused,
            late: counts.late,
            failed: self.failed(),
            times: Vec::new(),
        };
        let plan = Plan {
            arena,
            granularity: self.memory.granularity,
            wire: self.out.wire,
            grants,
            contexts,
            streams,
            slabs,
            peers,
            modules: self.code()?,
            graphs: graphs.into_iter().map(|(_, graph)| graph).collect(),
            events,
            clocks,
            gates,
            fillers: (0..self.device_count).filter_map(|device| Some((device, self.filler(device)?))).collect(),
            places,
            adopt,
            kept,
            unread,
        };
        Ok((plan, records))
    }

    fn check_movable(&self) -> Result<(), Failed> {
        if !self.opened {
            return Err("NotOpened: no session was begun".into());
        }
        if !self.shared_events.is_empty() {
            return Err("SharedEvents: its processes share events (cuIpc*)".into());
        }
        match (self.memory.arrays.len(), self.memory.textures.len()) {
            (0, 0) => Ok(()),
            (arrays, textures) => Err(format!(
                "Textures: it has {arrays} arrays and {textures} textures or surfaces, whose numbers the driver chooses"
            )),
        }
    }

    /// Bytes of the client that were received and are to be carried out there.
    fn unread(&self, rest: &[u8]) -> Vec<u8> {
        let mut unread = Vec::new();
        for (header, payload) in self.hold.kept() {
            unread.reserve(HEADER_BYTES + payload.bytes().len());
            unread.extend_from_slice(&header.encode());
            unread.extend_from_slice(payload.bytes());
        }
        unread.extend_from_slice(rest);
        unread
    }

    fn failed(&self) -> Vec<FailedObject> {
        let of = |kind, id, code| FailedObject { kind, id, code };
        let contexts = self.contexts.failed().map(|(id, code)| of(ContextCreate::CODE, id, code));
        let streams = self.streams.failed().map(|(id, code)| of(StreamCreate::CODE, id, code));
        let events = self.events.failed().map(|(id, code)| of(EventCreate::CODE, id, code));
        let modules = self.modules.failed().map(|(id, code)| of(ModuleLoad::CODE, id, code));
        let graphs = self.graphs.failed().map(|(id, code)| of(GraphBuild::CODE, id, code));
        contexts.chain(streams).chain(events).chain(modules).chain(graphs).collect()
    }

    fn code(&mut self) -> Result<Vec<Code>, Failed> {
        let mut ids: Vec<u64> = self.modules.live().map(|(id, _)| id).collect();
        ids.sort_unstable();
        let mut all = Vec::new();
        for id in ids {
            let Ok(module) = self.modules.get(id) else { continue };
            let Some(image) = self.images.get(&module.made.hash) else {
                return Err(format!(
                    "ImageForgotten: the worker keeps {} MiB of device code, and one that is loaded is no longer among it",
                    self.images.budget >> 20
                ));
            };
            let kernels = module.kernels.iter().enumerate().map(|(index, kernel)| (index as u32, kernel));
            let described = kernels.clone().filter(|(_, kernel)| kernel.parameter_bytes.is_some());
            let settings = kernels.clone().flat_map(|(index, kernel)| {
                kernel.settings.wanted().iter().map(move |(setting, value)| change(id, index, *setting, *value))
            });
            all.push(Code {
                load: module.made.clone(),
                image,
                loaded: Arc::clone(&module.loaded),
                kernels: module.kernels.iter().map(|kernel| kernel.function).collect(),
                described: described.map(|(index, _)| index).collect(),
                settings: settings.collect(),
            });
        }
        Ok(all)
    }

    fn clocks(&self, records: &mut Records) -> Result<BTreeMap<u64, Handle>, u32> {
        let clock = |(id, context): (u64, &Context)| {
            self.enter(id)?;
            let event = context.events.take(&self.driver, true)?;
            let handle = event.handle;
            records.push(event);
            Ok((id, handle))
        };
        self.contexts.live().map(clock).collect()
    }

    fn recorded(&self) -> (Vec<Recorded>, Records) {
        let mut all: Vec<_> = self.events.live().filter(|(_, event)| !event.destroyed).collect();
        all.sort_by_key(|(id, _)| *id);
        let mut records = Vec::new();
        let recorded = all.into_iter().map(|(id, event)| {
            let context = self.contexts.get(event.context).ok();
            let legacy = context.map(|context| context.legacy);
            let latest = event.latest().and_then(Result::ok);
            let record = event.generation().filter(|_| latest.is_some()).zip(legacy);
            let timed = latest.filter(|_| event.timing).zip(context).map(|(record, context)| {
                let timed = (record.handle, context.handle);
                records.push(record);
                timed
            });
            Recorded {
                create: EventCreate {
                    event: id,
                    context: event.context,
                    flags: if event.timing { 0 } else { DISABLE_TIMING },
                },
                record: record.map(|(generation, at)| (EventRecord { event: id, generation, flags: 0 }, at)),
                followed: event.followed,
                timed,
            }
        });
        let recorded = recorded.collect();
        (recorded, records)
    }
}

/// What was recorded, and must not be recorded again meanwhile.
type Records = Vec<Rc<RealEvent>>;

/// The call that sets something of a kernel.
fn change(module: u64, kernel: u32, setting: Setting, value: i32) -> (u32, Vec<u8>) {
    let mut w = Writer::new();
    w.put(&module).put(&kernel);
    let number = match setting {
        Setting::Attribute(attribute) => {
            w.put(&attribute);
            function::CU_FUNC_SET_ATTRIBUTE
        }
        Setting::CacheConfig => function::CU_FUNC_SET_CACHE_CONFIG,
        Setting::SharedMemConfig => function::CU_FUNC_SET_SHARED_MEM_CONFIG,
    };
    w.put(&value);
    (number, w.bytes)
}

fn driver_says(code: u32) -> Failed {
    format!("Broken: the driver answers CUDA error {code}")
}

impl Plan {
    /// For a helper's thread. Returns how many bytes of memory were sent.
    fn carry_out(mut self, driver: &Driver, connection: OwnedFd) -> Result<u64, Failed> {
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
        for (places, fresh) in [(fresh, true), (variables, false)] {
            read(driver, places, |piece, bytes| {
                let (context, stream, _) = streams.get(&piece.device).ok_or("NoContext: its memory has no context")?;
                there.copy(*context, *stream, piece.address, bytes, fresh)
            })?;
        }
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
