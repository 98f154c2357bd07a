//! Decodes a frame into a command, and determines the command's keys for the scheduler.

use crate::io::frames::Payload;
use crate::order::sched::Mode;
use crate::session::settings::Settings;
use driverapi::rules::{Rule, kept};
use protocol::{
    DecodeError, EventQuery, EventSynchronize, Header, Message, TensorMapIm2col, TensorMapIm2colWide,
    TensorMapReplaceAddress, TensorMapSetClass, TensorMapTiled,
};
use std::collections::HashMap;

macro_rules! commands {
    ($($name:ident),*) => {
        #[derive(Debug)]
        pub enum Command {
            $($name(protocol::$name),)*
            /// A function of the registry, by its number.
            Generated(u32),
        }

        fn decode(code: u32, payload: &[u8]) -> Result<(Command, &[u8]), DecodeError> {
            match code {
                $(protocol::$name::CODE => {
                    protocol::$name::decode(payload).map(|(message, tail)| (Command::$name(message), tail))
                })*
                0..0x8000 => Ok((Command::Generated(code), payload)),
                _ => Err(DecodeError::Invalid),
            }
        }
    };
}

commands! {
    Open, Rebase, Close, ArenaAt, AdoptKept, Skipped,
    ContextCreate, ContextDestroy, ContextSynchronize, ContextFence,
    SlabMap, SlabUnmap, PieceBounds, SlabMove, SlabExport, SlabImport, PeerAccess,
    Grant, GrantReturn, MemoryQuery, ContextLimit,
    ArrayCreate, ArrayDestroy, TextureCreate, TextureDestroy, TextureView,
    StreamCreate, StreamDestroy, StreamSynchronize, StreamQuery, StreamFence,
    EventCreate, EventDestroy, EventRecord, EventSynchronize, EventQuery, StreamWaitEvent,
    HostFunction, CallbackDone, Gate, GateOpen,
    EventExport, EventImport, SharedEventRecord, SharedEventGate, SharedEventSynchronize, SharedEventQuery,
    ImageChunk, ModuleLoad, ModuleUnload, ModuleGlobal, KernelDescribe, Launch, Link,
    GraphBuild, GraphLaunch, GraphDestroy,
    TensorMapTiled, TensorMapIm2col, TensorMapIm2colWide, TensorMapReplaceAddress, TensorMapSetClass,
    CopyToDevice, CopyToDeviceLate, SupplyBytes, SupplyCancel, CopyToHost, CopyOnDevice,
    CopyToDeviceShared, CopyToHostShared, CopyToDeviceStriped, CopyToHostStriped, Landed,
    MirrorAdd, MirrorChanges, MirrorEnd
}

/// A command that has arrived and is not finished.
#[derive(Debug)]
pub struct Frame {
    pub seq: u64,
    pub stream_id: u64,
    pub command: Command,
    pub payload: Payload,
    /// The offset in the payload at which the message's tail begins.
    pub tail: usize,
    /// The progress of a command that runs in several steps.
    pub progress: u64,
    /// The events that this frame refers to. Each event counts the frame as a reference.
    pub refers: Vec<u64>,
    /// The settings of the kernel when the launch arrived, if the launch had to wait.
    pub settings: Option<Settings>,
}

impl Frame {
    /// Decodes a frame.
    ///
    /// # Errors
    /// Fails if the payload is not valid for the code.
    pub fn decode(header: &Header, payload: Payload) -> Result<Frame, DecodeError> {
        let bytes = payload.bytes();
        let (command, tail) = decode(header.code, bytes)?;
        let tail = bytes.len() - tail.len();
        Ok(Frame {
            seq: header.seq,
            stream_id: header.stream_id,
            command,
            payload,
            tail,
            progress: 0,
            refers: Vec::new(),
            settings: None,
        })
    }

    pub fn tail(&self) -> &[u8] {
        self.payload.bytes().get(self.tail..).unwrap_or_default()
    }

    /// Whether the command counts as a launch.
    pub fn is_launch(&self) -> bool {
        matches!(self.command, Command::Launch(_) | Command::GraphLaunch(_))
    }

    /// Whether later commands have to wait until this command is done.
    pub fn places_memory(&self) -> bool {
        matches!(self.command, Command::SlabMap(_) | Command::SlabMove(_) | Command::PeerAccess(_))
    }

    /// Returns the events that this command waits for, queries or records.
    pub fn events(&self) -> Vec<u64> {
        match &self.command {
            Command::EventRecord(c) => vec![c.event],
            Command::EventSynchronize(c) => vec![c.event],
            Command::EventQuery(c) => vec![c.event],
            Command::StreamWaitEvent(c) => vec![c.event],
            Command::Launch(c) => c.shape.attributes.iter().filter_map(|a| Some(a.recording()?.event)).collect(),
            _ => Vec::new(),
        }
    }
}

/// A key: an object whose commands must run in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    Stream(u64),
    /// The streams of the context that the legacy stream orders. The legacy stream's commands are exclusive, those of
    /// blocking streams are shared.
    Legacy(u64),
    /// The whole context. Its creation is exclusive, the commands of its streams are shared.
    Context(u64),
    /// The creation of contexts, for commands that need a context and do not name it.
    Creation,
    /// The destruction of contexts. The next creation waits for it, because a device that was reset has no state.
    Destruction,
    /// One record of an event: the event and the generation of the record.
    Record(u64, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    Legacy,
    Blocking,
    NonBlocking,
}

/// The streams that commands may name. A stream is added when the command that creates it arrives.
#[derive(Debug, Default)]
pub struct Topology {
    streams: HashMap<u64, (u64, StreamKind)>,
}

impl Topology {
    /// Limit on the registered streams. A command of any other stream fails, because the stream does not exist.
    pub const MOST_STREAMS: usize = 1 << 20;

    /// Adds the streams that an arriving command creates.
    pub fn note(&mut self, command: &Command) {
        const NON_BLOCKING: u32 = 1;
        if self.streams.len() >= Self::MOST_STREAMS {
            return;
        }
        match command {
            Command::ContextCreate(c) => {
                self.streams.entry(c.legacy_stream).or_insert((c.context, StreamKind::Legacy));
            }
            Command::StreamCreate(c) => {
                let kind = if c.flags & NON_BLOCKING != 0 { StreamKind::NonBlocking } else { StreamKind::Blocking };
                self.streams.entry(c.stream).or_insert((c.context, kind));
            }
            _ => {}
        }
    }

    pub fn stream(&self, stream_id: u64) -> Option<(u64, StreamKind)> {
        self.streams.get(&stream_id).copied()
    }

    pub fn forget_stream(&mut self, stream_id: u64) {
        self.streams.remove(&stream_id);
    }

    pub fn forget_context(&mut self, context: u64) {
        self.streams.retain(|_, (c, _)| *c != context);
    }

    /// Returns the keys of a command that belongs to the order of a stream.
    fn stream_keys(&self, stream_id: u64) -> Vec<(Key, Mode)> {
        let mut keys = Vec::with_capacity(4);
        if kept(Rule::StreamOrder) {
            keys.push((Key::Stream(stream_id), Mode::Exclusive));
        }
        let Some((context, kind)) = self.stream(stream_id) else { return keys };
        keys.push((Key::Context(context), Mode::Shared));
        match kind {
            _ if !kept(Rule::LegacyOrder) => {}
            StreamKind::Legacy => keys.push((Key::Legacy(context), Mode::Exclusive)),
            StreamKind::Blocking => keys.push((Key::Legacy(context), Mode::Shared)),
            StreamKind::NonBlocking => {}
        }
        keys
    }

    /// Returns the keys of a command. A command without keys runs when it arrives.
    pub fn keys(
        &self,
        frame: &Frame,
        module_context: impl FnOnce(u64) -> Option<u64>,
        graph_context: impl FnOnce(u64) -> Option<u64>,
    ) -> Vec<(Key, Mode)> {
        use Mode::{After, Exclusive, Observe, Shared};
        let unless_kept = |rule, keys: Vec<(Key, Mode)>| if kept(rule) { keys } else { Vec::new() };
        match &frame.command {
            Command::ContextCreate(c) => vec![
                (Key::Context(c.context), Exclusive),
                (Key::Creation, Exclusive),
                (Key::Destruction, Observe),
                (Key::Stream(c.legacy_stream), Exclusive),
            ],
            Command::ContextDestroy(c) => {
                let mut keys = unless_kept(Rule::ContextDestroy, vec![(Key::Context(c.context), Observe)]);
                keys.push((Key::Destruction, Shared));
                keys
            }
            Command::ContextSynchronize(c) => unless_kept(Rule::ContextWait, vec![(Key::Context(c.context), Observe)]),
            Command::ContextLimit(c) => {
                let mut keys = vec![(Key::Creation, After)];
                keys.extend(unless_kept(Rule::ContextLimits, vec![(Key::Context(c.context), Observe)]));
                keys
            }
            Command::ContextFence(c) => unless_kept(Rule::Fence, vec![(Key::Context(c.context), Observe)]),
            Command::StreamFence(_) => unless_kept(Rule::Fence, self.stream_keys(frame.stream_id)),
            Command::SlabMap(_)
            | Command::SlabMove(_)
            | Command::PieceBounds(_)
            | Command::SlabImport(_)
            | Command::PeerAccess(_)
            | Command::ArrayDestroy(_)
            | Command::TextureDestroy(_)
            | Command::ModuleGlobal(_)
            | Command::KernelDescribe(_) => {
                vec![(Key::Creation, After)]
            }
            Command::StreamCreate(c) => vec![(Key::Stream(c.stream), Exclusive), (Key::Context(c.context), After)],
            Command::StreamDestroy(c) => unless_kept(Rule::StreamDestroy, self.stream_keys(c.stream)),
            Command::ArrayCreate(c) => vec![(Key::Context(c.context), After)],
            Command::TextureCreate(c) => vec![(Key::Context(c.context), After)],
            Command::TextureView(c) => vec![(Key::Context(c.context), After)],
            Command::ModuleLoad(c) => vec![(Key::Context(c.context), After)],
            Command::Link(c) => vec![(Key::Context(c.context), After)],
            Command::GraphBuild(c) => vec![(Key::Context(c.context), After)],
            Command::GraphDestroy(c) => {
                graph_context(c.graph).map(|c| (Key::Context(c), Observe)).into_iter().collect()
            }
            Command::TensorMapTiled(TensorMapTiled { context, .. })
            | Command::TensorMapIm2col(TensorMapIm2col { context, .. })
            | Command::TensorMapIm2colWide(TensorMapIm2colWide { context, .. })
            | Command::TensorMapReplaceAddress(TensorMapReplaceAddress { context, .. })
            | Command::TensorMapSetClass(TensorMapSetClass { context, .. }) => vec![(Key::Context(*context), After)],
            Command::ModuleUnload(c) => {
                let keys = module_context(c.module).map(|c| (Key::Context(c), Observe)).into_iter().collect();
                unless_kept(Rule::ModuleUnload, keys)
            }
            Command::EventSynchronize(EventSynchronize { event, generation })
            | Command::EventQuery(EventQuery { event, generation }) => {
                unless_kept(Rule::EventState, vec![(Key::Record(*event, *generation), Observe)])
            }
            Command::EventRecord(c) => {
                let mut keys = self.stream_keys(frame.stream_id);
                keys.push((Key::Record(c.event, c.generation), Exclusive));
                keys
            }
            Command::StreamWaitEvent(c) => {
                let mut keys = self.stream_keys(frame.stream_id);
                keys.extend(unless_kept(Rule::EventWait, vec![(Key::Record(c.event, c.generation), Observe)]));
                keys
            }
            Command::Launch(c) => {
                let mut keys = self.stream_keys(frame.stream_id);
                let records = c.shape.attributes.iter().filter_map(|a| a.recording());
                keys.extend(records.map(|r| (Key::Record(r.event, r.generation), Exclusive)));
                keys
            }
            Command::StreamSynchronize(_)
            | Command::GraphLaunch(_)
            | Command::HostFunction(_)
            | Command::Gate(_)
            | Command::CopyToDevice(_)
            | Command::CopyToDeviceLate(_)
            | Command::CopyToDeviceShared(_)
            | Command::CopyToHost(_)
            | Command::CopyToHostShared(_)
            | Command::CopyToDeviceStriped(_)
            | Command::CopyToHostStriped(_)
            | Command::MirrorAdd(_)
            | Command::MirrorChanges(_)
            | Command::CopyOnDevice(_) => self.stream_keys(frame.stream_id),
            Command::Generated(_) if frame.stream_id != 0 => self.stream_keys(frame.stream_id),
            // The preferences of a context (caches, shared memory) only affect its speed, so they wait for nothing.
            Command::Generated(_) => vec![(Key::Creation, After)],
            _ => Vec::new(),
        }
    }
}
