//! A stream's first-in first-out queue. A separate thread runs the queue. It starts with the first work, and ends after
//! some time without work.
//!
//! A marker orders queues: it means that a queue has finished its n-th operation. An operation may only wait for
//! markers of operations that were submitted earlier, so no cycle of waits is possible.

use crate::ffi::R;
use crate::process::signals;
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The time after which a thread without work ends. The next operation starts a new thread. The thread of a destroyed
/// stream ends at once, because a program may create and destroy thousands of streams in this time.
const IDLE: Duration = Duration::from_secs(2);

type Work = Box<dyn FnOnce() + Send>;

struct Operation {
    after: Vec<Marker>,
    work: Work,
}

#[derive(Default)]
struct State {
    pending: VecDeque<Operation>,
    submitted: u64,
    completed: u64,
    busy: bool,
    has_thread: bool,
    /// Whether the queue's stream was destroyed.
    retired: bool,
    /// The number of threads that wait for a change. If it is 0, no notification is sent, which saves a system call.
    waiting: usize,
}

pub struct Queue {
    number: u64,
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
}

/// A point in a queue, which is reached when its operation has finished.
#[derive(Clone)]
pub struct Marker {
    queue: Arc<Queue>,
    ticket: u64,
}

impl Marker {
    /// Returns the number of the marker's queue.
    pub fn queue(&self) -> u64 {
        self.queue.number
    }

    pub fn is_reached(&self) -> bool {
        self.queue.lock().completed >= self.ticket
    }

    pub fn wait(&self) {
        let mut state = self.queue.lock();
        while state.completed < self.ticket {
            state = self.queue.wait(state);
        }
    }
}

impl Queue {
    pub fn new(limit: usize) -> Arc<Queue> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Queue { number, state: Mutex::default(), changed: Condvar::new(), limit })
    }

    /// Returns the queue's number, which is unique in the process.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }

    fn tell(&self, state: MutexGuard<'_, State>) {
        let anybody = state.waiting > 0;
        drop(state);
        if anybody {
            self.changed.notify_all();
        }
    }

    /// Returns a marker that is reached when all operations submitted so far have finished.
    pub fn end(self: &Arc<Self>) -> Marker {
        Marker { queue: Arc::clone(self), ticket: self.lock().submitted }
    }

    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.completed == state.submitted
    }

    /// Blocks while the queue is full.
    pub fn wait_for_room(&self) {
        let mut state = self.lock();
        while state.pending.len() >= self.limit {
            state = self.wait(state);
        }
    }

    /// Queues work that starts after all earlier operations and all markers in `after`. If the work needs a thread and
    /// none can be started, the call fails and queues nothing.
    pub fn submit(self: &Arc<Self>, after: Vec<Marker>, work: Work) -> R<Marker> {
        let mut state = self.lock();
        if !state.has_thread {
            let queue = Arc::clone(self);
            spawn_without_signals(move || queue.run()).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
            state.has_thread = true;
        }
        state.pending.push_back(Operation { after, work });
        state.submitted += 1;
        let ticket = state.submitted;
        self.tell(state);
        Ok(Marker { queue: Arc::clone(self), ticket })
    }

    /// Claims the queue's next turn for the calling thread if the thread need not wait. A synchronous call on an idle
    /// stream then needs no change of threads.
    pub fn try_turn(self: &Arc<Self>) -> Option<Turn<'_>> {
        let mut state = self.lock();
        if state.busy || !state.pending.is_empty() {
            return None;
        }
        state.busy = true;
        state.submitted += 1;
        Some(Turn { queue: self, ticket: state.submitted })
    }

    /// Retires the queue of a destroyed stream. Its thread ends as soon as the queue is empty.
    pub fn retire(&self) {
        let mut state = self.lock();
        state.retired = true;
        self.tell(state);
    }

    fn run(&self) {
        signals::never_preempt();
        let mut state = self.lock();
        loop {
            if state.busy {
                state = self.wait(state);
            } else if let Some(operation) = state.pending.pop_front() {
                state.busy = true;
                // A caller that waits for room in the queue can continue.
                self.tell(state);
                operation.after.iter().for_each(Marker::wait);
                // A panic must not end the stream's thread, because then threads that wait for this operation would
                // never continue.
                let _ = catch_unwind(AssertUnwindSafe(operation.work));
                self.finish();
                state = self.lock();
            } else if state.retired {
                state.has_thread = false;
                return;
            } else {
                state.waiting += 1;
                let (now, waited) = self.changed.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = now;
                state.waiting -= 1;
                if waited.timed_out() && state.pending.is_empty() {
                    state.has_thread = false;
                    return;
                }
            }
        }
    }

    fn finish(&self) {
        let mut state = self.lock();
        state.busy = false;
        state.completed += 1;
        self.tell(state);
    }
}

/// The right to run the queue's next operation. Dropping the turn completes the operation.
pub struct Turn<'a> {
    queue: &'a Arc<Queue>,
    ticket: u64,
}

impl Turn<'_> {
    pub fn marker(&self) -> Marker {
        Marker { queue: Arc::clone(self.queue), ticket: self.ticket }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.queue.finish();
    }
}

/// Starts a thread that blocks all signals, so that the program's own threads handle them. Threads that it starts
/// inherit this.
fn spawn_without_signals(body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let old = signals::block_all();
    let started = thread::Builder::new().name("softgpu".to_owned()).spawn(body);
    signals::restore(&old);
    started.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn operations_of_a_queue_keep_their_order_and_markers_order_queues() {
        let (a, b) = (Queue::new(usize::MAX), Queue::new(usize::MAX));
        let (send, receive) = channel();
        let (gate_open, gate) = channel::<()>();
        let first = send.clone();
        let marker = a
            .submit(
                vec![],
                Box::new(move || {
                    let _ = gate.recv();
                    let _ = first.send(1);
                }),
            )
            .unwrap();
        let second = send.clone();
        let send_two = move || {
            let _ = second.send(2);
        };
        let last = b.submit(vec![marker.clone()], Box::new(send_two)).unwrap();
        assert!(!marker.is_reached() && !last.is_reached() && a.try_turn().is_none());
        gate_open.send(()).unwrap();
        last.wait();
        assert!(marker.is_reached() && a.is_idle());
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_turn_counts_as_an_operation() {
        let queue = Queue::new(1);
        let turn = queue.try_turn().unwrap();
        let end = queue.end();
        assert!(!end.is_reached());
        drop(turn);
        assert!(end.is_reached());
    }

    #[test]
    fn a_retired_queue_keeps_no_thread_and_does_what_it_was_given() {
        let (queue, other) = (Queue::new(usize::MAX), Queue::new(usize::MAX));
        for round in 0..2 {
            queue.submit(vec![], Box::new(|| ())).unwrap();
            queue.retire();
            let done = queue.submit(vec![], Box::new(|| ())).unwrap();
            done.wait();
            let mut state = queue.lock();
            while state.has_thread {
                drop(state);
                thread::yield_now();
                state = queue.lock();
            }
            assert_eq!(state.completed, 2 * (round + 1));
        }
        other.submit(vec![], Box::new(|| ())).unwrap().wait();
        assert!(other.lock().has_thread, "the next operation needs it");
    }

    #[test]
    fn a_panicking_operation_completes() {
        let queue = Queue::new(usize::MAX);
        queue.submit(vec![], Box::new(|| panic!("expected in this test"))).unwrap().wait();
        assert!(queue.is_idle());
    }
}
