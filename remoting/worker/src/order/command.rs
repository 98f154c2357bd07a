//! A frame as a command, and its keys for the scheduler.

use crate::io::frames::Payload;
use crate::order::rules::{Rule, kept};
use crate::order::sched::Mode;
use crate::session::settings::Settings;
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
            /// A function of the registry.
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

/// A command on its way through the worker.
#[derive(Debug)]
pub struct Frame {
    pub seq: u64,
    pub stream_id: u64,
    pub command: Command,
    pub payload: Payload,
    /// Offset in the payload where the message's tail starts.
    pub tail: usize,
    /// Progress of a command that runs in steps.
    pub progress: u64,
    /// The events that count this frame among those that refer to them.
    pub refers: Vec<u64>,
    /// Settings of a launch that had to wait.
    pub settings: Option<Settings>,
}

impl Frame {
    /// # Errors
    /// If the payload does not fit the code.
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

    /// Whether it counts as a launch.
    pub fn is_launch(&self) -> bool {
        matches!(self.command, Command::Launch(_) | Command::GraphLaunch(_))
    }

    /// Whether later commands have to wait until it is done.
    pub fn places_memory(&self) -> bool {
        matches!(self.command, Command::SlabMap(_) | Command::SlabMove(_) | Command::PeerAccess(_))
    }

    /// Returns the events that this command waits for, asks for or records.
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

/// Keys by which commands are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    Stream(u64),
    /// The context's streams that the legacy stream orders: exclusive for the legacy stream, shared for blocking ones.
    Legacy(u64),
    /// Everything in a context: exclusive for its creation, shared for its streams' commands.
    Context(u64),
    /// The creation of contexts, for commands that need one without naming it.
    Creation,
    /// The destruction of contexts, which the next creation waits for: a device that was reset starts from nothing.
    Destruction,
    /// One record of an event.
    Record(u64, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    Legacy,
    Blocking,
    NonBlocking,
}

/// The streams that commands may name. One is added when the command that creates it arrives.
#[derive(Debug, Default)]
pub struct Topology {
    streams: HashMap<u64, (u64, StreamKind)>,
}

impl Topology {
    /// Limit on the streams that are remembered; commands of others answer that there is no such stream.
    pub const MOST_STREAMS: usize = 1 << 20;

    /// Learns of streams from a command that arrives.
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

    /// Returns the keys of a command that is part of the stream's order.
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

    /// Returns the keys of a command. Commands without keys run when they arrive.
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
            // A context's preferences (caches, shared memory) only affect its speed: they wait for nothing.
            Command::Generated(_) => vec![(Key::Creation, After)],
            _ => Vec::new(),
        }
    }
}
