//! Threads of this library for asynchronous work.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use driverapi::descriptors::apart;
use tokio::runtime::{Builder, Runtime};

use super::error::{ConnectError, ErrorKind};
use super::limits::{POLICY_DELAY, TIMEOUT};
use crate::program::sys;

/// Runs `work` on a new thread and waits for its result. Objects that `work` uses are created on that thread, because
/// the calling thread may have a small stack.
///
/// # Errors
/// Those of `work`, or if no thread can be started.
pub fn run<T: Send + 'static>(
    work: impl AsyncFnOnce() -> Result<T, ConnectError> + Send + 'static,
) -> Result<T, ConnectError> {
    let (sender, receiver) = mpsc::channel();
    let started = start("remotegpu-call", async move || {
        let _ = sender.send(work().await);
    });
    started.map_err(no_thread)?;
    // `work` has its own time limit. This limit only covers a thread that died.
    receiver.recv_timeout(TIMEOUT + POLICY_DELAY + Duration::from_secs(1)).map_err(no_thread)?
}

/// Runs `work` on a new thread, without waiting.
///
/// # Errors
/// If the system has no more threads or descriptors.
pub fn start(name: &str, work: impl AsyncFnOnce() + Send + 'static) -> io::Result<()> {
    let (sender, started) = mpsc::channel();
    sys::spawn(name, move || match apart(|| Builder::new_current_thread().enable_all().build()) {
        Ok(runtime) => {
            let _ = sender.send(Ok(()));
            runtime.block_on(work());
            leave(runtime);
        }
        Err(error) => drop(sender.send(Err(error))),
    })?;
    started.recv().map_err(io::Error::other)?
}

/// Shuts the runtime down without waiting for a hanging name resolution.
fn leave(runtime: Runtime) {
    runtime.shutdown_background();
}

pub fn no_thread(error: impl std::fmt::Display) -> ConnectError {
    let message = format!("this process cannot start a thread to talk to the appliance: {error}; see `ulimit -u -n`");
    ConnectError::new(ErrorKind::Settings, message)
}
