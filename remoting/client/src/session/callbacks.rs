//! Host functions that the program puts into streams. One thread of their own runs them in the order in which streams
//! reach them. Each wait has a thread of its own, because a wait may take long.

use super::parts::host_calls::{HostCall, IN_CALLBACK, Kind};
use super::sessions::mint;
use super::{Session, lock};
use crate::Code;
use crate::program::{log, sys};
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use protocol::{CallbackDone, HostFunction};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;

impl Session {
    /// Calls `function` when the stream reaches this point. The stream continues when `function` returns.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post_callback(self: &Arc<Self>, stream_id: u64, function: HostCall) -> Result<(), Code> {
        self.post_call(stream_id, Kind::Function, function)
    }

    /// Like [`Session::post_callback`], but runs `wait` on a thread of its own, so `wait` may block for a long time.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn post_wait(self: &Arc<Self>, stream_id: u64, wait: HostCall) -> Result<(), Code> {
        self.post_call(stream_id, Kind::Wait, wait)
    }

    fn post_call(self: &Arc<Self>, stream_id: u64, kind: Kind, call: HostCall) -> Result<(), Code> {
        self.start_callbacks()?;
        let token = mint();
        lock(&self.callbacks.calls).insert(token, (kind, call));
        self.callbacks.outstanding(kind).fetch_add(1, SeqCst);
        self.post(stream_id, &HostFunction { token }).map(drop).inspect_err(|_| {
            lock(&self.callbacks.calls).remove(&token);
            self.callbacks.outstanding(kind).fetch_sub(1, SeqCst);
        })
    }

    pub fn has_callbacks(&self) -> bool {
        self.callbacks.functions.load(SeqCst) > 0
    }

    pub fn has_waits(&self) -> bool {
        self.callbacks.waits.load(SeqCst) > 0
    }

    /// Returns whether any host function or wait of the program has not returned.
    pub fn has_calls(&self) -> bool {
        self.has_callbacks() || self.has_waits()
    }

    fn run_call(&self, token: u64, kind: Kind, call: HostCall) {
        call(self.check().err().unwrap_or(0));
        self.end_call(token, kind);
    }

    fn end_call(&self, token: u64, kind: Kind) {
        self.callbacks.outstanding(kind).fetch_sub(1, SeqCst);
        // If the session has failed, no stream continues, so the error is ignored.
        let _ = self.post(0, &CallbackDone { token }).and_then(|_| self.flush());
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
                let Some((kind, call)) = lock(&session.callbacks.calls).remove(&token) else { continue };
                let own = Arc::clone(&session);
                let run = move || own.guarded("remotegpu-call", || own.run_call(token, kind, call));
                match kind {
                    Kind::Function => run(),
                    Kind::Wait => start("remotegpu-wait", run).unwrap_or_else(|code| {
                        session.note_late(code);
                        session.end_call(token, kind);
                    }),
                }
            }
        };
        start("remotegpu-call", run)
    }
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Code> {
    sys::spawn(name, run).map_err(|error| {
        log::error(&format!("cannot start a thread: {error}"));
        CUDA_ERROR_OUT_OF_MEMORY
    })
}
