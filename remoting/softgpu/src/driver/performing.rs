//! Execution of work in its stream, or capture of the work as a graph node.

use super::state::Driver;
use crate::ffi::R;
use crate::streams::stream::Stream;
use crate::work::Work;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The stream's thread does the work.
    Queued,
    /// The calling thread does the work if the stream is idle. Use this for short work that never waits.
    AtOnce,
}

impl Driver {
    /// Does work in stream order and returns false, or adds it to the graph that the stream captures and returns true.
    pub fn perform(&self, work: Work, how: How, stream: &Stream) -> R<bool> {
        let captured = self.capture(stream, || work.clone())?;
        if !captured {
            self.start(work, how, stream)?;
        }
        Ok(captured)
    }

    /// Does work in stream order. `how` says whether the calling thread may do it.
    pub fn start(&self, work: Work, how: How, stream: &Stream) -> R {
        match (work, how) {
            (Work::Record(event), _) => event.record(stream, self.start)?,
            (Work::Wait(event), _) => event.hold(stream)?,
            (work, How::Queued) => drop(stream.enqueue(move || work.run())?),
            (work, How::AtOnce) => drop(stream.start(move || work.run())?),
        }
        Ok(())
    }

    /// Adds work to the graph that the stream captures and returns true. Returns false if the stream is not being
    /// captured.
    pub fn capture(&self, stream: &Stream, work: impl FnOnce() -> Work) -> R<bool> {
        self.graphs.capture(stream.for_capture(), || Ok(work()))
    }

    /// Checks that a call may wait for a stream's work. The call fails if the stream is being captured, or if another
    /// capture forbids waiting.
    pub fn check_waiting_call(&self, stream: &Stream) -> R {
        self.graphs.ask(|captures| captures.check_stream(stream.for_capture()))?;
        self.graphs.check_call()
    }
}
