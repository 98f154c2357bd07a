//! The program's host functions and waits that have not returned.

use crate::Code;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, OnceLock};

/// A host function or a wait, with its argument bound. It gets the session's sticky error, or 0.
pub type HostCall = Box<dyn FnOnce(Code) + Send>;

#[derive(Clone, Copy)]
pub enum Kind {
    Function,
    Wait,
}

#[derive(Default)]
pub struct Callbacks {
    pub functions: AtomicUsize,
    pub waits: AtomicUsize,
    pub calls: Mutex<HashMap<u64, (Kind, HostCall)>>,
    pub due: OnceLock<Sender<u64>>,
}

impl Callbacks {
    /// Returns the number of calls of this kind that have not returned.
    pub fn outstanding(&self, kind: Kind) -> &AtomicUsize {
        match kind {
            Kind::Function => &self.functions,
            Kind::Wait => &self.waits,
        }
    }
}

thread_local! {
    pub static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread runs a host function. CUDA allows no calls from host functions.
pub fn in_callback() -> bool {
    IN_CALLBACK.try_with(Cell::get).unwrap_or(false)
}
