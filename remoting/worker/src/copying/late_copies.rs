//! Late copies: the client sends their bytes only when their stream has reached them.

use crate::copying::layout::Layout;
use crate::driver::staging::Buffer;
use std::collections::{HashMap, VecDeque};

/// A `CopyToDeviceLate` whose bytes are still to come.
pub struct LateCopy {
    pub stream_id: u64,
    pub context: u64,
    pub address: u64,
    pub layout: Layout,
    /// Bytes requested so far. Each request keeps its buffer here until it is answered.
    pub asked: u64,
    pub answered: u64,
    pub buffers: VecDeque<Buffer>,
    /// The stream has reached the copy.
    pub reached: bool,
}

#[derive(Default)]
pub struct LateCopies(pub HashMap<u64, LateCopy>);
