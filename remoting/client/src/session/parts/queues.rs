//! The queues of commands that are not complete. A stream may have a limited number of such commands, and so may all
//! streams together. A thread that launches more waits until some are complete, as with a driver whose queue is full.
//! Other threads continue, and may unblock the stream.

use super::wait::Slot;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The number of commands of a stream after which a fence follows. When the worker answers the fence, they are
/// complete.
const BATCH: u32 = 1 << 10;
/// The maximum number of commands of one stream, and of all streams, that are not known to be complete.
pub const MOST: u32 = 24 << 10;
const MOST_TOGETHER: u32 = 48 << 10;
/// The number of bytes for which a long command counts as one more command, because the worker stores them. A command
/// counts at most `MOST_COUNTED` times, because a copy is still one command.
const COUNTED_BYTES: usize = 512;
const MOST_COUNTED: usize = 16;

/// Returns how many commands a command of `bytes` bytes counts as.
fn weight(bytes: usize) -> u32 {
    bytes.div_ceil(COUNTED_BYTES).clamp(1, MOST_COUNTED) as u32
}

/// The commands of one stream that are not known to be complete.
#[derive(Default)]
struct Queue {
    /// The number of commands after the last fence.
    open: u32,
    /// Each fence, and the number of commands between the previous fence and this one.
    fenced: VecDeque<(Arc<Slot>, u32)>,
    waiting: u32,
}

impl Queue {
    /// Removes the commands that are complete, and returns their number.
    fn collect(&mut self) -> u32 {
        let before = self.waiting;
        while self.fenced.front().is_some_and(|(fence, _)| fence.is_finished()) {
            self.waiting -= self.fenced.pop_front().map_or(0, |(_, count)| count);
        }
        before - self.waiting
    }
}

/// The answer of [`Queues::room`]: whether a stream may get more work, and if not, how to wait.
pub enum Room {
    Enough,
    /// These streams have commands without a fence after them. Send a fence to each, then ask again.
    AfterFencing(Vec<u64>),
    After(Arc<Slot>),
}

#[derive(Default)]
pub struct Queues {
    streams: BTreeMap<u64, Queue>,
    together: u32,
}

impl Queues {
    /// Counts a command of `bytes` bytes that was sent to a stream. Returns whether a fence is due.
    pub fn note(&mut self, stream: u64, bytes: usize) -> bool {
        let (queue, weight) = (self.streams.entry(stream).or_default(), weight(bytes));
        queue.open += weight;
        queue.waiting += weight;
        self.together += weight;
        queue.open >= BATCH
    }

    pub fn together(&self) -> u32 {
        self.together
    }

    /// Records a fence after all commands that the stream has.
    pub fn fence(&mut self, stream: u64, fence: Arc<Slot>) {
        if let Some(queue) = self.streams.get_mut(&stream) {
            queue.fenced.push_back((fence, std::mem::take(&mut queue.open)));
            self.together -= queue.collect();
        }
    }

    /// Removes a destroyed stream.
    pub fn forget(&mut self, stream: u64) {
        if let Some(queue) = self.streams.remove(&stream) {
            self.together -= queue.waiting;
        }
    }

    /// Returns whether the stream may get more work, or how to wait for room.
    pub fn room(&mut self, stream: u64) -> Room {
        let Some(queue) = self.streams.get_mut(&stream) else { return Room::Enough };
        if queue.waiting < MOST && self.together < MOST_TOGETHER {
            return Room::Enough;
        }
        self.together -= queue.collect();
        if self.together >= MOST_TOGETHER {
            // Work of other streams may have completed since the last check.
            let done: u32 = self.streams.values_mut().map(Queue::collect).sum();
            self.together -= done;
            self.streams.retain(|_, queue| queue.waiting > 0);
        }
        let Some(queue) = self.streams.get(&stream) else { return Room::Enough };
        // A stream without waiting work always has room, because other streams may wait for it.
        if queue.waiting == 0 || queue.waiting < MOST && self.together < MOST_TOGETHER {
            return Room::Enough;
        }
        // If there are many streams, each may have a few commands that completed long ago.
        let counts = |id: u64| id == stream || self.together >= MOST_TOGETHER;
        let open: Vec<u64> =
            self.streams.iter().filter(|&(&id, queue)| queue.open > 0 && counts(id)).map(|(&id, _)| id).collect();
        match queue.fenced.front() {
            Some((fence, _)) if open.is_empty() || queue.waiting >= MOST => Room::After(Arc::clone(fence)),
            _ => Room::AfterFencing(open),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wait::Reply;
    use super::*;

    fn has_room(queues: &mut Queues, stream: u64) -> bool {
        matches!(queues.room(stream), Room::Enough)
    }

    /// Adds commands to a stream until it has no room. Returns their number.
    fn fill(queues: &mut Queues, stream: u64) -> u32 {
        let mut given = 0;
        while given <= MOST_TOGETHER && has_room(queues, stream) {
            given += 1;
            if queues.note(stream, 1) {
                queues.fence(stream, Slot::new());
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

    #[test]
    fn what_many_streams_have_completed_is_found_out_once() {
        let (mut queues, streams) = (Queues::default(), 64);
        for _ in 0..BATCH - 1 {
            assert!((0..streams).all(|stream| !queues.note(stream, 1)));
        }
        let Room::AfterFencing(open) = queues.room(1) else { panic!("all of it may be under way") };
        assert_eq!(open, (0..streams).collect::<Vec<_>>());
        open.into_iter().for_each(|stream| queues.fence(stream, Slot::new()));
        assert!(matches!(queues.room(1), Room::After(_)));
        (0..streams).for_each(|stream| complete(&queues, stream, 1));
        assert!(has_room(&mut queues, 1));
        assert_eq!(queues.together(), 0);
    }
}
