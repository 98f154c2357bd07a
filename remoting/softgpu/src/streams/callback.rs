//! Functions of the program that a stream's thread calls.

use crate::check;
use std::cell::Cell;

thread_local! {
    /// Whether this thread is inside a stream callback, where CUDA may not be called.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the program on a stream's thread.
pub fn in_callback(function: impl FnOnce()) {
    IN_CALLBACK.set(true);
    check::host_function(function);
    IN_CALLBACK.set(false);
}

/// Whether the calling thread is inside such a function.
pub fn is_running() -> bool {
    IN_CALLBACK.try_with(Cell::get).unwrap_or(false)
}
