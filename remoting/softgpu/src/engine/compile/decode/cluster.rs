//! Decoding of instructions for clusters, which have one block, and for dependent grids, which start after the previous
//! grid has ended.

use super::statement::{Mods, operand};
use crate::engine::code::Inst;
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::barrier::{Bar, CLUSTER, kind};
use crate::engine::exec::collective::{Elect, Sync, operation};
use crate::engine::exec::control::Nop;
use crate::engine::exec::exec;
use crate::engine::exec::int::{Mov32, Mov64};
use crate::engine::exec::ops::Un;
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    match instr.op {
        "griddepcontrol" => {
            mods.ignore(&["wait", "launch_dependents"]);
            lower.emit(Inst::new(exec::<Nop>()));
        }
        "barrier" if mods.has("cluster") => {
            lower.clusters = true;
            mods.ignore(&["aligned", "acquire", "release", "relaxed"]);
            match mods.one_of(&["arrive", "wait"]) {
                // Each thread that arrives also waits later, so the arrival is counted there.
                Some(0) => lower.emit(Inst::new(exec::<Nop>())),
                Some(_) => {
                    let a = lower.number(CLUSTER as u64, Ty::U32);
                    lower.barriers = true;
                    lower.emit(Inst { a, mods: kind::CLUSTER, ..Inst::new(exec::<Bar>()) });
                }
                None => return refuse("a form is missing"),
            }
        }
        // There is only one block, so its address or rank is the result.
        "mapa" => {
            lower.clusters = true;
            mods.ignore(&["shared::cluster"]);
            let ty = mods.ty()?;
            copy(lower, instr, operand(instr, 1)?, ty)?;
        }
        "getctarank" => {
            lower.clusters = true;
            mods.ignore(&["shared::cluster"]);
            mods.ty()?;
            copy(lower, instr, &Operand::Int(0), Ty::U32)?;
        }
        "elect" => {
            mods.has("sync");
            let (to, chosen) = match operand(instr, 0)? {
                Operand::Pair(to, chosen) => (&**to, &**chosen),
                _ => return refuse("a predicate is missing"),
            };
            let (d, d2) = (lower.dst(to, Ty::B32)?, lower.dst(chosen, Ty::Pred)?);
            let e = lower.src(operand(instr, 1)?, Ty::B32)?;
            lower.emit(Inst { d, d2, e, mods: operation::ELECT, ..Inst::new(exec::<Sync<Elect>>()) });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn copy<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, from: &Operand<'a>, ty: Ty) -> Lowering {
    let d = lower.dst(operand(instr, 0)?, ty)?;
    let a = lower.src(from, ty)?;
    let handler = if ty.bytes() == 8 { exec::<Un<Mov64>>() } else { exec::<Un<Mov32>>() };
    lower.emit(Inst { d, a, ..Inst::new(handler) });
    Ok(())
}
