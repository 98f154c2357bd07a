//! Functions of the program that a stream's thread calls.

use crate::check;
use std::cell::Cell;

thread_local! {
    /// Whether the calling thread runs a stream callback. CUDA functions fail then.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the program on a stream's thread.
pub fn in_callback(function: impl FnOnce()) {
    IN_CALLBACK.set(true);
    check::host_function(function);
    IN_CALLBACK.set(false);
}

/// Whether the calling thread runs a function of the program in a stream.
pub fn is_running() -> bool {
    IN_CALLBACK.try_with(Cell::get).unwrap_or(false)
}
