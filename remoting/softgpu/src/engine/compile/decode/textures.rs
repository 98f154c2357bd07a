//! Decoding of texture and surface instructions that name objects by handles in registers. References by name, mipmaps
//! and cubemaps are not supported.

use super::statement::{Mods, operand};
use crate::engine::code::{Inst, List};
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::exec;
use crate::engine::exec::textures::{Gather, SurfaceLoad, SurfaceStore, Tex, form};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    match instr.op {
        "tex" => texture(lower, instr, mods)?,
        "tld4" => gather(lower, instr, mods)?,
        "suld" => surface(lower, instr, mods, true)?,
        "sust" => surface(lower, instr, mods, false)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns the number of axes and the layer flag of a geometry, in `mods` form.
fn geometry(mods: &mut Mods) -> Lowering<u32> {
    Ok(match mods.one_of(&["1d", "2d", "3d", "a1d", "a2d"]) {
        Some(axes @ 0..3) => axes as u32 + 1,
        Some(3) => 1 | form::LAYERED,
        Some(_) => 2 | form::LAYERED,
        None => return refuse("cubemaps and multisampled textures are not supported"),
    })
}

/// Returns the handle and the coordinates of an operand `[a, {x, y}]`.
fn place<'a>(lower: &mut Lower<'_, 'a>, place: &Operand<'a>) -> Lowering<(u32, List)> {
    let Operand::List(parts) = place else { return refuse("coordinates are missing") };
    let [handle, coordinates] = parts.as_slice() else { return refuse("a sampler of its own is not supported") };
    if matches!(handle, Operand::Symbol(_) | Operand::Var(_)) {
        return refuse("texture references are not supported, only texture objects");
    }
    let handle = lower.src(handle, Ty::U64)?;
    let single = std::slice::from_ref(coordinates);
    let coordinates = if let Operand::Vector(all) = coordinates { all.as_slice() } else { single };
    let registers: Vec<u32> = coordinates.iter().map(|each| lower.src(each, Ty::B32)).collect::<Lowering<_>>()?;
    Ok((handle, lower.list(&registers)))
}

fn destinations<'a>(lower: &mut Lower<'_, 'a>, value: &Operand<'a>, ty: Ty) -> Lowering<List> {
    let single = std::slice::from_ref(value);
    let elements = if let Operand::Vector(all) = value { all.as_slice() } else { single };
    let registers: Vec<u32> = elements.iter().map(|each| lower.dst(each, ty)).collect::<Lowering<_>>()?;
    Ok(lower.list(&registers))
}

/// Returns the 32-bit type to which a texture's channels are converted.
fn channel_type(mods: &mut Mods) -> Lowering<Ty> {
    match mods.ty()? {
        ty @ (Ty::U32 | Ty::S32 | Ty::F32) => Ok(ty),
        _ => refuse("the type is not supported"),
    }
}

fn texture<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    // There are no mipmaps, so all levels are the base level.
    mods.ignore(&["level", "grad", "base"]);
    let geometry = geometry(mods)?;
    if !mods.has("v4") {
        return refuse("a vector of four is expected");
    }
    let ty = channel_type(mods)?;
    let fetch = match mods.ty()? {
        Ty::S32 => form::FETCH,
        Ty::F32 => 0,
        _ => return refuse("the type of the coordinates is not supported"),
    };
    let targets = destinations(lower, operand(instr, 0)?, ty)?;
    let (a, sources) = place(lower, operand(instr, 1)?)?;
    lower.emit(Inst { a, sources, targets, mods: geometry | fetch, ..Inst::new(exec::<Tex>()) });
    Ok(())
}

fn gather<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering {
    let Some(channel) = mods.one_of(&["r", "g", "b", "a"]) else { return refuse("a channel is missing") };
    if !(mods.has("2d") && mods.has("v4")) {
        return refuse("the form is not supported");
    }
    let ty = channel_type(mods)?;
    if mods.ty()? != Ty::F32 {
        return refuse("the type of the coordinates is not supported");
    }
    let targets = destinations(lower, operand(instr, 0)?, ty)?;
    let (a, sources) = place(lower, operand(instr, 1)?)?;
    let mods = 2 | (channel as u32) << form::CHANNEL;
    lower.emit(Inst { a, sources, targets, mods, ..Inst::new(exec::<Gather>()) });
    Ok(())
}

fn surface<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods, load: bool) -> Lowering {
    if !mods.has("b") {
        return refuse("formatted access to surfaces is not supported");
    }
    super::memory::ignore_hints(mods);
    let geometry = geometry(mods)?;
    let vector = mods.one_of(&["v2", "v4"]).map_or(1, |at| 2 << at);
    let ty = mods.ty()?;
    let outside = match mods.one_of(&["trap", "clamp", "zero"]) {
        Some(1) => form::CLAMP,
        Some(2) => form::ZERO,
        _ => 0,
    };
    let (value, at) = if load { (0, 1) } else { (1, 0) };
    let value = operand(instr, value)?;
    let targets = if load {
        destinations(lower, value, ty)?
    } else {
        let single = std::slice::from_ref(value);
        let elements = if let Operand::Vector(all) = value { all.as_slice() } else { single };
        let registers: Vec<u32> = elements.iter().map(|each| lower.src(each, ty)).collect::<Lowering<_>>()?;
        lower.list(&registers)
    };
    if targets.len != vector {
        return refuse("the vector has another length");
    }
    let (a, sources) = place(lower, operand(instr, at)?)?;
    let mods = geometry | outside | ty.bytes() << form::BYTES;
    let handler = if load { exec::<SurfaceLoad>() } else { exec::<SurfaceStore>() };
    lower.emit(Inst { a, sources, targets, mods, ..Inst::new(handler) });
    Ok(())
}
