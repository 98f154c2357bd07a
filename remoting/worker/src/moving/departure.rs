//! The departure of a session to another worker. It collects the commands that recreate the session there, and the
//! contents of its memory. If something cannot be recreated exactly, the session stays. Nothing changes in this worker
//! before the appliance confirms the move.

use crate::driver::Handle;
use crate::driver::events::{DISABLE_TIMING, RealEvent};
use crate::memory::slabs::Slab;
use crate::moving::ahead::Ahead;
use crate::moving::arrival::MOST_KEPT;
use crate::moving::ground::Ground;
use crate::moving::image::{Failed, Place};
use crate::moving::plan::{Code, Plan, Recorded, driver_says};
use crate::packets::Request;
use crate::session::commands::Session;
use crate::session::objects::Context;
use crate::session::settings::Setting;
use protocol::{
    Adopt, ContextCreate, ContextLimit, EventCreate, EventRecord, FailedObject, GateOpen, GraphBuild, HEADER_BYTES,
    Header, Held, Message, ModuleLoad, PeerAccess, SlabMap, StreamCreate, Writer, function,
};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

impl Session {
    /// Starts the move to the other worker. `rest` are the bytes that were received from the client after the last
    /// frame.
    pub fn depart(&mut self, ahead: Ahead, rest: &[u8], epoch: u64) {
        self.push_text();
        match self.plan(rest, epoch) {
            Err(reason) => self.stayed(reason),
            Ok((plan, records)) => {
                // The records are kept until their completion times were read.
                self.hold.records = records;
                self.helpers.start_in_order(
                    move |driver| plan.carry_out(driver, ahead),
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
        self.stay();
    }

    /// Ends a move that failed at the other worker. The session stays.
    pub fn refused_there(&mut self) {
        self.forget_ahead();
        if self.hold.is_away() && self.helpers.is_idle() {
            self.stay();
        }
    }

    fn plan(&mut self, rest: &[u8], epoch: u64) -> Result<(Plan, Records), Failed> {
        self.check_movable()?;
        let ground = self.ground()?;
        let legacy = |stream: u64| ground.contexts.iter().any(|(create, ..)| create.legacy_stream == stream);
        let mut streams: Vec<_> =
            self.streams.live().filter(|(id, stream)| !stream.destroyed && !legacy(*id)).collect();
        streams.sort_by_key(|(id, _)| *id);
        let streams = streams.into_iter().map(|(id, stream)| StreamCreate {
            stream: id,
            context: stream.context,
            flags: stream.flags,
            priority: stream.priority,
        });
        let image = self.hold.image.clone();
        let places = self.places(&ground.slabs);
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
        let (acknowledged, mut kept) = self.out.all();
        if kept.len() > MOST_KEPT {
            return Err(format!("Unread: {} bytes of answers wait for its program", kept.len()));
        }
        let (received, counts) = (self.out.received(), self.counts());
        if self.hold.told {
            // The session is not suspended at the other worker.
            kept.extend(frame(&Held { reason: String::new() }, received));
        }
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
            ground,
            streams,
            peers,
            modules: self.code()?,
            graphs: graphs.into_iter().map(|(_, graph)| graph).collect(),
            events,
            clocks,
            gates,
            mirrors: self.mirrors.list(),
            fillers: (0..self.device_count).filter_map(|device| Some((device, self.filler(device)?))).collect(),
            places,
            image,
            adopt,
            kept,
            unread,
        };
        Ok((plan, records))
    }

    /// Returns the memory layout of the session.
    ///
    /// # Errors
    /// Fails if the client has not opened the session yet.
    pub fn ground(&self) -> Result<Ground, Failed> {
        let arena = self.memory.arenas.last().copied().ok_or("NotOpened: no session was begun")?;
        let mut contexts: Vec<_> = self.contexts.live().collect();
        contexts.sort_by_key(|(id, _)| *id);
        let charged = |device| contexts.iter().filter(|(_, c)| c.device == device).map(|(_, c)| c.charged).sum::<u64>();
        let granted = self.memory.granted.iter().map(|(device, size)| (*device, size.saturating_sub(charged(*device))));
        let granted = granted.collect();
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
            (create, context.handle, limits.collect())
        });
        let contexts = contexts.collect();
        let slabs = self.memory.slabs.iter().filter(|(_, slab)| slab.memory != 0 || self.hold.image.is_some());
        let slab = |(at, slab): (&u64, &Slab)| SlabMap { device: slab.device, address: *at, size: slab.size };
        let pieces = slabs.clone().flat_map(|(at, slab)| slab.pieces.of(*at)).collect();
        let slabs = slabs.map(slab).collect();
        let (granularity, wire) = (self.memory.granularity, self.out.wire);
        Ok(Ground { arena, granularity, wire, granted, contexts, slabs, pieces })
    }

    /// Returns the places of slabs, with the context and the stream that copy each of them.
    pub fn places(&self, slabs: &[SlabMap]) -> Vec<Place> {
        let place = |slab: &SlabMap| Place {
            address: slab.address,
            size: slab.size,
            device: slab.device,
            filler: self.filler(slab.device),
        };
        slabs.iter().map(place).collect()
    }

    /// Checks that the session can be recreated at another worker.
    ///
    /// # Errors
    /// Names an object of the session that cannot be recreated at another worker.
    pub fn check_movable(&self) -> Result<(), Failed> {
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

    /// Returns the client's bytes that this worker has received and that the other worker has to execute.
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

/// Recorded events that must not be reused until the move has ended.
type Records = Vec<Rc<RealEvent>>;

/// Encodes a frame for the client. `received` is the number of bytes that the client has sent.
fn frame<M: Message>(message: &M, received: u64) -> Vec<u8> {
    let mut w = Writer::new();
    w.put(message);
    let header = Header { len: w.bytes.len() as u32, code: M::CODE, ack: received, ..Header::default() };
    [&header.encode()[..], &w.bytes].concat()
}

/// Returns the number of the driver function that changes a setting of a kernel, and the encoded arguments.
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
