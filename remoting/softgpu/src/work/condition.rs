//! A condition of a graph, a word of device memory that kernels write with `cudaGraphSetConditional`. Its handle is the
//! word's address.

use crate::memory::arena;
use crate::streams::context::Context;
use std::sync::Arc;

pub struct Condition {
    pub address: u64,
    pub context: Arc<Context>,
    /// The handle of the graph whose nodes may use the condition.
    pub graph: usize,
    /// The value at the start of each launch, if the program set one.
    pub default: Option<u32>,
    pub is_null: bool,
}

impl Condition {
    pub fn get(&self) -> u32 {
        let mut value = 0u32;
        arena::copy((&raw mut value).expose_provenance() as u64, self.address, size_of::<u32>() as u64);
        value
    }

    fn set(&self, value: u32) {
        arena::copy(self.address, (&raw const value).expose_provenance() as u64, size_of::<u32>() as u64);
    }

    pub fn is_of(&self, context: usize) -> bool {
        self.context.id == context
    }

    pub fn assign_default(&self) {
        if let Some(value) = self.default {
            self.set(value);
        }
    }
}
