//! The turn of a work: in its stream, or as a node of the graph that the stream captures.

use super::state::Driver;
use crate::ffi::R;
use crate::streams::stream::Stream;
use crate::work::Work;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Done by the stream's thread.
    Queued,
    /// Done by the caller if the stream is idle: short work that never waits.
    AtOnce,
}

impl Driver {
    /// Does work in a stream's turn, or adds it to the graph that the stream captures: then `true`.
    pub fn perform(&self, work: Work, how: How, stream: &Stream) -> R<bool> {
        let captured = self.capture(stream, || work.clone())?;
        if !captured {
            self.start(work, how, stream)?;
        }
        Ok(captured)
    }

    /// Does work in a stream's turn.
    pub fn start(&self, work: Work, how: How, stream: &Stream) -> R {
        match (work, how) {
            (Work::Record(event), _) => event.record(stream, self.start)?,
            (Work::Wait(event), _) => event.hold(stream)?,
            (work, How::Queued) => drop(stream.enqueue(move || work.run())?),
            (work, How::AtOnce) => drop(stream.start(move || work.run())?),
        }
        Ok(())
    }

    /// Adds work to the graph that the stream captures, if it does.
    pub fn capture(&self, stream: &Stream, work: impl FnOnce() -> Work) -> R<bool> {
        self.graphs.capture(stream.for_capture(), || Ok(work()))
    }

    /// Checks a call that waits for a stream's work: a stream that captures may not be waited for, nor may any while
    /// captures forbid it.
    pub fn check_waiting_call(&self, stream: &Stream) -> R {
        self.graphs.ask(|captures| captures.check_stream(stream.for_capture()))?;
        self.graphs.check_call()
    }
}
