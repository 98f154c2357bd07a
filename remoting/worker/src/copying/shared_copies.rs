//! Copies from and to memory that the client shares with the worker. Their bytes do not go over the wire.

use crate::copying::copies::Target;
use crate::copying::layout::Piece;
use crate::driver::{Handle, Result};
use crate::memory::client_memory::Shared;
use crate::order::command::{Command, Frame};
use crate::order::completions::Action;
use crate::session::commands::{Outcome, Session};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use protocol::{CopyToDeviceLate, CopyToDeviceShared, CopyToHost, CopyToHostShared};
use std::rc::Rc;

impl Session {
    pub fn copy_to_device_shared(&mut self, frame: &mut Frame) -> Result<Outcome> {
        let Command::CopyToDeviceShared(c) = &frame.command else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let CopyToDeviceShared { context, address, ref extent, from } = *c;
        let layout = self.target(address, extent)?;
        let Some((shared, host)) = self.client_memory.find(from, layout.bytes()) else {
            let late = CopyToDeviceLate { context, address, extent: extent.clone() };
            let outcome = self.copy_to_device_late(frame.seq, frame.stream_id, &late);
            frame.command = Command::CopyToDeviceLate(late);
            return outcome;
        };
        self.same_context(frame.stream_id, context)?;
        let Some(stream) = self.begin(frame.stream_id)? else { return Ok(Outcome::Blocked) };
        let len = layout.bytes();
        let target = Target { address, layout, stream };
        self.copy_shared(frame, shared, &target, 0, len, |session, piece| {
            let from = Handle(host.0 + piece.host as usize);
            target.to_device(&session.driver, &session.memory, piece, from)
        })
    }

    pub fn copy_to_host_shared(&mut self, frame: &mut Frame) -> Result<Outcome> {
        let Command::CopyToHostShared(c) = &frame.command else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let CopyToHostShared { context, address, ref extent, offset, len, to } = *c;
        let Some((shared, host)) = self.client_memory.find(to, len) else {
            let extent = extent.clone();
            frame.command = Command::CopyToHost(CopyToHost { context, address, extent, offset, len });
            return self.copy_to_host(frame);
        };
        let layout = self.target(address, extent)?;
        self.same_context(frame.stream_id, context)?;
        let Some(stream) = self.begin(frame.stream_id)? else { return Ok(Outcome::Blocked) };
        let target = Target { address, layout, stream };
        self.copy_shared(frame, shared, &target, offset, len, |session, piece| {
            let to = Handle(host.0 + piece.host as usize);
            target.to_host(&session.driver, &session.memory, piece, to)
        })
    }

    /// Gives each piece of the copy to the driver. The reply is sent when all pieces are complete.
    fn copy_shared(
        &mut self,
        frame: &Frame,
        shared: Rc<Shared>,
        target: &Target,
        offset: u64,
        len: u64,
        copy: impl Fn(&Session, &Piece) -> Result<()>,
    ) -> Result<Outcome> {
        let mut failed = 0;
        for piece in target.layout.pieces(offset, len)? {
            if let Err(code) = copy(self, &piece) {
                failed = code;
                break;
            }
            self.issued(frame.stream_id);
        }
        // After an error, the reply waits for the pieces that the driver has accepted.
        if let Err(code) = self.entry(frame.stream_id, frame.seq, Action::Shared { code: failed, _memory: shared }) {
            self.late(code);
        }
        Ok(Outcome::Done)
    }
}
