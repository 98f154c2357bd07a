//! Executes each command, and reports its error.

use crate::driver::{Code, Result};
use crate::order::command::{Command, Frame};
use crate::order::completions::Then;
use crate::session::calls::replies;
use crate::session::commands::{Outcome, Session};
use driverapi::errors::*;
use protocol::{ContextDestroy, Fenced, Message, ModuleUnload};

impl Session {
    /// Executes a command by calling the module that handles it. Reports an error in the way that the kind of the
    /// command requires.
    pub fn execute(&mut self, frame: &mut Frame) -> Outcome {
        match self.try_execute(frame) {
            Ok(outcome) => outcome,
            Err(code) => {
                self.fail(frame, code);
                Outcome::Done
            }
        }
    }

    /// Reports the error of a command to the client.
    fn fail(&mut self, frame: &Frame, code: Code) {
        if is_sticky(code) {
            self.note_sticky(code);
        }
        if frame.is_launch() {
            self.launch_refused();
        }
        match &frame.command {
            Command::StreamSynchronize(_)
            | Command::ContextSynchronize(_)
            | Command::EventSynchronize(_)
            | Command::SharedEventSynchronize(_)
            | Command::CopyToHost(_)
            | Command::CopyToHostShared(_)
            | Command::CopyToHostStriped(_) => self.synchronised(frame.seq, code),
            Command::EventQuery(c) if frame.progress == 1 => self.event_done(c.event, c.generation, code),
            Command::EventRecord(c) => {
                self.late(code);
                if self.events.get(c.event).is_ok_and(|event| event.followed) {
                    self.event_done(c.event, c.generation, code);
                }
            }
            Command::Launch(c) => {
                self.late(code);
                self.launch_not_recorded(&c.shape.attributes, code);
            }
            Command::StreamQuery(_)
            | Command::EventQuery(_)
            | Command::GraphBuild(_)
            | Command::Rebase(_)
            | Command::ArenaAt(_)
            | Command::Grant(_)
            | Command::MemoryQuery(_)
            | Command::EventExport(_)
            | Command::EventImport(_)
            | Command::SharedEventRecord(_)
            | Command::SharedEventGate(_)
            | Command::SharedEventQuery(_)
            | Command::MirrorAdd(_)
            | Command::SlabExport(_)
            | Command::SlabImport(_)
            | Command::ContextLimit(_)
            | Command::ArrayCreate(_)
            | Command::TextureCreate(_)
            | Command::TextureView(_)
            | Command::ModuleGlobal(_)
            | Command::KernelDescribe(_)
            | Command::TensorMapTiled(_)
            | Command::TensorMapIm2col(_)
            | Command::TensorMapIm2colWide(_)
            | Command::TensorMapReplaceAddress(_)
            | Command::TensorMapSetClass(_) => self.reply(frame.seq, code),
            Command::ModuleLoad(_) | Command::Link(_) => self.reply_logged(frame.seq, code, String::new()),
            // Without this message, the client would keep the memory until the session ends.
            Command::StreamFence(c) => self.out.push(Fenced::CODE, 0, &Fenced { token: c.token }, &[]),
            Command::ContextFence(c) => self.out.push(Fenced::CODE, 0, &Fenced { token: c.token }, &[]),
            Command::ContextDestroy(ContextDestroy { token, .. })
            | Command::ModuleUnload(ModuleUnload { token, .. }) => {
                self.out.push(Fenced::CODE, 0, &Fenced { token: *token }, &[]);
                self.late(code);
            }
            Command::CopyToDevice(_) | Command::MirrorChanges(_) => {
                self.consumed(frame.tail().len() as u64);
                self.late(code);
            }
            // The client keeps the source bytes until it receives this message.
            Command::CopyToDeviceLate(_) | Command::CopyToDeviceShared(_) => {
                self.reply(frame.seq, code);
                self.late(code);
            }
            Command::CopyToDeviceStriped(c) => self.fail_striped(frame.seq, c.len, code),
            Command::Generated(number) if replies(*number) => self.reply(frame.seq, code),
            _ => self.late(code),
        }
    }

    fn try_execute(&mut self, frame: &mut Frame) -> Result<Outcome> {
        let seq = frame.seq;
        match &frame.command {
            Command::Open(c) => self.open(seq, c),
            Command::Rebase(c) => self.rebase(seq, c.avoid)?,
            Command::Close(_) => self.end(0, "closed by the client"),
            Command::ArenaAt(c) => self.arena_at(seq, c)?,
            Command::AdoptKept(_) => self.adopt_kept(frame.tail()),
            Command::Skipped(_) => {}

            Command::ContextCreate(c) => return self.context_create(seq, c),
            Command::ContextDestroy(c) => return self.context_destroy(seq, c),
            Command::ContextSynchronize(c) => self.context_join(c.context, seq, Then::Reply)?,
            Command::ContextFence(c) => {
                self.context_join(c.context, seq, Then::Fenced { token: c.token })?;
            }
            Command::SlabMap(c) => return self.slab_map(seq, c),
            Command::SlabUnmap(c) => self.slab_unmap(c.address, c.size)?,
            Command::SlabMove(c) => return self.slab_move(seq, c),
            Command::PieceBounds(c) => self.piece_bounds(c)?,
            Command::SlabExport(c) => self.slab_export(seq, c.address)?,
            Command::SlabImport(c) => self.slab_import(seq, c)?,
            Command::PeerAccess(c) => self.peer_access(c)?,
            Command::ArrayCreate(c) => self.array_create(seq, c)?,
            Command::ArrayDestroy(c) => self.array_destroy(c.array)?,
            Command::TextureCreate(c) => self.texture_create(seq, c, None)?,
            Command::TextureView(c) => self.texture_view(seq, c)?,
            Command::TextureDestroy(c) => self.texture_destroy(c.texture, c.surface)?,
            Command::Grant(c) => self.grant(seq, c)?,
            Command::GrantReturn(c) => self.grant_return(c.device, c.size)?,
            Command::MemoryQuery(c) => self.memory_query(seq, c.device)?,
            Command::ContextLimit(c) => self.context_limit(seq, c)?,

            Command::StreamCreate(c) => self.stream_create(c),
            Command::StreamDestroy(c) => self.stream_destroy(c.stream)?,
            Command::StreamSynchronize(_) => return self.stream_synchronize(seq, frame.stream_id),
            Command::StreamQuery(_) => self.stream_query(seq, frame.stream_id)?,
            Command::StreamFence(c) => return self.stream_fence(seq, frame.stream_id, c.token),
            Command::EventCreate(c) => self.event_create(c)?,
            Command::EventDestroy(c) => self.event_destroy(c.event)?,
            Command::EventRecord(c) => return self.event_record(seq, frame.stream_id, c),
            Command::EventSynchronize(c) => self.event_synchronize(seq, c.event, c.generation)?,
            Command::EventQuery(c) => self.event_query(seq, frame.progress == 1, c.event, c.generation)?,
            Command::StreamWaitEvent(c) => return self.stream_wait_event(frame.stream_id, c),
            Command::HostFunction(c) => return self.host_function(seq, frame.stream_id, c.token),
            Command::CallbackDone(c) => self.callback_done(c.token)?,
            Command::Gate(c) => return self.gate(seq, frame.stream_id, c.token),
            Command::GateOpen(c) => self.gate_open(c.token),

            Command::EventExport(c) => self.event_export(seq, c.event)?,
            Command::EventImport(c) => self.event_import(seq, c)?,
            Command::SharedEventRecord(c) => self.shared_event_record(seq, c.event, c.generation)?,
            Command::SharedEventGate(c) => self.shared_event_gate(seq, c.event, c.gate)?,
            Command::SharedEventSynchronize(c) => self.shared_event_synchronize(seq, c.event)?,
            Command::SharedEventQuery(c) => self.shared_event_query(seq, c.event)?,

            Command::ImageChunk(c) => self.image_chunk(c, frame.tail()),
            Command::ModuleLoad(c) => self.module_load(seq, c)?,
            Command::KernelDescribe(c) => self.kernel_describe(seq, c)?,
            Command::ModuleUnload(c) => self.module_unload(seq, c)?,
            Command::ModuleGlobal(c) => self.module_global(seq, c)?,
            Command::Launch(c) => return self.launch(seq, frame.stream_id, c, frame.settings.as_ref(), frame.tail()),
            Command::Link(c) => self.link(seq, c)?,
            Command::GraphBuild(c) => self.graph_build(seq, c)?,
            Command::GraphLaunch(c) => return self.graph_launch(frame.stream_id, c),
            Command::GraphDestroy(c) => self.graph_destroy(seq, c.graph)?,
            Command::TensorMapTiled(c) => self.tensor_map(seq, c.context, |driver| driver.encode_tiled(c))?,
            Command::TensorMapIm2col(c) => self.tensor_map(seq, c.context, |driver| driver.encode_im2col(c))?,
            Command::TensorMapIm2colWide(c) => {
                self.tensor_map(seq, c.context, |driver| driver.encode_im2col_wide(c))?
            }
            Command::TensorMapReplaceAddress(c) => {
                self.tensor_map(seq, c.context, |driver| driver.replace_address(c))?
            }
            Command::TensorMapSetClass(c) => self.tensor_map(seq, c.context, |driver| driver.set_class(c))?,

            Command::CopyToDevice(_) => return self.copy_to_device(frame),
            Command::CopyToDeviceLate(c) => return self.copy_to_device_late(seq, frame.stream_id, c),
            Command::SupplyBytes(c) => self.supply_bytes(c, frame.tail())?,
            Command::SupplyCancel(c) => self.supply_cancel(c.command)?,
            Command::CopyToHost(_) => return self.copy_to_host(frame),
            Command::CopyToDeviceShared(_) => return self.copy_to_device_shared(frame),
            Command::CopyToHostShared(_) => return self.copy_to_host_shared(frame),
            Command::CopyToDeviceStriped(_) => return self.copy_to_device_striped(frame),
            Command::CopyToHostStriped(_) => return self.copy_to_host_striped(frame),
            Command::Landed(c) => self.landed(c.command),
            Command::MirrorAdd(c) => self.mirror_add(seq, frame.stream_id, c)?,
            Command::MirrorChanges(_) => return self.mirror_changes(frame),
            Command::MirrorEnd(c) => self.mirror_end(c)?,
            Command::CopyOnDevice(c) => return self.copy_on_device(frame.stream_id, c),
            Command::Generated(number) => return self.generated(seq, frame.stream_id, *number, frame.payload.bytes()),
        }
        Ok(Outcome::Done)
    }
}
