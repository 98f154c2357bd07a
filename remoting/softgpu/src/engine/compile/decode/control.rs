//! Decoding of branches, calls and returns.

use super::statement::{Mods, operand};
use crate::engine::code::{CallSite, Callee, Inst};
use crate::engine::compile::flow::Flow;
use crate::engine::compile::lower::{Lower, Lowering, Place, refuse};
use crate::engine::compile::names::Symbol;
use crate::engine::exec::control::{Branch, BranchIndexed, Call, Exit, NoMulticast, Nop, Ret, Sleep, Trap};
use crate::engine::exec::exec;
use crate::engine::exec::syscall::function::MALLOC;
use crate::engine::exec::syscall::{Syscall, provided};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

/// The prefixes of names in NVIDIA's device runtime, which launches kernels from kernels. `libcudadevrt.a` defines some
/// of the functions, and the driver provides the others.
const DEVICE_RUNTIME: [&str; 3] = ["cuda", "__cudaCDP", "__cuda_syscall_cnp"];

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    match instr.op {
        "bra" => {
            mods.has("uni");
            let Operand::Label(label) = *operand(instr, 0)? else { return refuse("a label is expected") };
            lower.emit_flow(Inst::new(exec::<Branch>()), Flow::Branch(label));
        }
        "brx" => indexed(lower, instr, mods)?,
        "call" => call(lower, instr, mods)?,
        "ret" => {
            mods.has("uni");
            lower.emit_flow(Inst::new(exec::<Ret>()), Flow::Stop);
        }
        "exit" => lower.emit_flow(Inst::new(exec::<Exit>()), Flow::Stop),
        "trap" => lower.emit_flow(Inst::new(exec::<Trap>()), Flow::Stop),
        // Kernels query whether the device has this kind of memory before they use it. No device here has it.
        "multimem" => {
            mods.ignore_prefix("");
            lower.emit_flow(Inst::new(exec::<NoMulticast>()), Flow::Stop);
        }
        "brkpt" | "pmevent" => {
            mods.has("mask");
            lower.emit(Inst::new(exec::<Nop>()));
        }
        // A grid starts after the earlier grids of its stream have ended, so there is nothing to wait for.
        "griddepcontrol" => {
            mods.ignore(&["wait", "launch_dependents"]);
            lower.emit(Inst::new(exec::<Nop>()));
        }
        "nanosleep" => {
            mods.has("u32");
            lower.emit(Inst::new(exec::<Sleep>()));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn indexed<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    mods.has("idx");
    mods.has("uni");
    let a = lower.src(operand(instr, 0)?, Ty::U32)?;
    // The name of the list parses as a symbol, or as the label in front of the list.
    let Operand::Symbol(name) = *operand(instr, 1)? else { return refuse("a list of targets is expected") };
    let Some((_, targets)) = lower.body.branch_targets.iter().find(|(list, _)| *list == name) else {
        return refuse(format!("'{name}' is not a list of targets"));
    };
    if targets.contains(&u32::MAX) {
        return refuse(format!("a target of '{name}' is not a label"));
    }
    let inst = Inst { a, mods: targets.len() as u32, ..Inst::new(exec::<BranchIndexed>()) };
    lower.emit_flow(inst, Flow::Table(targets.clone()));
    Ok(())
}

/// Decodes `call (returns), name, (arguments), prototype` and its shorter forms.
fn call<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    mods.has("uni");
    let mut operands = instr.operands.as_slice();
    let mut returns = Vec::new();
    if let [Operand::List(list), rest @ ..] = operands {
        returns = variables(lower, list)?;
        operands = rest;
    }
    let [target, rest @ ..] = operands else { return refuse("the callee is missing") };
    let args = match rest.first() {
        Some(Operand::List(list)) => variables(lower, list)?,
        _ => Vec::new(),
    };
    let site = lower.calls.len() as i64;
    let mut inst = Inst { imm: site, ..Inst::new(exec::<Call>()) };
    let callee = match target {
        Operand::Reg(_) => {
            inst.a = lower.src(target, Ty::U64)?;
            Callee::Indirect
        }
        Operand::Symbol(name) => match lower.linker.resolve(lower.unit, name) {
            Some(Symbol::Function(index)) => {
                lower.edges.insert(index);
                Callee::Function(index)
            }
            Some(_) => return refuse(format!("'{name}' is not a function")),
            None => match provided(name) {
                Some(function) => {
                    lower.heap |= function == MALLOC;
                    inst = Inst { imm: site, mods: function, ..Inst::new(exec::<Syscall>()) };
                    Callee::Indirect
                }
                None if DEVICE_RUNTIME.iter().any(|prefix| name.starts_with(prefix)) => {
                    return refuse(format!("dynamic parallelism is not provided: '{name}'"));
                }
                None => return refuse(format!("function '{name}' is not defined")),
            },
        },
        _ => return refuse("the callee is of another form"),
    };
    lower.calls.push(CallSite { callee, args, returns });
    lower.emit_flow(inst, Flow::Call);
    Ok(())
}

/// Returns the offset and size of `.param` variables in the frame.
fn variables<'a>(lower: &mut Lower<'_, 'a>, list: &[Operand<'a>]) -> Lowering<Vec<(u32, u32)>> {
    let place = |operand: &Operand<'a>| match operand {
        Operand::Var(var) => match lower.place(*var) {
            Place::Local(offset) => Ok((offset, lower.body.vars[*var as usize].size as u32)),
            _ => refuse("an argument is not a .param variable"),
        },
        _ => refuse("an argument is not a .param variable"),
    };
    list.iter().map(place).collect()
}
