//! The state of a block whose warps run in lockstep: one pc, and registers that may be stored without lanes.

use super::affine::Affine;
use super::warp::Frame;

/// The form in which a register's value is stored.
#[derive(Debug, Clone, Copy, Default)]
pub enum Held {
    /// One value for each lane.
    #[default]
    Lanes,
    Word(Affine),
    Double(Affine),
}

/// The state of a block in lockstep. The pcs of its warps are not up to date while it runs.
#[derive(Default)]
pub struct Lockstep {
    pub active: bool,
    pub pc: u32,
    pub frame: Frame,
    pub held: Vec<Held>,
    /// The number of backward branches that are left in this turn.
    pub budget: u32,
}
