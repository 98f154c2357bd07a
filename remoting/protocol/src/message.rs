//! Commands (client to worker), the reply, and pushes (worker to client).
//!
//! Ids of contexts, streams, events and modules are minted by the client and never reused within a session. Kernels are
//! named by their module and their place in the list that the load replied. Device addresses lie in the session's arena.
//! Messages of an older version of the wire stay as they are: a changed one gets another code and name
//! (`remoting/registry/wire.lock`, `make generate`).

use crate::wire::{DecodeError, Reader, Wire, Writer};

/// A message with a code of its own. The bytes behind the fixed fields in a frame are the message's *tail* (raw bytes).
pub trait Message: Wire {
    const CODE: u32;
    /// Whether bytes may follow the fields.
    const HAS_TAIL: bool;

    /// The message and its tail.
    ///
    /// # Errors
    /// If the payload is not such a message.
    fn decode(payload: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let mut r = Reader::new(payload);
        let message = r.get()?;
        if Self::HAS_TAIL {
            return Ok((message, r.tail()));
        }
        r.finish()?;
        Ok((message, &[]))
    }
}

macro_rules! record {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$fdoc:meta])* $field:ident : $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type),* }
        impl Wire for $name {
            const MIN_SIZE: usize = 0 $(+ <$type as Wire>::MIN_SIZE)*;
            #[allow(unused_variables)]
            fn put(&self, w: &mut Writer) { $(self.$field.put(w);)* }
            #[allow(unused_variables)]
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> { Ok($name { $($field: r.get()?),* }) }
            fn size(&self) -> usize { 0 $(+ self.$field.size())* }
        }
    )*};
}

macro_rules! messages {
    ($($(#[$doc:meta])* $code:literal $name:ident $($tail:ident)? { $($(#[$fdoc:meta])* $field:ident : $type:ty),* $(,)? })*) => {
        $(
            record! { $(#[$doc])* struct $name { $($(#[$fdoc])* $field: $type),* } }
            impl Message for $name {
                const CODE: u32 = $code;
                const HAS_TAIL: bool = false $(|| stringify!($tail).len() > 0)?;
            }
        )*
        /// The name of a command, reply or push, for messages to people.
        pub fn message_name(code: u32) -> Option<&'static str> {
            match code { $($code => Some(stringify!($name)),)* _ => None }
        }
        /// Decodes `payload` as the message `code` and encodes it again; for tests and fuzzing.
        ///
        /// # Errors
        /// `Invalid` for a code that is none, else as the message's decoder.
        pub fn reencode(code: u32, payload: &[u8]) -> Result<Vec<u8>, DecodeError> {
            match code {
                $($code => {
                    let (message, tail) = <$name as Message>::decode(payload)?;
                    let mut w = Writer::new();
                    w.put(&message).raw(tail);
                    debug_assert_eq!(w.bytes.len(), message.size() + tail.len());
                    Ok(w.bytes)
                })*
                _ => Err(DecodeError::Invalid),
            }
        }
        /// Every code with its default message encoded, for tests.
        pub fn samples() -> Vec<(u32, Vec<u8>)> {
            vec![$(($code, { let mut w = Writer::new(); w.put(&$name::default()); w.bytes })),*]
        }
    };
}

record! {
    /// The position of a parameter in a kernel's packed parameter buffer, in bytes.
    struct KernelParam { offset: u32, size: u32 }

    /// The data of a kernel that the client needs to launch it and to answer attribute queries.
    struct KernelInfo {
        params: Vec<KernelParam>,
        /// `CUfunction_attribute` and its value.
        attributes: Vec<(u32, i32)>,
    }

    /// A launch attribute as `cuLaunchKernelEx` takes it: id and the 64 bytes of its value as little-endian words. One that
    /// records an event has a [`crate::Recording`] as its value.
    struct LaunchAttribute { id: u32, value: [u64; 8] }

    /// A launch's size and attributes.
    struct LaunchShape { grid: [u32; 3], block: [u32; 3], shared: u32, attributes: Vec<LaunchAttribute> }

    /// A box of bytes: `width` bytes a row, `height` rows, `depth` slices, laid out in device memory with `pitch` bytes
    /// from row to row and `slice` bytes from slice to slice. Its host form is always packed (`width * height * depth` bytes).
    struct Extent { width: u64, height: u64, depth: u64, pitch: u64, slice: u64 }

    /// The memory that a tensor map describes, and how it is read, as every `cuTensorMapEncode*` takes it. `sizes` and
    /// `element_strides` have an entry for each dimension, `strides` one less.
    struct Tensor {
        kind: u32, address: u64, sizes: Vec<u64>, strides: Vec<u64>, element_strides: Vec<u32>, interleave: u32, swizzle: u32,
        promotion: u32, fill: u32,
    }

    /// The device's work in a graph. `code` and `body` are those of the command that does the same on a stream
    /// (`Launch`, `CopyOnDevice`, `cuMemsetD2D*Async`), 0 and nothing for a place where edges meet.
    struct GraphNode { after: Vec<GraphEdge>, code: u32, body: Vec<u8> }

    /// An edge from the earlier node at `place` in the list, as `CUgraphEdgeData` describes it.
    struct GraphEdge { place: u32, from_port: u8, to_port: u8, kind: u8 }

    /// An object whose creation failed: every use of it answers `code`. `kind`: the code of the command that makes such.
    struct FailedObject { kind: u32, id: u64, code: u32 }

    /// When the record of an event was complete, in nanoseconds since 1970.
    struct EventTime { event: u64, generation: u64, nanoseconds: u64 }

    /// Stretches of a mirror; their bytes are in the tail, in this order.
    struct MirrorPart { mirror: u64, runs: Vec<MirrorRun> }
    struct MirrorRun { at: u64, len: u32 }

    /// One input of a link: `CUjitInputType`, a name for messages, and the image that was sent under this hash.
    struct LinkInput { kind: u32, name: String, hash: [u8; 32] }
}

messages! {
    // ---- session
    /// First command: the version of the wire that the session speaks, and its `table_hash`. A worker that does not speak it
    /// refuses with both named (`Ending`).
    0x8000 Open { wire_version: u32, table_hash: u64, client_pid: u32, client_name: String }
    /// The arena lies where the client cannot have it: choose another base. Replies `Opened`.
    0x8001 Rebase { avoid: u64 }
    /// The client ends the session; it needs no more answers.
    0x8002 Close {}

    // ---- from a worker that moves its session here and is this one's client until then
    /// The arena shall be this range and no other. Sent when nothing is mapped. Replies.
    0x8003 ArenaAt { base: u64, size: u64 }
    /// Tail: bytes for the client that it has not acknowledged, to be kept for `Adopt`.
    0x8004 AdoptKept tail {}
    /// From here on the session belongs to the client that did not send `Open`: numbers and counts go on where they
    /// were. Bytes of it that the other worker received but did not carry out follow this message.
    0x8005 Adopt {
        /// The client's last command that was carried out.
        seq: u64,
        /// Offsets in the client's bytes: before those that follow, and with them.
        received: u64, until: u64,
        /// Bytes that the client has acknowledged.
        acknowledged: u64,
        epoch: u64, launches: u64, refused: u64,
        /// An error that is still to be reported, or 0.
        late: u32,
        failed: Vec<FailedObject>,
        times: Vec<EventTime>,
    }
    /// In place of a command that was carried out before its turn.
    0x8006 Skipped {}

    // ---- contexts and memory
    /// `legacy_stream` is the context's legacy default stream.
    0x8010 ContextCreate { context: u64, device: u32, flags: u32, primary: bool, legacy_stream: u64 }
    /// `Fenced` is pushed when it is destroyed; its memory is free again.
    0x8011 ContextDestroy { context: u64, token: u64 }
    /// `launches`: how many the client has sent in this session, or `UNCOUNTED`.
    0x8012 ContextSynchronize { context: u64, launches: u64 }
    /// `Fenced` is pushed when all earlier work of the context is complete.
    0x8013 ContextFence { context: u64, token: u64 }
    /// Map zeroed memory at `address`, a place in the arena that the client chose. Both are multiples of the granularity.
    0x8014 SlabMap { device: u32, address: u64, size: u64 }
    /// Sent only after everything that used the slab was fenced.
    0x8015 SlabUnmap { address: u64, size: u64 }
    /// An allocation of `size` bytes lies here in a slab, for a driver with `CHECKS_BOUNDS`; 0: it is gone. A slab
    /// without such messages is valid as a whole.
    0x8083 PieceBounds { address: u64, size: u64 }
    /// Ask for at least `least`, better `want` bytes of the lease's share of a device. Replies `Granted` or code 2.
    0x8016 Grant { device: u32, least: u64, want: u64 }
    0x8017 GrantReturn { device: u32, size: u64 }
    /// Replies `MemoryState`.
    0x8018 MemoryQuery { device: u32 }
    /// Shows a slab at another place. Sent only after everything that used it at the first was fenced.
    0x801b SlabMove { from: u64, to: u64, size: u64 }
    /// Lets other processes of the lease import the slab that starts here. From now on the lease is charged for it, not
    /// the session. Replies `Exported`.
    0x8019 SlabExport { address: u64 }
    /// Like `SlabMap`, but maps memory that another process of the lease exported. Replies.
    0x801a SlabImport { device: u32, address: u64, size: u64, token: [u8; 16] }
    /// Whether `device` reaches the memory that the session has on `peer`, another one. Sent only when no running work
    /// uses memory that becomes unreachable.
    0x801d PeerAccess { device: u32, peer: u32, allowed: bool }
    /// `cuArray3DCreate`. The array is named by the first of its addresses: a place in the arena that the client chose, where
    /// no memory is, with the steps of `driverapi::arrays`. Copies name its bytes by them. Replies.
    0x801e ArrayCreate {
        context: u64, array: u64, width: u64, height: u64, depth: u64, format: u32, channels: u32, flags: u32
    }
    /// Sent only when nothing uses the array any more.
    0x801f ArrayDestroy { array: u64 }
    /// `CUDA_RESOURCE_DESC`, of an array with its name in the first word, and `CUDA_TEXTURE_DESC` for a texture. Replies
    /// `TextureMade`.
    0x8070 TextureCreate { context: u64, kind: u32, resource: [u64; 5], surface: bool, sampling: [u32; 14] }
    0x8071 TextureDestroy { texture: u64, surface: bool }
    /// Like `TextureCreate`, for an array seen through a `CUDA_RESOURCE_VIEW_DESC`: its members without reserved ones.
    /// Replies `TextureMade`.
    0x8072 TextureView { context: u64, array: u64, sampling: [u32; 14], view: [u64; 8] }
    /// `cuCtxSetLimit`. The driver's memory for it is counted against the grant. Replies.
    0x801c ContextLimit { context: u64, limit: u32, value: u64 }

    // ---- streams and events; the header names the stream
    0x8020 StreamCreate { stream: u64, context: u64, flags: u32, priority: i32 }
    0x8021 StreamDestroy { stream: u64 }
    /// `launches` as in `ContextSynchronize`.
    0x8022 StreamSynchronize { launches: u64 }
    0x8023 StreamQuery {}
    0x8024 StreamFence { token: u64 }
    0x8025 EventCreate { event: u64, context: u64, flags: u32 }
    0x8026 EventDestroy { event: u64 }
    /// The client counts the records of an event; completions name the record.
    0x8027 EventRecord { event: u64, generation: u64, flags: u32 }
    0x8028 EventSynchronize { event: u64, generation: u64 }
    /// Replies 0 or 600; after 600 `EventDone` is pushed when the record completes. From now on it is also pushed for
    /// every record of this event that follows.
    0x8029 EventQuery { event: u64, generation: u64 }
    0x802a StreamWaitEvent { event: u64, generation: u64, flags: u32 }
    /// `Callback` is pushed when the stream gets there; the stream continues at `CallbackDone`.
    0x802b HostFunction { token: u64 }
    0x802c CallbackDone { token: u64 }
    /// The stream continues at `GateOpen`, which may come before the stream gets there.
    0x802d Gate { token: u64 }
    0x802e GateOpen { token: u64 }

    // ---- events that processes of a lease share; each replies
    /// Lets other processes of the lease have an event. Replies `Exported`.
    0x8050 EventExport { event: u64 }
    /// Makes a new event the one that another process exported.
    0x8051 EventImport { event: u64, token: [u8; 16] }
    /// Sent before the record itself: waits for the event in any process are from now on for this record.
    0x8052 SharedEventRecord { event: u64, generation: u64 }
    /// Code 0 if the latest record of any process is complete. Otherwise 600, and `gate` opens when it is.
    0x8053 SharedEventGate { event: u64, gate: u64 }
    /// Replies when the latest record is complete.
    0x8054 SharedEventSynchronize { event: u64 }
    /// 0 or 600.
    0x8055 SharedEventQuery { event: u64 }

    // ---- code
    /// A piece of an image, to be found later under the SHA-256 of the whole.
    0x8030 ImageChunk tail { hash: [u8; 32], offset: u64, total: u64 }
    /// Replies `ModuleLoaded`, or code `NEED_IMAGE` if the worker does not have the image. `eager`: kernels are loaded
    /// at once, not when they are described. `bytes`: its use of the device's memory, counted against the grant.
    0x8031 ModuleLoad { module: u64, context: u64, hash: [u8; 32], options: Vec<(u32, u64)>, eager: bool, bytes: u64 }
    /// `Fenced` is pushed when it is unloaded; its memory is free again.
    0x8032 ModuleUnload { module: u64, token: u64 }
    /// Replies `Symbol`.
    0x8033 ModuleGlobal { module: u64, name: String }
    /// Tail: the packed parameter buffer.
    0x8034 Launch tail {
        module: u64, kernel: u32, shape: LaunchShape,
    }
    /// Loads a kernel of a module; no earlier command waits for it. Replies `KernelInfo`. Sent before the first command
    /// that names the kernel.
    0x803b KernelDescribe { module: u64, kernel: u32 }
    /// Makes an executable graph of kernels that were described. Replies.
    0x803c GraphBuild { graph: u64, context: u64, flags: u64, nodes: Vec<GraphNode> }
    /// A node of `GraphBuild`, never sent by itself. `handle` is the client's number of the condition: the worker puts the
    /// driver's in its place in the parameters of the graph's kernels.
    0x803f GraphCondition { handle: u64, kind: u32, assigns: bool, default: u32, bodies: Vec<Vec<GraphNode>> }
    /// The header names the stream. Counts as one launch.
    0x803d GraphLaunch { graph: u64 }
    0x803e GraphDestroy { graph: u64 }
    /// Replies `Linked`, or `NEED_IMAGE`.
    0x8035 Link { context: u64, options: Vec<(u32, u64)>, inputs: Vec<LinkInput> }

    // ---- tensor maps; each replies `TensorMap`
    /// `box_sizes` has an entry for each dimension.
    0x8036 TensorMapTiled { context: u64, tensor: Tensor, box_sizes: Vec<u32> }
    /// The corners have an entry for each dimension but the first and the last.
    0x8037 TensorMapIm2col { context: u64, tensor: Tensor, lower: Vec<i32>, upper: Vec<i32>, channels: u32, pixels: u32 }
    0x8038 TensorMapIm2colWide {
        context: u64, tensor: Tensor, lower: i32, upper: i32, channels: u32, pixels: u32, mode: u32,
    }
    0x8039 TensorMapReplaceAddress { context: u64, map: [u64; 16], address: u64 }
    /// Only this one uses `class`.
    0x803a TensorMapSetClass { context: u64, map: [u64; 16], class: u32 }

    // ---- copies; the header names the stream
    /// Tail: a packed piece that starts `offset` bytes into the packed box.
    0x8040 CopyToDevice tail { context: u64, address: u64, extent: Extent, offset: u64 }
    /// Like `CopyToDevice`, but the worker asks for the bytes (`NeedBytes`) when the stream gets there.
    0x8041 CopyToDeviceLate { context: u64, address: u64, extent: Extent }
    0x8042 SupplyBytes tail { command: u64, offset: u64 }
    /// The packed box's bytes from `offset` on, `len` many: pieces are pushed (`HostBytes`), then the reply.
    0x8043 CopyToHost { context: u64, address: u64, extent: Extent, offset: u64, len: u64 }
    0x8044 CopyOnDevice { context: u64, to: u64, to_pitch: u64, to_slice: u64, from: u64, extent: Extent }
    /// The bytes that were asked for will not come: the `CopyToDeviceLate` is given up, its stream continues.
    0x8045 SupplyCancel { command: u64 }
    /// Like `CopyToDeviceLate`, for bytes at `from` in the client. A worker that shares this memory reads them there
    /// and replies; any other asks for them.
    0x8046 CopyToDeviceShared { context: u64, address: u64, extent: Extent, from: u64 }
    /// Like `CopyToHost`, to `to` in the client. A worker that shares this memory writes there, any other sends the
    /// bytes.
    0x8047 CopyToHostShared { context: u64, address: u64, extent: Extent, offset: u64, len: u64, to: u64 }
    /// `len` bytes, at most `BULK_CHUNK`, that come on this stripe; they count for the send window. Replies when the bytes are
    /// there. A worker whose stripe ends before asks for them.
    0x8048 CopyToDeviceStriped { context: u64, address: u64, len: u64, stripe: u64 }
    /// `len` bytes, at most `BULK_CHUNK`, to be sent on this stripe. Replies when the client has them (`Landed`). A worker
    /// whose stripe ends before sends them as those of `CopyToHost`.
    0x8049 CopyToHostStriped { context: u64, address: u64, len: u64, stripe: u64 }
    /// The bytes of this `CopyToHostStriped` have come.
    0x804a Landed { command: u64 }

    // ---- mirrors: device memory of which the client has a copy; the header names the stream that brings changes
    /// The worker tells from now on what the device writes here, in steps of `MIRROR_WORD` bytes (`MirrorsTold`). Before
    /// that the client has sent what it holds by the same stream. Replies when the worker has read it.
    0x8080 MirrorAdd { mirror: u64, context: u64, address: u64, size: u64 }
    /// The client's writes, at most `MIRROR_RUNS` runs and `BULK_CHUNK` bytes, which count for the send window.
    0x8081 MirrorChanges tail { parts: Vec<MirrorPart> }
    /// Its memory may be unmapped from now on.
    0x8082 MirrorEnd { mirror: u64 }

    // ---- both ways, outside of the order of commands and answers
    /// Carries nothing but its header's `ack`.
    0xc00f Acknowledge {}
    /// Nothing came for a while. Answered by `Acknowledge`.
    0xc00e Probe {}

    // ---- worker to client
    /// Answer to the command `seq`. `code` is a `CUresult`, or one of ours. Tail: the fields of the answer, if any.
    0xc000 Reply tail { code: u32 }
    /// Tail: bytes for the `CopyToHost` command `seq`, `offset` bytes into what it asked for.
    0xc001 HostBytes tail { offset: u64 }
    0xc002 NeedBytes { offset: u64, len: u64 }
    /// The record is complete, or failed with `code`.
    0xc003 EventDone { event: u64, generation: u64, code: u32 }
    0xc004 Fenced { token: u64 }
    0xc005 Callback { token: u64 }
    /// Tail: output of kernels, or (`stderr`) the driver's messages about them.
    0xc006 Text tail { stderr: bool }
    /// Bytes of `CopyToDevice` that the worker no longer holds; the client keeps at most `SEND_WINDOW` outstanding.
    0xc007 Consumed { bytes: u64 }
    /// The session ends; the sentence is for a person. Every later call answers `code`.
    0xc008 Ending { code: u32, reason: String }
    /// The share is suspended, and nothing runs until another one comes without a reason.
    0xc009 Held { reason: String }
    /// A line for a person, which only the appliance's log would have otherwise.
    0xc00a Notice { line: String }
    /// The device's writes to mirrors of a context. `applied`: the last `MirrorChanges` there that was carried out;
    /// words of later ones stay as the client has them. Pushed before every answer from which a client may conclude
    /// that the device has written it.
    0xc00b MirrorsTold tail { context: u64, applied: u64, parts: Vec<MirrorPart> }
}

record! {
    /// Answer to `Open` and `Rebase`: the arena that the worker reserved, the unit in which it maps memory, and how many
    /// bytes of images it keeps.
    struct Opened { arena_base: u64, arena_size: u64, granularity: u64, image_bytes: u64 }
    struct Granted { size: u64 }
    /// Names a slab or an event to the other processes of the lease, as long as the exporter has it.
    struct Exported { token: [u8; 16] }
    /// The driver's number of a texture or surface, which kernels get as a parameter.
    struct TextureMade { texture: u64 }
    /// `limit`: the lease's share of the device. `free`: the part that is granted to no process of the lease.
    struct MemoryState { limit: u64, free: u64 }
    /// Answer to `ModuleLoad`: the names of the kernels. With a `code` that is an error only `log` is filled.
    struct ModuleLoaded { kernels: Vec<String>, log: String }
    /// A variable of a module; `managed`: the program uses it at the same address.
    struct Symbol { address: u64, size: u64, managed: bool }
    /// A `CUtensorMap` as the driver encoded it, and the allocation class that is in effect.
    struct TensorMap { words: [u64; 16], class: u32 }
    /// The linked image is fetched as the tail that follows these fields.
    struct Linked { info_log: String, error_log: String }
}

impl Extent {
    /// `len` bytes that lie together.
    pub fn linear(len: u64) -> Extent {
        Extent { width: len, height: 1, depth: 1, pitch: len, slice: len }
    }
}

impl KernelInfo {
    /// Bytes of the packed parameter buffer.
    pub fn parameter_bytes(&self) -> usize {
        self.params.iter().map(|p| p.offset as usize + p.size as usize).max().unwrap_or(0)
    }
}

/// The version of the wire since which the answer to `EventQuery`, and `EventDone`, carry the same as an answer to a
/// command that synchronises: all earlier output, and the late error.
pub const EVENTS_TELL: u32 = 11;

/// Changes of mirrors smaller than this are not told apart.
pub const MIRROR_WORD: usize = 4;

/// Runs of one `MirrorChanges`: each is a copy of its own, and a driver's stream takes about 1,024 before it blocks.
pub const MIRROR_RUNS: usize = 96;

/// Sentinel for `launches`: the sender does not count.
pub const UNCOUNTED: u64 = u64::MAX;

/// Code of a reply: send the image first (`ImageChunk`), then ask again. No `CUresult` has this value.
pub const NEED_IMAGE: u32 = 0x1_0000;

/// Bytes of `CopyToDevice` that may be on their way or waiting in the worker.
pub const SEND_WINDOW: u64 = 256 << 20;
