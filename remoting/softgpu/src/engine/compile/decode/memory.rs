//! Decoding of loads, stores, asynchronous copies, fences and cache hints.

use super::statement::{Mods, operand};
use crate::engine::code::{Inst, NONE};
use crate::engine::compile::allocate::Class;
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::control::Nop;
use crate::engine::exec::exec;
use crate::engine::exec::int::{Add64, Mov64};
use crate::engine::exec::memory::*;
use crate::engine::exec::ops::{Bin, Select, Un};
use crate::engine::exec::whole::{LoadWhole, StoreWhole};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

/// Selects the handler of a load by the element's type and by whether the register is 64 bits wide.
macro_rules! load_handler {
    ($shape:ident, $ty:expr, $wide:expr) => {
        match ($ty.bytes(), $ty.is_signed(), $wide) {
            (1, false, false) => exec::<$shape<U8>>(),
            (1, true, false) => exec::<$shape<S8>>(),
            (2, false, false) => exec::<$shape<U16>>(),
            (2, true, false) => exec::<$shape<S16>>(),
            (4, _, false) => exec::<$shape<B32>>(),
            (1, false, true) => exec::<$shape<U8Wide>>(),
            (1, true, true) => exec::<$shape<S8Wide>>(),
            (2, false, true) => exec::<$shape<U16Wide>>(),
            (2, true, true) => exec::<$shape<S16Wide>>(),
            (4, false, true) => exec::<$shape<U32Wide>>(),
            (4, true, true) => exec::<$shape<S32Wide>>(),
            (8, _, true) => exec::<$shape<B64>>(),
            _ => return refuse("the type is not supported"),
        }
    };
}

/// Selects the handler of a store by the element's type.
macro_rules! store_handler {
    ($shape:ident, $ty:expr) => {
        match $ty.bytes() {
            1 => exec::<$shape<U8>>(),
            2 => exec::<$shape<U16>>(),
            4 => exec::<$shape<B32>>(),
            8 => exec::<$shape<B64>>(),
            _ => return refuse("the type is not supported"),
        }
    };
}

/// The modifiers for caching and scope. They are ignored, because all accesses are coherent.
const HINTS: [&str; 27] = [
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "cta",
    "cluster",
    "gpu",
    "sys",
    "weak",
    "relaxed",
    "volatile",
    "mmio",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::cache_hint",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::evict_first",
    "L2::evict_last",
];

/// The modifiers of accesses that may race with other threads: strong accesses, and accesses that bypass a
/// multiprocessor's cache. Before PTX had strong accesses, programs used the latter instead.
const MET: [&str; 7] = ["relaxed", "volatile", "mmio", "acquire", "release", "cg", "cv"];

pub fn ignore_hints(mods: &mut Mods) {
    mods.ignore(&HINTS);
}

/// Returns the flag of an access that orders other accesses, or 0.
pub fn ordering(mods: &mut Mods) -> u32 {
    if mods.has("acquire") || mods.has("release") { space::ORDERED } else { 0 }
}

/// Returns the state space in the modifiers.
pub fn space_of(mods: &mut Mods) -> u32 {
    let names = [
        "global",
        "const",
        "shared",
        "shared::cta",
        "shared::cluster",
        "local",
        "param",
        "param::entry",
        "param::func",
    ];
    match mods.one_of(&names) {
        None => space::GENERIC,
        Some(0 | 1) => space::GLOBAL,
        Some(2..=4) => space::SHARED,
        Some(5) => space::LOCAL,
        Some(_) => space::PARAM,
    }
}

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    match instr.op {
        "ld" | "ldu" | "st" => access(lower, instr, mods)?,
        "cp" if instr.mods.first() == Some(&"async") => copy_async(lower, instr, mods)?,
        "membar" | "fence" => {
            // All fences are the same here, because there is one kind of access and one copy of memory.
            mods.ignore_prefix("");
            lower.emit(Inst::new(exec::<Fence>()));
        }
        "prefetch" | "prefetchu" | "applypriority" | "discard" => {
            mods.ignore_prefix("");
            lower.emit(Inst::new(exec::<Nop>()));
        }
        // A cache policy has no effect, so any number can represent it.
        "createpolicy" => {
            mods.ignore_prefix("");
            let d = lower.dst(operand(instr, 0)?, Ty::B64)?;
            let a = lower.number(0, Ty::B64);
            lower.emit(Inst { d, a, ..Inst::new(exec::<Un<Mov64>>()) });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn access<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let load = instr.op != "st";
    let met = MET.iter().any(|name| instr.mods.contains(name));
    ignore_hints(mods);
    let ordered = ordering(mods);
    let strong = if met { space::STRONG } else { 0 };
    let state = space_of(mods);
    let vector = match mods.one_of(&["v2", "v4", "v8"]) {
        None => 1,
        Some(0) => 2,
        Some(1) => 4,
        Some(_) => 8,
    };
    let ty = mods.ty()?;
    let (value, address) = if load { (0, 1) } else { (1, 0) };
    let value = operand(instr, value)?;
    let single = std::slice::from_ref(value);
    let elements = match value {
        Operand::Vector(elements) if vector > 1 => elements.as_slice(),
        // Accept braces around one register, as in `ld.v1`.
        Operand::Vector(elements) if elements.len() == 1 => elements.as_slice(),
        _ if vector == 1 => single,
        _ => return refuse("a vector is expected"),
    };
    if elements.len() != vector {
        return refuse("the vector has another length");
    }
    let mut inst = Inst { mods: ordered | strong, ..Inst::new(exec::<Nop>()) };
    lower.address(&mut inst, operand(instr, address)?, state)?;
    let mut registers = Vec::with_capacity(elements.len());
    let mut wide = false;
    for element in elements {
        let (register, double) = if load { target(lower, element, ty)? } else { source(lower, element, ty)? };
        wide = double;
        registers.push(register);
    }
    let fixed = inst.a == NONE && inst.mods & space::MASK == space::PARAM && inst.imm >= 0;
    inst.exec = match (load, fixed) {
        (true, true) => load_handler!(LoadParam, ty, wide),
        (true, false) if met && vector > 1 => load_handler!(LoadWhole, ty, wide),
        (true, false) => load_handler!(Load, ty, wide),
        (false, _) if met && vector > 1 => store_handler!(StoreWhole, ty),
        (false, _) => store_handler!(Store, ty),
    };
    match registers.as_slice() {
        &[register] if load => inst.d = register,
        &[register] => inst.b = register,
        registers if load => inst.targets = lower.list(registers),
        registers => inst.sources = lower.list(registers),
    }
    lower.emit(inst);
    Ok(())
}

/// Returns the register of a loaded element, and whether it is 64 bits wide. It may be wider than the element.
fn target<'a>(lower: &mut Lower<'_, 'a>, element: &Operand<'a>, ty: Ty) -> Lowering<(u32, bool)> {
    match element {
        Operand::Reg(reg) => match lower.class_of(*reg) {
            class @ (Class::Word | Class::Double) => Ok((*reg, class == Class::Double)),
            _ => refuse("the register does not fit the type"),
        },
        Operand::Sink => Ok((lower.temp(ty), ty.bytes() == 8)),
        _ => refuse("a register is expected"),
    }
}

/// Returns the register of a stored element, and whether it is 64 bits wide. If it is wider than the element, its low
/// part is stored.
fn source<'a>(lower: &mut Lower<'_, 'a>, element: &Operand<'a>, ty: Ty) -> Lowering<(u32, bool)> {
    Ok((lower.src(element, ty)?, ty.bytes() == 8))
}

fn is_predicate(lower: &Lower, operand: &Operand) -> bool {
    match operand {
        Operand::Reg(reg) => lower.class_of(*reg) == Class::Pred,
        Operand::Not(_) => true,
        _ => false,
    }
}

/// Decodes `cp.async` and its waits. The copy is done at once, so waits do nothing.
fn copy_async<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    mods.has("async");
    if mods.one_of(&["commit_group", "wait_group", "wait_all"]).is_some() {
        lower.emit(Inst::new(exec::<Nop>()));
        return Ok(());
    }
    let policy = usize::from(mods.has("L2::cache_hint"));
    ignore_hints(mods);
    mods.ignore(&["shared", "shared::cta", "global"]);
    let Operand::Int(bytes @ (4 | 8 | 16)) = *operand(instr, 2)? else { return refuse("the size is not supported") };
    let mut inst = Inst { mods: (bytes as u32) << 8, ..Inst::new(exec::<CopyAsync>()) };
    lower.address(&mut inst, operand(instr, 0)?, space::SHARED)?;
    let mut source = Inst::new(exec::<Nop>());
    lower.address(&mut source, operand(instr, 1)?, space::GLOBAL)?;
    if source.mods & space::MASK != space::GLOBAL || source.mods & space::NARROW != 0 {
        return refuse("the source is not in global memory");
    }
    let offset = lower.number(source.imm as u64, Ty::U64);
    inst.b = match (source.a, source.imm) {
        (NONE, _) => offset,
        (base, 0) => base,
        (base, _) => {
            let temp = lower.temp(Ty::U64);
            lower.emit_free(Inst { d: temp, a: base, b: offset, ..Inst::new(exec::<Bin<Add64>>()) });
            temp
        }
    };
    inst.c = match instr.operands[..instr.operands.len().saturating_sub(policy)].get(3) {
        // If the predicate is true, nothing is read and zeros are written.
        Some(ignore) if is_predicate(lower, ignore) => {
            let (d, c) = (lower.temp(Ty::U32), lower.pred(ignore)?);
            let [a, b] = [0, bytes as u64].map(|size| lower.number(size, Ty::U32));
            lower.emit_free(Inst { d, a, b, c, ..Inst::new(exec::<Select<u32>>()) });
            d
        }
        Some(size) => lower.src(size, Ty::U32)?,
        None => NONE,
    };
    lower.emit(inst);
    Ok(())
}
