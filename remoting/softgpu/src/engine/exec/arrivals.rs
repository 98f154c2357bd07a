//! The state of a barrier: the threads that have arrived.

/// The number of barriers: those that programs can name, and that of the cluster.
pub const BARRIERS: usize = 17;
pub const CLUSTER: usize = 16;

#[derive(Default)]
pub struct Barrier {
    /// The mask of the lanes that arrived, for each warp.
    pub arrived: Vec<u32>,
    /// The mask of the lanes for which the predicate of `bar.red` was true, for each warp.
    pub truths: Vec<u32>,
    /// The number of threads given at arrival, or 0 for all threads of the block.
    pub expected: u32,
}

impl Barrier {
    pub fn arrive(&mut self, warp: usize, warps: usize, mask: u32, truth: u32, expected: u32) {
        self.arrived.resize(warps, 0);
        self.truths.resize(warps, 0);
        self.arrived[warp] |= mask;
        self.truths[warp] |= mask & truth;
        self.expected = expected;
    }

    pub fn reset(&mut self) {
        self.arrived.clear();
        self.truths.clear();
        self.expected = 0;
    }

    pub fn is_open(&self) -> bool {
        self.arrived.iter().all(|&mask| mask == 0)
    }
}
