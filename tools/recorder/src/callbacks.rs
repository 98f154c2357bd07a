//! Runs the host functions of a replayed program as CUDA streams do: in order within each stream, and never on a thread
//! of the program.

use crate::arrivals::Stream;
use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A host function in the queue of a stream.
pub struct Callback {
    pub number: usize,
    /// The callbacks that must end before this one runs.
    pub after: Vec<usize>,
    pub run: Box<dyn FnOnce() + Send>,
}

#[derive(Default)]
pub struct Callbacks {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queues: HashMap<Stream, VecDeque<Callback>>,
    /// The numbers of the callbacks that have not ended.
    open: HashSet<usize>,
}

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

impl Callbacks {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(self: &Arc<Self>, stream: Stream, callback: Callback) {
        let mut state = self.lock();
        state.open.insert(callback.number);
        let known = state.queues.contains_key(&stream);
        state.queues.entry(stream).or_default().push_back(callback);
        self.changed.notify_all();
        if !known {
            let callbacks = Arc::clone(self);
            std::thread::spawn(move || callbacks.run(stream));
        }
    }

    /// Waits until the callbacks with these numbers have ended. Returns at once if the caller is itself a host
    /// function.
    pub fn wait(&self, numbers: &[usize]) {
        if !IN_CALLBACK.get() {
            let waits = |state: &mut State| numbers.iter().any(|number| state.open.contains(number));
            drop(self.changed.wait_while(self.lock(), waits));
        }
    }

    fn run(&self, stream: Stream) {
        IN_CALLBACK.set(true);
        let mut state = self.lock();
        loop {
            let waits = |state: &mut State| {
                let next = state.queues.get(&stream).and_then(VecDeque::front);
                next.is_none_or(|next| next.after.iter().any(|number| state.open.contains(number)))
            };
            state = self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
            let Some(next) = state.queues.get_mut(&stream).and_then(VecDeque::pop_front) else { continue };
            drop(state);
            (next.run)();
            state = self.lock();
            state.open.remove(&next.number);
            self.changed.notify_all();
        }
    }
}
