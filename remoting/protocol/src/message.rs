//! Commands (client to worker), the reply, and pushes (worker to client).
//!
//! The client chooses the ids of contexts, streams, events and modules, and never reuses an id in a session. A kernel
//! is identified by its module and its index in the list that `ModuleLoaded` returned. Device addresses are in the
//! session's arena.
//!
//! Messages of an older version of the wire never change: a changed message gets another code and name
//! (`remoting/registry/wire.lock`, `make generate`).

use crate::wire::{DecodeError, Reader, Wire, Writer};

/// A message with its own code. The bytes after the fixed fields in a frame are the message's *tail* (raw bytes).
pub trait Message: Wire {
    const CODE: u32;
    /// Whether a tail may follow the fields.
    const HAS_TAIL: bool;

    /// Returns the message and its tail.
    ///
    /// # Errors
    /// If the payload is not a valid message of this type.
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
        /// Returns the name of a command, reply or push, for error messages.
        pub fn message_name(code: u32) -> Option<&'static str> {
            match code { $($code => Some(stringify!($name)),)* _ => None }
        }
        /// Decodes `payload` as the message `code` and encodes it again; for tests and fuzzing.
        ///
        /// # Errors
        /// `Invalid` for an unknown code, else the errors of the message's decoder.
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
        /// Returns each code with its encoded default message, for tests.
        pub fn samples() -> Vec<(u32, Vec<u8>)> {
            vec![$(($code, { let mut w = Writer::new(); w.put(&$name::default()); w.bytes })),*]
        }
    };
}

record! {
    /// The position of a parameter in a kernel's packed parameter buffer, in bytes.
    struct KernelParam { offset: u32, size: u32 }

    /// The properties of a kernel that the client needs to launch it and to answer attribute queries.
    struct KernelInfo {
        params: Vec<KernelParam>,
        /// Each `CUfunction_attribute` and its value.
        attributes: Vec<(u32, i32)>,
    }

    /// A launch attribute of `cuLaunchKernelEx`: its id, and the 64 bytes of its value as little-endian words. An
    /// attribute that records an event has a [`crate::Recording`] as its value.
    struct LaunchAttribute { id: u32, value: [u64; 8] }

    /// A launch's size and attributes.
    struct LaunchShape { grid: [u32; 3], block: [u32; 3], shared: u32, attributes: Vec<LaunchAttribute> }

    /// A box of bytes: `width` bytes a row, `height` rows, `depth` slices. In device memory, rows are `pitch` bytes
    /// apart and slices `slice` bytes. Its host form is always packed (`width * height * depth` bytes).
    struct Extent { width: u64, height: u64, depth: u64, pitch: u64, slice: u64 }

    /// The arguments that all `cuTensorMapEncode*` functions share: the memory that a tensor map describes, and the way
    /// to read it. `sizes` and `element_strides` have an entry for each dimension, `strides` has one less.
    struct Tensor {
        kind: u32, address: u64, sizes: Vec<u64>, strides: Vec<u64>, element_strides: Vec<u32>, interleave: u32, swizzle: u32,
        promotion: u32, fill: u32,
    }

    /// A node of a graph that the device executes. `code` and `body` are those of the command that does the same work
    /// on a stream (`Launch`, `CopyOnDevice`, `cuMemsetD2D*Async`). An empty node, which only joins edges, has code 0
    /// and no body.
    struct GraphNode { after: Vec<GraphEdge>, code: u32, body: Vec<u8> }

    /// An edge from the earlier node at index `place` of the list, with the data of `CUgraphEdgeData`.
    struct GraphEdge { place: u32, from_port: u8, to_port: u8, kind: u8 }

    /// An object whose creation failed: every use of it returns `code`. `kind` is the code of the command that creates
    /// such objects.
    struct FailedObject { kind: u32, id: u64, code: u32 }

    /// The time at which the record of an event was complete, in nanoseconds since 1970.
    struct EventTime { event: u64, generation: u64, nanoseconds: u64 }

    /// Ranges of a mirror. The tail contains their bytes, in this order.
    struct MirrorPart { mirror: u64, runs: Vec<MirrorRun> }
    struct MirrorRun { at: u64, len: u32 }

    /// One input of a link: its `CUjitInputType`, a name for messages, and the hash under which the image was sent.
    struct LinkInput { kind: u32, name: String, hash: [u8; 32] }
}

messages! {
    // ---- session
    /// The first command: the version of the wire that the session uses, and its `table_hash`. A worker without that
    /// version refuses the session, and its `Ending` names both versions.
    0x8000 Open { wire_version: u32, table_hash: u64, client_pid: u32, client_name: String }
    /// Requests another base address for the arena, because the client cannot reserve this one. Replies `Opened`.
    0x8001 Rebase { avoid: u64 }
    /// Ends the session. The client needs no more answers.
    0x8002 Close {}

    // ---- from a worker that moves its session to this worker, and acts as the client until then
    /// Requests exactly this range as the arena. Sent when no memory is mapped. Replies.
    0x8003 ArenaAt { base: u64, size: u64 }
    /// Tail: bytes for the client that the client has not acknowledged. The worker keeps them for `Adopt`.
    0x8004 AdoptKept tail {}
    /// Transfers the session to its client, which did not send `Open`. Sequence numbers and counts continue. The
    /// client's bytes that the other worker received but did not execute follow this message.
    0x8005 Adopt {
        /// The client's last executed command.
        seq: u64,
        /// Offsets in the client's bytes: before the bytes that follow, and after them.
        received: u64, until: u64,
        /// The number of bytes that the client has acknowledged.
        acknowledged: u64,
        epoch: u64, launches: u64, refused: u64,
        /// An error that is not reported yet, or 0.
        late: u32,
        failed: Vec<FailedObject>,
        times: Vec<EventTime>,
    }
    /// A placeholder for a command that was executed earlier, out of order.
    0x8006 Skipped {}

    // ---- contexts and memory
    /// Creates a context. `legacy_stream` is the id of its legacy default stream.
    0x8010 ContextCreate { context: u64, device: u32, flags: u32, primary: bool, legacy_stream: u64 }
    /// Destroys a context. The worker pushes `Fenced` afterwards; the context's memory is then free again.
    0x8011 ContextDestroy { context: u64, token: u64 }
    /// Waits for all work of a context, then replies. `launches` is the number of launches that the client has sent in
    /// this session, or `UNCOUNTED`.
    0x8012 ContextSynchronize { context: u64, launches: u64 }
    /// Requests a fence. The worker pushes `Fenced` when all earlier work of the context is complete.
    0x8013 ContextFence { context: u64, token: u64 }
    /// Maps zeroed memory at `address`, which the client chose in the arena. Address and size are multiples of the
    /// granularity.
    0x8014 SlabMap { device: u32, address: u64, size: u64 }
    /// Unmaps a slab. Sent only after a fence for all work that used the slab.
    0x8015 SlabUnmap { address: u64, size: u64 }
    /// Sets the bounds of an allocation of `size` bytes in a slab, for a driver with `CHECKS_BOUNDS`. A size of 0
    /// removes the allocation. A slab without such messages is valid as a whole.
    0x8083 PieceBounds { address: u64, size: u64 }
    /// Requests at least `least`, preferably `want` bytes of the lease's share of a device. Replies `Granted` or code
    /// 2.
    0x8016 Grant { device: u32, least: u64, want: u64 }
    0x8017 GrantReturn { device: u32, size: u64 }
    /// Queries the lease's memory on a device. Replies `MemoryState`.
    0x8018 MemoryQuery { device: u32 }
    /// Maps a slab at another address. Sent only after a fence for all work that used the old address.
    0x801b SlabMove { from: u64, to: u64, size: u64 }
    /// Allows other processes of the lease to import the slab that starts at `address`. From now on the slab is charged
    /// to the lease, not to the session. Replies `Exported`.
    0x8019 SlabExport { address: u64 }
    /// Like `SlabMap`, but for memory that another process of the lease exported. Replies.
    0x801a SlabImport { device: u32, address: u64, size: u64, token: [u8; 16] }
    /// Sets whether `device` can access the session's memory on `peer`, another device. Sent only when no running work
    /// uses memory that becomes inaccessible.
    0x801d PeerAccess { device: u32, peer: u32, allowed: bool }
    /// Creates an array like `cuArray3DCreate`. The array's first address, which the client chose in a free part of the
    /// arena, is its id. Copies address the array's bytes with the steps of `driverapi::arrays`. Replies.
    0x801e ArrayCreate {
        context: u64, array: u64, width: u64, height: u64, depth: u64, format: u32, channels: u32, flags: u32
    }
    /// Destroys an array. Sent only when no work uses the array any more.
    0x801f ArrayDestroy { array: u64 }
    /// Creates a texture or surface. `resource` is a `CUDA_RESOURCE_DESC`, for an array with its id in the first word;
    /// `sampling` is the `CUDA_TEXTURE_DESC` of a texture. Replies `TextureMade`.
    0x8070 TextureCreate { context: u64, kind: u32, resource: [u64; 5], surface: bool, sampling: [u32; 14] }
    0x8071 TextureDestroy { texture: u64, surface: bool }
    /// Like `TextureCreate`, for an array that is read through a `CUDA_RESOURCE_VIEW_DESC`. `view` is that description
    /// without its reserved words. Replies `TextureMade`.
    0x8072 TextureView { context: u64, array: u64, sampling: [u32; 14], view: [u64; 8] }
    /// Sets a limit like `cuCtxSetLimit`. The driver's memory for the limit is charged to the grant. Replies.
    0x801c ContextLimit { context: u64, limit: u32, value: u64 }

    // ---- streams and events; the header names the stream
    0x8020 StreamCreate { stream: u64, context: u64, flags: u32, priority: i32 }
    0x8021 StreamDestroy { stream: u64 }
    /// Waits for all work of the header's stream, then replies. `launches` is the same as in `ContextSynchronize`.
    0x8022 StreamSynchronize { launches: u64 }
    0x8023 StreamQuery {}
    0x8024 StreamFence { token: u64 }
    0x8025 EventCreate { event: u64, context: u64, flags: u32 }
    0x8026 EventDestroy { event: u64 }
    /// Records an event. The client counts an event's records as generations; `EventDone` contains the generation.
    0x8027 EventRecord { event: u64, generation: u64, flags: u32 }
    0x8028 EventSynchronize { event: u64, generation: u64 }
    /// Queries a record of an event. Replies 0 or 600. After 600 the worker pushes `EventDone` when the record
    /// completes, and from now on also for every later record of this event.
    0x8029 EventQuery { event: u64, generation: u64 }
    0x802a StreamWaitEvent { event: u64, generation: u64, flags: u32 }
    /// Runs a host function in the client. The worker pushes `Callback` when the stream reaches this command. The
    /// stream continues at `CallbackDone`.
    0x802b HostFunction { token: u64 }
    0x802c CallbackDone { token: u64 }
    /// Blocks the stream until `GateOpen`, which may arrive before the stream reaches this command.
    0x802d Gate { token: u64 }
    0x802e GateOpen { token: u64 }

    // ---- events that processes of a lease share; each command replies
    /// Allows other processes of the lease to import an event. Replies `Exported`.
    0x8050 EventExport { event: u64 }
    /// Creates an event from the one that another process exported.
    0x8051 EventImport { event: u64, token: [u8; 16] }
    /// Announces a record of a shared event, and is sent before the record itself. From now on, waits for the event in
    /// any process are for this record.
    0x8052 SharedEventRecord { event: u64, generation: u64 }
    /// Connects a gate to a shared event. Replies code 0 if the latest record of any process is complete. Otherwise
    /// replies 600, and `gate` opens when the record completes.
    0x8053 SharedEventGate { event: u64, gate: u64 }
    /// Waits for the latest record of any process, then replies.
    0x8054 SharedEventSynchronize { event: u64 }
    /// Queries the latest record of any process. Replies 0 or 600.
    0x8055 SharedEventQuery { event: u64 }

    // ---- code
    /// A piece of an image. The worker stores the complete image under its SHA-256.
    0x8030 ImageChunk tail { hash: [u8; 32], offset: u64, total: u64 }
    /// Loads a module. Replies `ModuleLoaded`, or code `NEED_IMAGE` if the worker does not have the image. With `eager`
    /// kernels are loaded at once, not at `KernelDescribe`. `bytes` is the module's device memory, which is charged to
    /// the grant.
    0x8031 ModuleLoad { module: u64, context: u64, hash: [u8; 32], options: Vec<(u32, u64)>, eager: bool, bytes: u64 }
    /// Unloads a module. The worker pushes `Fenced` afterwards; the module's memory is then free again.
    0x8032 ModuleUnload { module: u64, token: u64 }
    /// Looks up a variable of a module by its name. Replies `Symbol`.
    0x8033 ModuleGlobal { module: u64, name: String }
    /// Launches a kernel. Tail: the packed parameter buffer.
    0x8034 Launch tail {
        module: u64, kernel: u32, shape: LaunchShape,
    }
    /// Loads a kernel of a module, without waiting for earlier commands. Sent before the first command that uses the
    /// kernel. Replies `KernelInfo`.
    0x803b KernelDescribe { module: u64, kernel: u32 }
    /// Creates an executable graph. `KernelDescribe` was sent for all its kernels. Replies.
    0x803c GraphBuild { graph: u64, context: u64, flags: u64, nodes: Vec<GraphNode> }
    /// A node of `GraphBuild`, never sent as a command. `handle` is the client's number of the condition. The worker
    /// replaces it by the driver's number in the parameters of the graph's kernels.
    0x803f GraphCondition { handle: u64, kind: u32, assigns: bool, default: u32, bodies: Vec<Vec<GraphNode>> }
    /// Launches a graph on the header's stream. It counts as one launch.
    0x803d GraphLaunch { graph: u64 }
    0x803e GraphDestroy { graph: u64 }
    /// Links images to one. Replies `Linked`, or code `NEED_IMAGE`.
    0x8035 Link { context: u64, options: Vec<(u32, u64)>, inputs: Vec<LinkInput> }

    // ---- tensor maps; each replies `TensorMap`
    /// Encodes a tensor map like `cuTensorMapEncodeTiled`. `box_sizes` has an entry for each dimension.
    0x8036 TensorMapTiled { context: u64, tensor: Tensor, box_sizes: Vec<u32> }
    /// Encodes a tensor map like `cuTensorMapEncodeIm2col`. `lower` and `upper` have an entry for each dimension except
    /// the first and the last.
    0x8037 TensorMapIm2col { context: u64, tensor: Tensor, lower: Vec<i32>, upper: Vec<i32>, channels: u32, pixels: u32 }
    0x8038 TensorMapIm2colWide {
        context: u64, tensor: Tensor, lower: i32, upper: i32, channels: u32, pixels: u32, mode: u32,
    }
    0x8039 TensorMapReplaceAddress { context: u64, map: [u64; 16], address: u64 }
    /// Sets the allocation class. Only this command uses `class`.
    0x803a TensorMapSetClass { context: u64, map: [u64; 16], class: u32 }

    // ---- copies; the header names the stream
    /// Copies bytes to the device. Tail: a piece of the packed box, which starts at `offset` bytes.
    0x8040 CopyToDevice tail { context: u64, address: u64, extent: Extent, offset: u64 }
    /// Like `CopyToDevice`, but the worker requests the bytes (`NeedBytes`) when the stream reaches the command.
    0x8041 CopyToDeviceLate { context: u64, address: u64, extent: Extent }
    0x8042 SupplyBytes tail { command: u64, offset: u64 }
    /// Requests `len` bytes of the packed box from `offset` on. The worker pushes pieces (`HostBytes`), then replies.
    0x8043 CopyToHost { context: u64, address: u64, extent: Extent, offset: u64, len: u64 }
    0x8044 CopyOnDevice { context: u64, to: u64, to_pitch: u64, to_slice: u64, from: u64, extent: Extent }
    /// Cancels a `CopyToDeviceLate`, because its bytes are not available. Its stream continues.
    0x8045 SupplyCancel { command: u64 }
    /// Like `CopyToDeviceLate`, for bytes at address `from` in the client. A worker that shares this memory reads it
    /// and replies; any other worker requests the bytes.
    0x8046 CopyToDeviceShared { context: u64, address: u64, extent: Extent, from: u64 }
    /// Like `CopyToHost`, to address `to` in the client. A worker that shares this memory writes to it; any other
    /// worker sends the bytes.
    0x8047 CopyToHostShared { context: u64, address: u64, extent: Extent, offset: u64, len: u64, to: u64 }
    /// Copies `len` bytes, at most `BULK_CHUNK`, that arrive on this stripe and count for the send window. Replies when
    /// all bytes have arrived. If the stripe ends early, the worker requests the bytes.
    0x8048 CopyToDeviceStriped { context: u64, address: u64, len: u64, stripe: u64 }
    /// Requests `len` bytes, at most `BULK_CHUNK`, on this stripe. Replies when the client has received them
    /// (`Landed`). If the stripe ends early, the worker sends the bytes like those of `CopyToHost`.
    0x8049 CopyToHostStriped { context: u64, address: u64, len: u64, stripe: u64 }
    /// Acknowledges the bytes of this `CopyToHostStriped`.
    0x804a Landed { command: u64 }

    // ---- mirrors: device memory of which the client has a copy; the header names the stream that carries changes
    /// Starts to report the device's writes to this memory (`MirrorsTold`), in steps of `MIRROR_WORD` bytes. The client
    /// has already sent its bytes on the same stream. Replies when the worker has read the memory.
    0x8080 MirrorAdd { mirror: u64, context: u64, address: u64, size: u64 }
    /// Writes the client's changes to mirrors: at most `MIRROR_RUNS` runs and `BULK_CHUNK` bytes, which count for the
    /// send window.
    0x8081 MirrorChanges tail { parts: Vec<MirrorPart> }
    /// Ends a mirror. Its memory may be unmapped from now on.
    0x8082 MirrorEnd { mirror: u64 }

    // ---- in both directions, outside of the order of commands and answers
    /// Acknowledges received bytes by the header's `ack`. The message has no other content.
    0xc00f Acknowledge {}
    /// Checks the connection after some time without a received frame. The other end answers `Acknowledge`.
    0xc00e Probe {}

    // ---- worker to client
    /// The answer to the command `seq`. `code` is a `CUresult`, or one of ours. Tail: the fields of the answer, if any.
    0xc000 Reply tail { code: u32 }
    /// A piece of the bytes for the `CopyToHost` command `seq`. Tail: the bytes from `offset` in the requested range
    /// on.
    0xc001 HostBytes tail { offset: u64 }
    0xc002 NeedBytes { offset: u64, len: u64 }
    /// Reports that the record of an event is complete, or has failed with `code`.
    0xc003 EventDone { event: u64, generation: u64, code: u32 }
    0xc004 Fenced { token: u64 }
    0xc005 Callback { token: u64 }
    /// Output for the user. Tail: the output of kernels, or with `stderr` the driver's messages about them.
    0xc006 Text tail { stderr: bool }
    /// Reports the number of bytes of `CopyToDevice` that the worker has released. The client keeps at most
    /// `SEND_WINDOW` bytes outstanding.
    0xc007 Consumed { bytes: u64 }
    /// Ends the session. `reason` is a sentence for people. Every later call returns `code`.
    0xc008 Ending { code: u32, reason: String }
    /// Reports that the share is suspended, with the reason. No work runs until the worker pushes a `Held` with an
    /// empty reason.
    0xc009 Held { reason: String }
    /// A line for the user, which would otherwise only be in the appliance's log.
    0xc00a Notice { line: String }
    /// The device's writes to mirrors of a context. `applied` is the last executed `MirrorChanges` of the context;
    /// words of later changes keep the client's values. The worker pushes this before every answer that implies that
    /// the device has finished these writes.
    0xc00b MirrorsTold tail { context: u64, applied: u64, parts: Vec<MirrorPart> }
}

record! {
    /// The answer to `Open` and `Rebase`: the reserved arena, the unit in which the worker maps memory, and the number
    /// of image bytes that the worker keeps.
    struct Opened { arena_base: u64, arena_size: u64, granularity: u64, image_bytes: u64 }
    struct Granted { size: u64 }
    /// The name of a slab or event for the other processes of the lease. It is valid as long as the exporter keeps the
    /// object.
    struct Exported { token: [u8; 16] }
    /// The driver's number of a texture or surface. Kernels get it as a parameter.
    struct TextureMade { texture: u64 }
    /// `limit` is the lease's share of the device. `free` is the part that no process of the lease has as a grant.
    struct MemoryState { limit: u64, free: u64 }
    /// The answer to `ModuleLoad`: the names of the kernels. With an error code only `log` is filled.
    struct ModuleLoaded { kernels: Vec<String>, log: String }
    /// A variable of a module. `managed` is whether the program uses the variable at the same address.
    struct Symbol { address: u64, size: u64, managed: bool }
    /// A `CUtensorMap` that the driver encoded, and its current allocation class.
    struct TensorMap { words: [u64; 16], class: u32 }
    /// The result of a link. The linked image is the tail after these fields.
    struct Linked { info_log: String, error_log: String }
}

impl Extent {
    /// Describes `len` contiguous bytes.
    pub fn linear(len: u64) -> Extent {
        Extent { width: len, height: 1, depth: 1, pitch: len, slice: len }
    }
}

impl KernelInfo {
    /// Returns the size of the packed parameter buffer in bytes.
    pub fn parameter_bytes(&self) -> usize {
        self.params.iter().map(|p| p.offset as usize + p.size as usize).max().unwrap_or(0)
    }
}

/// The first version of the wire in which the reply to `EventQuery`, and `EventDone`, report the same as the reply to a
/// synchronising command: all earlier output, and the late error.
pub const EVENTS_TELL: u32 = 11;

/// The granularity of a mirror's changes in bytes.
pub const MIRROR_WORD: usize = 4;

/// The maximum number of runs in a `MirrorChanges`. Each run is a separate copy, and a driver's stream accepts about
/// 1,024 before it blocks.
pub const MIRROR_RUNS: usize = 96;

/// A sentinel for `launches`: the sender does not count launches.
pub const UNCOUNTED: u64 = u64::MAX;

/// The code of a reply that requests the image: the client sends it (`ImageChunk`) and repeats the command. No
/// `CUresult` has this value.
pub const NEED_IMAGE: u32 = 0x1_0000;

/// The maximum number of `CopyToDevice` bytes that are in flight or queued in the worker.
pub const SEND_WINDOW: u64 = 256 << 20;
