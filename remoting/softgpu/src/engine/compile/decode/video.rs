//! Decoding of video instructions and of their selectors.

use super::statement::{Mods, operand};
use crate::engine::code::Inst;
use crate::engine::compile::lower::{Lower, Lowering, refuse};
use crate::engine::exec::exec;
use crate::engine::exec::video::{Elements, Form, Op, Part, Second, Video, VideoElements, flag};
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::{Instr, Operand};

const COMPARISONS: [(&str, Op); 6] =
    [("eq", Op::Eq), ("ne", Op::Ne), ("lt", Op::Lt), ("le", Op::Le), ("gt", Op::Gt), ("ge", Op::Ge)];

pub fn decode<'a>(lower: &mut Lower<'_, 'a>, instr: &Instr<'a>, mods: &mut Mods) -> Lowering<bool> {
    let (name, count) = match instr.op.as_bytes().last() {
        Some(b'2') => (&instr.op[..instr.op.len() - 1], 2),
        Some(b'4') => (&instr.op[..instr.op.len() - 1], 4),
        _ => (instr.op, 1),
    };
    let op = match (name, count) {
        ("vadd", _) => Op::Add,
        ("vsub", _) => Op::Sub,
        ("vabsdiff", _) => Op::AbsDiff,
        ("vmin", _) => Op::Min,
        ("vmax", _) => Op::Max,
        ("vavrg", 2 | 4) => Op::Average,
        ("vshl", 1) => Op::Shl,
        ("vshr", 1) => Op::Shr,
        ("vmad", 1) => Op::Mad,
        // The comparison is in the modifiers after the types. `types` reads it.
        ("vset", _) => Op::Eq,
        _ => return Ok(false),
    };
    let (op, mut flags) = types(name, op, mods)?;
    if mods.has("sat") {
        flags |= flag::SATURATE;
    }
    let operands = Operands::of(instr)?;
    match (op, count) {
        (Op::Mad, _) => multiply(lower, mods, flags, &operands)?,
        (_, 1) => one(lower, mods, op, flags, &operands)?,
        _ => several(lower, mods, op, flags, count, &operands)?,
    }
    Ok(true)
}

/// Returns the operation and the signs of the operands' types. For `vset`, the comparison is the operation, and the
/// result has no type.
fn types(name: &str, op: Op, mods: &mut Mods) -> Lowering<(Op, u32)> {
    let mut signed = |flag: u32| match mods.ty() {
        Ok(Ty::U32) => Ok(0),
        Ok(Ty::S32) => Ok(flag),
        Ok(_) => refuse("a video instruction has operands of 32 bits"),
        Err(error) => Err(error),
    };
    if name != "vset" {
        return Ok((op, signed(flag::D_SIGNED)? | signed(flag::A_SIGNED)? | signed(flag::B_SIGNED)?));
    }
    let flags = signed(flag::A_SIGNED)? | signed(flag::B_SIGNED)?;
    match COMPARISONS.iter().find(|(name, _)| mods.has(name)) {
        Some((_, op)) => Ok((*op, flags)),
        None => refuse("a comparison is missing"),
    }
}

/// An operand, with its minus sign and its selector as separate fields.
struct Chosen<'i, 'a> {
    operand: &'i Operand<'a>,
    selector: Option<&'a str>,
    negative: bool,
}

impl<'i, 'a> Chosen<'i, 'a> {
    fn of(operand: &'i Operand<'a>) -> Chosen<'i, 'a> {
        match operand {
            Operand::Negative(inner) => Chosen { negative: true, ..Chosen::of(inner) },
            Operand::Part(inner, selector) => Chosen { operand: inner, selector: Some(selector), negative: false },
            operand => Chosen { operand, selector: None, negative: false },
        }
    }

    /// Returns the selected part: a byte, a half or the whole word.
    fn part(&self) -> Lowering<Part> {
        let Some(selector) = self.selector else { return Ok(Part::WHOLE) };
        let places = ["b0", "b1", "b2", "b3", "h0", "h1"];
        match places.iter().position(|name| *name == selector) {
            Some(index @ 0..4) => Ok(Part { at: 8 * index as u32, bits: 8 }),
            Some(index) => Ok(Part { at: 16 * (index as u32 - 4), bits: 16 }),
            None => refuse(format!("there is no part .{selector} of a word")),
        }
    }

    /// Returns the numbers in a selector such as `.h10` or `.b3210`, last number first.
    fn numbers(&self, count: u32, below: u32) -> Lowering<Option<Vec<u32>>> {
        let Some(selector) = self.selector else { return Ok(None) };
        let (kind, digits) = selector.split_at(1);
        let numbers: Option<Vec<u32>> = digits.chars().rev().map(|digit| digit.to_digit(below)).collect();
        match numbers {
            Some(numbers) if kind == if count == 2 { "h" } else { "b" } => Ok(Some(numbers)),
            _ => refuse(format!("there are no parts .{selector} of a word")),
        }
    }
}

struct Operands<'i, 'a> {
    d: Chosen<'i, 'a>,
    a: Chosen<'i, 'a>,
    b: Chosen<'i, 'a>,
    c: Option<Chosen<'i, 'a>>,
}

impl<'i, 'a> Operands<'i, 'a> {
    fn of(instr: &'i Instr<'a>) -> Lowering<Operands<'i, 'a>> {
        if instr.operands.len() > 4 {
            return refuse("the number of operands is wrong");
        }
        let [d, a, b] = [operand(instr, 0)?, operand(instr, 1)?, operand(instr, 2)?].map(Chosen::of);
        let c = instr.operands.get(3).map(Chosen::of);
        if d.negative || c.as_ref().is_some_and(|c| c.selector.is_some()) {
            return refuse("an operand of another form is expected");
        }
        Ok(Operands { d, a, b, c })
    }

    fn inst(&self, lower: &mut Lower<'_, 'a>, form: (u32, i64), inst: Inst) -> Lowering<Inst> {
        let (d, a) = (lower.dst(self.d.operand, Ty::U32)?, lower.src(self.a.operand, Ty::U32)?);
        let mut made = Inst { d, a, b: lower.src(self.b.operand, Ty::U32)?, mods: form.0, imm: form.1, ..inst };
        if let Some(c) = &self.c {
            made.c = lower.src(c.operand, Ty::U32)?;
        }
        Ok(made)
    }

    fn negative(&self) -> bool {
        self.a.negative || self.b.negative || self.c.as_ref().is_some_and(|c| c.negative)
    }
}

fn one<'a>(lower: &mut Lower<'_, 'a>, mods: &mut Mods, op: Op, flags: u32, operands: &Operands<'_, 'a>) -> Lowering {
    let mut flags = flags;
    if matches!(op, Op::Shl | Op::Shr) {
        match mods.one_of(&["clamp", "wrap"]) {
            Some(0) => {}
            Some(_) => flags |= flag::WRAP,
            None => return refuse("whether a shift wraps is missing"),
        }
        if flags & flag::B_SIGNED != 0 {
            return refuse("the distance of a shift has no sign");
        }
    }
    let named = mods.one_of(&["add", "min", "max"]).map(|at| [Second::Add, Second::Min, Second::Max][at]);
    let second = match (named, operands.d.selector) {
        (Some(second), None) => second,
        (None, Some(_)) => Second::Merge,
        (None, None) => Second::Nothing,
        (Some(_), Some(_)) => return refuse("a result is either merged or used further"),
    };
    if (second == Second::Nothing) != operands.c.is_none() || operands.negative() {
        return refuse("the number of operands is wrong");
    }
    let (a, b, d) = (operands.a.part()?, operands.b.part()?, operands.d.part()?);
    let form = Form { op, second, flags, a, b, d };
    let inst = operands.inst(lower, form.packed(), Inst::new(exec::<Video>()))?;
    lower.emit(inst);
    Ok(())
}

fn multiply<'a>(lower: &mut Lower<'_, 'a>, mods: &mut Mods, flags: u32, operands: &Operands<'_, 'a>) -> Lowering {
    let mut flags = flags;
    match mods.one_of(&["shr7", "shr15"]) {
        Some(0) => flags |= flag::SHIFT_7,
        Some(_) => flags |= flag::SHIFT_15,
        None => {}
    }
    let Some(c) = &operands.c else { return refuse("the number of operands is wrong") };
    if mods.has("po") {
        flags |= flag::PLUS_ONE;
    }
    if operands.a.negative != operands.b.negative {
        flags |= flag::NEGATE_PRODUCT;
    }
    if c.negative {
        flags |= flag::NEGATE_C;
    }
    let negated = flags & (flag::NEGATE_PRODUCT | flag::NEGATE_C);
    if negated.count_ones() > 1 || negated != 0 && flags & flag::PLUS_ONE != 0 || operands.d.selector.is_some() {
        return refuse("no more than one of product, sum and one more can be changed");
    }
    let (a, b) = (operands.a.part()?, operands.b.part()?);
    let form = Form { op: Op::Mad, second: Second::Nothing, flags, a, b, d: Part::WHOLE };
    let inst = operands.inst(lower, form.packed(), Inst::new(exec::<Video>()))?;
    lower.emit(inst);
    Ok(())
}

fn several<'a>(
    lower: &mut Lower<'_, 'a>,
    mods: &mut Mods,
    op: Op,
    flags: u32,
    count: u32,
    operands: &Operands<'_, 'a>,
) -> Lowering {
    if operands.c.is_none() || operands.negative() {
        return refuse("the number of operands is wrong");
    }
    let chosen = |of: &Chosen<'_, 'a>, first: u32| match of.numbers(count, 2 * count)? {
        None => Ok((0..count).fold(0, |all, index| all | (first + index) << (4 * index))),
        Some(numbers) if numbers.len() == count as usize => {
            Ok(numbers.iter().enumerate().fold(0, |all, (index, number)| all | number << (4 * index)))
        }
        Some(_) => refuse("a selector names as many parts as there are"),
    };
    let mask = operands.d.numbers(count, count)?;
    let elements = Elements {
        op,
        flags,
        accumulate: mods.has("add"),
        count,
        a: chosen(&operands.a, 0)?,
        b: chosen(&operands.b, count)?,
        mask: mask.map_or((1 << count) - 1, |numbers| numbers.iter().fold(0, |all, number| all | 1 << number)),
    };
    let inst = operands.inst(lower, elements.packed(), Inst::new(exec::<VideoElements>()))?;
    lower.emit(inst);
    Ok(())
}
