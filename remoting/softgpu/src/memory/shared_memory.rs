//! The record of memory that processes on this machine give each other.

use crate::memory::backing::Backing;
use std::collections::BTreeMap;
use std::sync::Arc;

/// By the allocations' identities.
#[derive(Default)]
pub struct Shared {
    pub exports: BTreeMap<u64, Arc<Backing>>,
    pub imports: BTreeMap<u64, Import>,
}

pub struct Import {
    pub inode: u64,
    pub base: u64,
    pub context: usize,
    /// The number of times that it is open.
    pub times: u32,
}

impl Shared {
    /// Forgets an allocation that ends; returns whether it was shared.
    pub fn forget(&mut self, id: u64) -> bool {
        self.exports.remove(&id).is_some() || self.imports.remove(&id).is_some()
    }
}
