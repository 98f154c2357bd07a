//! Matrix instructions.

use super::Mods;
use crate::engine::compile::lower::{Lower, Lowering};
use crate::engine::ptx::ast::Instr;

pub fn decode<'a>(_lower: &mut Lower<'_, 'a>, _instr: &Instr<'a>, _mods: &mut Mods) -> Lowering<bool> {
    Ok(false)
}
