//! Physical memory that programs map themselves.

use crate::backing::Backing;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Memory made by `cuMemCreate`. It lives until it is released and mapped nowhere.
pub struct Physical {
    pub id: usize,
    pub device: usize,
    pub len: u64,
    /// May other processes have it?
    pub shareable: bool,
    /// Another process made it, and is charged for it.
    pub imported: bool,
    pub backing: Backing,
    pub references: AtomicUsize,
    pub released: AtomicBool,
}
