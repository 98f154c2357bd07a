//! The resources for running kernels, which all launches of the process share.

use crate::engine::{Textures, ThreadPool};
use crate::kernels::rules::Rules;
use crate::memory::allocations::Memory;
use std::sync::Arc;

pub struct Executor {
    /// The maximum number of OS threads for one kernel.
    pub threads: usize,
    pub workers: ThreadPool,
    pub textures: Textures,
    pub memory: Arc<Memory>,
    /// The rules for the values that a null GPU writes in place of kernels, if the settings name any.
    pub rules: Option<Rules>,
}

impl Executor {
    pub fn new(threads: usize, memory: Arc<Memory>, rules: Option<Rules>) -> Executor {
        let workers = ThreadPool::new(threads.saturating_sub(1));
        Executor { threads, workers, textures: Textures::default(), memory, rules }
    }
}
