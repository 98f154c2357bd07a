//! Host functions that streams run: on one thread of their own, in the order in which they come due.

use super::{Session, lock, mint};
use crate::Code;
use crate::{log, sys};
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use protocol::{CallbackDone, HostFunction};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock};

/// A host function with what it is called with; the argument is the session's sticky error, or 0.
pub type HostCall = Box<dyn FnOnce(Code) + Send>;

#[derive(Default)]
pub struct Callbacks {
    outstanding: AtomicUsize,
    calls: Mutex<HashMap<u64, HostCall>>,
    due: OnceLock<Sender<u64>>,
}

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Does the calling thread run a host function? CUDA allows no calls from there.
pub fn in_callback() -> bool {
    IN_CALLBACK.try_with(Cell::get).unwrap_or(false)
}

impl Session {
    /// Calls `function` when the stream gets there; the stream continues when it returns.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post_callback(self: &Arc<Self>, stream_id: u64, function: HostCall) -> Result<(), Code> {
        self.start_callbacks()?;
        let token = mint();
        lock(&self.callbacks.calls).insert(token, function);
        self.callbacks.outstanding.fetch_add(1, SeqCst);
        self.post(stream_id, &HostFunction { token }).map(drop).inspect_err(|_| {
            lock(&self.callbacks.calls).remove(&token);
            self.callbacks.outstanding.fetch_sub(1, SeqCst);
        })
    }

    pub fn has_callbacks(&self) -> bool {
        self.callbacks.outstanding.load(SeqCst) > 0
    }

    pub(super) fn run_callback(&self, token: u64) -> Result<(), String> {
        let due = self.callbacks.due.get().ok_or("the appliance called a host function that there is not")?;
        due.send(token).map_err(|_| "the thread of host functions is gone".into())
    }

    fn start_callbacks(self: &Arc<Self>) -> Result<(), Code> {
        let (sender, receiver) = mpsc::channel();
        if self.callbacks.due.set(sender).is_err() {
            return Ok(());
        }
        let session = Arc::clone(self);
        let run = move || {
            IN_CALLBACK.set(true);
            for token in receiver {
                let call = lock(&session.callbacks.calls).remove(&token);
                if let Some(call) = call {
                    call(session.check().err().unwrap_or(0));
                }
                session.callbacks.outstanding.fetch_sub(1, SeqCst);
                if session.post(0, &CallbackDone { token }).and_then(|_| session.flush()).is_err() {
                    return;
                }
            }
        };
        sys::spawn("remotegpu-call", run).map_err(|error| {
            log::error(&format!("cannot start a thread: {error}"));
            CUDA_ERROR_OUT_OF_MEMORY
        })
    }
}
