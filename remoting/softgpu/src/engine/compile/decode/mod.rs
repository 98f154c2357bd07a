//! Decoding of an opcode and its modifiers to an instruction. Each modifier must be understood. A modifier that is left
//! over makes the form unsupported, so none is silently ignored.
//!
//! Each file decodes one kind of instruction, and `statement` gives access to a statement's modifiers and operands.
//! `lower` calls this module. A decoded instruction names its handler in `exec`. Nothing is executed here.

mod atomic;
mod cluster;
mod compare;
mod control;
mod convert;
mod float;
mod half;
mod int;
mod matrix;
mod mbarrier;
mod memory;
mod moves;
mod pairs;
mod statement;
mod textures;
mod video;
mod warp;
mod wide;
mod wmma;

use super::lower::{Lower, Lowering, refuse};
use crate::engine::ptx::ast::Instr;
use statement::Mods;

/// Decodes one statement.
pub fn instruction<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>) -> Lowering {
    let mods = &mut Mods::new(&instr.mods);
    let known = wide::decode(lower, instr, mods)?
        || control::decode(lower, instr, mods)?
        || cluster::decode(lower, instr, mods)?
        || mbarrier::decode(lower, instr, mods)?
        || pairs::decode(lower, instr, mods)?
        || memory::decode(lower, instr, mods)?
        || textures::decode(lower, instr, mods)?
        || moves::decode(lower, instr, mods)?
        || compare::decode(lower, instr, mods)?
        || convert::decode(lower, instr, mods)?
        || half::decode(lower, instr, mods)?
        || float::decode(lower, instr, mods)?
        || video::decode(lower, instr, mods)?
        || int::decode(lower, instr, mods)?
        || atomic::decode(lower, instr, mods)?
        || warp::decode(lower, instr, mods)?
        || matrix::decode(lower, instr, mods)?
        || wmma::decode(lower, instr, mods)?;
    if known { mods.finish() } else { refuse("the instruction is not supported") }
}
