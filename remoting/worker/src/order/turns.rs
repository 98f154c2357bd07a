//! A session's use of turns. Launches ask this module whether they may run, and completions are reported to it. Without
//! `Session::turns`, every launch may run.

use crate::driver::{Handle, Result};
use crate::order::completions::Action;
use crate::session::commands::Session;
use std::io;
use std::time::Instant;

impl Session {
    /// Whether a kernel may be launched in this stream now. If not, the launch is retried later.
    pub fn may_launch(&mut self, stream_id: u64) -> Result<bool> {
        if self.turns.is_none() {
            return Ok(true);
        }
        let device = self.device_of(stream_id)?;
        Ok(self.turns.as_mut().is_none_or(|turns| turns.places.may_launch(device, stream_id, Instant::now())))
    }

    /// Records that a launch waits for room in its stream.
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

    /// Records the launch of a function or of an executable graph.
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

    /// Records that all launches of a batch are complete.
    pub fn batch_complete(&mut self, number: u64) {
        if let Some(turns) = &mut self.turns {
            turns.places.complete(number, Instant::now());
        }
    }

    /// Requests turns and ends them, and retries waiting launches if some of them may run now. Returns whether any may
    /// run. `resting` means that nothing is launched until something else happens.
    ///
    /// # Errors
    /// Fails if the gateway has closed the socket, or does not read.
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

    /// Removes the batches of a stream that was destroyed.
    pub fn forget_batches(&mut self, stream_id: u64) {
        if let Some(turns) = &mut self.turns {
            turns.places.forget(stream_id, Instant::now());
        }
    }

    /// Closes the stream's batch, and registers an action for its completion.
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
