//! A session's turns: launches ask here whether they may run, and completions are reported here. Without
//! `Session::turns` every launch may run.

use crate::driver::{Handle, Result};
use crate::order::completions::Action;
use crate::session::commands::Session;
use std::io;
use std::time::Instant;

impl Session {
    /// Whether a kernel may be launched in this stream now. If not, the launch is tried again.
    pub fn may_launch(&mut self, stream_id: u64) -> Result<bool> {
        if self.turns.is_none() {
            return Ok(true);
        }
        let device = self.device_of(stream_id)?;
        Ok(self.turns.as_mut().is_none_or(|turns| turns.places.may_launch(device, stream_id, Instant::now())))
    }

    /// Notes that a launch waits for room in its stream.
    pub fn launch_waits(&mut self, stream_id: u64) -> Result<()> {
        if self.turns.is_none() {
            return Ok(());
        }
        let device = self.device_of(stream_id)?;
        if let Some(turns) = &mut self.turns {
            turns.places.want(device);
        }
        Ok(())
    }

    /// Notes that a function, or an executable graph, was launched.
    pub fn launched(&mut self, stream_id: u64, work: Handle) -> Result<()> {
        if self.turns.is_none() {
            return Ok(());
        }
        let device = self.device_of(stream_id)?;
        let Some(turns) = &mut self.turns else { return Ok(()) };
        if turns.places.launched(device, stream_id, work, Instant::now()) {
            self.close_batch(stream_id);
        }
        Ok(())
    }

    /// Notes that all launches of a batch are complete.
    pub fn batch_complete(&mut self, number: u64) {
        if let Some(turns) = &mut self.turns {
            turns.places.complete(number, Instant::now());
        }
    }

    /// Requests turns and ends them; retries waiting launches if some may go now. Returns whether any may. `resting`:
    /// nothing is launched before something happens.
    ///
    /// # Errors
    /// If the gateway has closed the socket, or does not read.
    pub fn take_turns(&mut self, resting: bool) -> io::Result<bool> {
        let holds = self.hold.stops();
        let Some(turns) = &mut self.turns else { return Ok(false) };
        let now = Instant::now();
        let moved = turns.hear()? || (!holds && turns.places.is_stuck(now));
        turns.places.look(now, holds);
        turns.speak()?;
        for stream in turns.places.open(resting) {
            self.close_batch(stream);
        }
        if moved {
            self.retry_blocked();
        }
        Ok(moved)
    }

    /// Forgets the batches of a stream that is gone.
    pub fn forget_batches(&mut self, stream_id: u64) {
        if let Some(turns) = &mut self.turns {
            turns.places.forget(stream_id, Instant::now());
        }
    }

    /// Closes the stream's batch, and has its completion reported.
    pub fn close_batch(&mut self, stream_id: u64) {
        let Some(number) = self.turns.as_mut().and_then(|turns| turns.places.close(stream_id)) else { return };
        if let Err(code) = self.entry_if_needed(stream_id, 0, Action::Batch { number }) {
            self.late(code);
        }
    }

    fn device_of(&self, stream_id: u64) -> Result<u32> {
        Ok(self.contexts.get(self.streams.get(stream_id)?.context)?.device)
    }
}
