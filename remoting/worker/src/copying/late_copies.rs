//! Copies whose bytes the client sends when their stream got there.

use crate::copying::layout::Layout;
use crate::copying::staging::Buffer;
use std::collections::{HashMap, VecDeque};

/// A `CopyToDeviceLate` whose bytes are coming.
pub struct LateCopy {
    pub stream_id: u64,
    pub context: u64,
    pub address: u64,
    pub layout: Layout,
    /// Bytes asked for; each question has its buffer here until it is answered.
    pub asked: u64,
    pub answered: u64,
    pub buffers: VecDeque<Buffer>,
    /// The stream got there.
    pub reached: bool,
}

#[derive(Default)]
pub struct LateCopies(pub HashMap<u64, LateCopy>);
