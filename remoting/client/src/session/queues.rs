//! Queues of launches. A stream takes so many commands that are not complete, and a session so many together; who launches
//! more waits until some are, as a driver has him wait whose queue is full. Other threads go on, and may release the stream.

use super::{Session, Slot, lock};
use crate::Code;
use protocol::StreamFence;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A fence follows so many commands: when it is passed they are complete.
const BATCH: u32 = 1 << 10;
/// Commands of a stream, and of all streams, that are not known to be complete.
const MOST: u32 = 24 << 10;
const MOST_TOGETHER: u32 = 48 << 10;
/// A long one counts as several, for its worker keeps its bytes; at most so many, for a copy is one all the same.
const COUNTED_BYTES: usize = 512;
const MOST_COUNTED: usize = 16;

/// As how many commands one counts that has so many bytes.
fn weight(bytes: usize) -> u32 {
    bytes.div_ceil(COUNTED_BYTES).clamp(1, MOST_COUNTED) as u32
}

/// Commands of one stream.
#[derive(Default)]
struct Queue {
    /// Behind the last fence.
    open: u32,
    /// How many commands each fence follows, since the one before.
    fenced: VecDeque<(Arc<Slot>, u32)>,
    waiting: u32,
}

impl Queue {
    /// Takes out what is complete; returns how many that were.
    fn collect(&mut self) -> u32 {
        let before = self.waiting;
        while self.fenced.front().is_some_and(|(fence, _)| fence.is_finished()) {
            self.waiting -= self.fenced.pop_front().map_or(0, |(_, count)| count);
        }
        before - self.waiting
    }
}

#[derive(Default)]
pub struct Queues {
    streams: HashMap<u64, Queue>,
    together: u32,
}

impl Queues {
    /// Returns whether a fence is due.
    fn note(&mut self, stream: u64, weight: u32) -> bool {
        let queue = self.streams.entry(stream).or_default();
        queue.open += weight;
        queue.waiting += weight;
        self.together += weight;
        queue.open >= BATCH
    }

    /// May the stream be given more?
    fn has_room(&mut self, stream: u64) -> bool {
        let Some(queue) = self.streams.get_mut(&stream) else { return true };
        if queue.waiting < MOST && self.together < MOST_TOGETHER {
            return true;
        }
        let done = queue.collect();
        self.together -= done;
        if self.together >= MOST_TOGETHER {
            // Others may have completed, of which nobody has asked since.
            let done: u32 = self.streams.values_mut().map(Queue::collect).sum();
            self.together -= done;
            self.streams.retain(|_, queue| queue.waiting > 0);
        }
        let waiting = self.streams.get(&stream).map_or(0, |queue| queue.waiting);
        // A stream that has nothing to do is always given something: it may be what the others wait for.
        waiting == 0 || waiting < MOST && self.together < MOST_TOGETHER
    }
}

impl Session {
    /// A stream has been given a command of so many bytes.
    pub(super) fn note_queued(&self, stream: u64, bytes: usize) -> Result<(), Code> {
        let full = lock(&self.queues).note(stream, weight(bytes));
        if full { self.fence_queue(stream) } else { Ok(()) }
    }

    fn fence_queue(&self, stream: u64) -> Result<(), Code> {
        let (token, slot) = self.new_fence();
        {
            let mut queues = lock(&self.queues);
            let Some(queue) = queues.streams.get_mut(&stream) else { return Ok(()) };
            let count = std::mem::take(&mut queue.open);
            queue.fenced.push_back((slot, count));
        }
        self.post(stream, &StreamFence { token }).map(drop)
    }

    /// Waits until a stream may be given more.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn wait_for_queue(&self, stream: u64) -> Result<(), Code> {
        loop {
            let first = {
                let mut queues = lock(&self.queues);
                if queues.has_room(stream) {
                    return Ok(());
                }
                queues.streams.get(&stream).and_then(|queue| queue.fenced.front().map(|(slot, _)| Arc::clone(slot)))
            };
            match first {
                Some(fence) => {
                    self.flush()?;
                    self.wait(&fence)?;
                }
                None => self.fence_queue(stream)?,
            }
        }
    }

    /// The stream is gone: nobody waits for its queue.
    pub fn forget_queue(&self, stream: u64) {
        let mut queues = lock(&self.queues);
        if let Some(queue) = queues.streams.remove(&stream) {
            queues.together -= queue.waiting;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reply;
    use super::*;

    /// Gives a stream as much as it takes; how much that was.
    fn fill(queues: &mut Queues, stream: u64) -> u32 {
        let mut given = 0;
        while given <= MOST_TOGETHER && queues.has_room(stream) {
            given += 1;
            if queues.note(stream, 1) {
                let queue = queues.streams.get_mut(&stream).expect("it was given something");
                let count = std::mem::take(&mut queue.open);
                queue.fenced.push_back((Slot::new(), count));
            }
        }
        given
    }

    fn complete(queues: &Queues, stream: u64, fences: usize) {
        for (slot, _) in queues.streams[&stream].fenced.iter().take(fences) {
            slot.finish(Reply { code: 0, tail: Vec::new() });
        }
    }

    #[test]
    fn a_stream_takes_so_much_until_some_is_complete() {
        let mut queues = Queues::default();
        assert_eq!(fill(&mut queues, 1), MOST);
        complete(&queues, 1, 2);
        assert_eq!(fill(&mut queues, 1), 2 * BATCH);
    }

    #[test]
    fn streams_together_take_so_much_and_each_idle_one_a_command() {
        let mut queues = Queues::default();
        assert_eq!((1..4).map(|stream| fill(&mut queues, stream)).collect::<Vec<_>>(), [MOST, MOST, 1]);
        assert_eq!(fill(&mut queues, 4), 1);
        complete(&queues, 1, usize::MAX);
        assert_eq!(fill(&mut queues, 3), MOST - 2, "of the first stream all is complete");
    }
}
