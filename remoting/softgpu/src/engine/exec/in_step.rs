//! The state of a block whose warps run in step: one place in the code, and registers that need no lanes.

use super::affine::Affine;
use super::warp::Frame;

/// How a register's value is held.
#[derive(Debug, Clone, Copy, Default)]
pub enum Held {
    /// Lane by lane.
    #[default]
    Lanes,
    Word(Affine),
    Double(Affine),
}

/// The state of a block in step. Its warps' own pcs are stale meanwhile.
#[derive(Default)]
pub struct Lockstep {
    pub active: bool,
    pub pc: u32,
    pub frame: Frame,
    pub held: Vec<Held>,
    /// Backward branches left in this turn.
    pub budget: u32,
}
