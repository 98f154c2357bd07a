//! Late copies: copies whose bytes the client sends only when their stream has reached them.

use crate::copying::layout::Layout;
use crate::driver::staging::Buffer;
use std::collections::{HashMap, VecDeque};

/// A `CopyToDeviceLate` that has not received all of its bytes.
pub struct LateCopy {
    pub stream_id: u64,
    pub context: u64,
    pub address: u64,
    pub layout: Layout,
    /// The number of bytes requested so far. The buffer of each request is kept here until the bytes arrive.
    pub asked: u64,
    pub answered: u64,
    pub buffers: VecDeque<Buffer>,
    /// Whether the stream has reached the copy.
    pub reached: bool,
}

#[derive(Default)]
pub struct LateCopies(pub HashMap<u64, LateCopy>);
