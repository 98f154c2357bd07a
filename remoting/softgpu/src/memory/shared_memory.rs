//! The record of memory that this process shares with other processes on this machine.

use crate::memory::backing::Backing;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The exported and imported memory, by the allocation's id.
#[derive(Default)]
pub struct Shared {
    pub exports: BTreeMap<u64, Arc<Backing>>,
    pub imports: BTreeMap<u64, Import>,
}

pub struct Import {
    pub inode: u64,
    pub base: u64,
    pub context: usize,
    /// The number of times that the program has it open.
    pub times: u32,
}

impl Shared {
    /// Removes an allocation that ends. Returns whether it was shared.
    pub fn forget(&mut self, id: u64) -> bool {
        self.exports.remove(&id).is_some() || self.imports.remove(&id).is_some()
    }
}
