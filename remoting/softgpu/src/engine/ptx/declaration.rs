//! The parser of variable declarations and initialisers (ISA 5.4).

use super::ast::{Init, Linkage, Relocation, Var, VarSpace};
use super::lexer::{Cursor, Token, describe};
use super::{SyntaxError, Ty};

/// The maximum size of a variable in bytes. A larger variable is refused.
const MAX_BYTES: u64 = 1 << 36;
const MAX_INIT_BYTES: usize = 256 << 20;
const MAX_NESTING: usize = 16;

pub fn space(name: &str) -> Option<VarSpace> {
    Some(match name {
        "global" => VarSpace::Global,
        "const" => VarSpace::Const,
        "shared" => VarSpace::Shared,
        "local" => VarSpace::Local,
        "param" => VarSpace::Param,
        "reg" => VarSpace::Reg,
        _ => return None,
    })
}

/// The part of a declaration between the state space and the name: type, vector size and alignment.
struct Shape {
    ty: Ty,
    align: u32,
    /// The number of elements in a `.v2` or `.v4` vector.
    vector: u64,
    managed: bool,
}

fn shape(cursor: &mut Cursor) -> Result<Shape, SyntaxError> {
    let (mut align, mut vector, mut managed) = (0, 1, false);
    loop {
        match cursor.dot()? {
            "align" => align = cursor.int()? as u32,
            "v2" => vector = 2,
            "v4" => vector = 4,
            "ptr" => skip_pointer_hints(cursor)?,
            "attribute" => {
                cursor.expect(b'(')?;
                while !cursor.accept(b')')? {
                    match cursor.advance()? {
                        Token::End => return cursor.error("an attribute is not closed"),
                        token => managed |= token == Token::Dot("managed"),
                    }
                }
            }
            name => match Ty::parse(name) {
                Some(ty) => {
                    let natural = (u64::from(ty.bytes().max(1)) * vector) as u32;
                    let align = if align == 0 { natural } else { align };
                    if !align.is_power_of_two() || align > 1 << 16 {
                        return cursor.error(format!("{align} is not an alignment"));
                    }
                    return Ok(Shape { ty, align, vector, managed });
                }
                None => return cursor.error(format!("'.{name}' is not a type")),
            },
        }
    }
}

fn skip_pointer_hints(cursor: &mut Cursor) -> Result<(), SyntaxError> {
    loop {
        match cursor.peek() {
            Token::Dot("global" | "const" | "shared" | "local") => {
                cursor.advance()?;
            }
            Token::Dot("align") => {
                cursor.advance()?;
                cursor.int()?;
            }
            _ => return Ok(()),
        }
    }
}

/// Parses a declaration after its state space: type, names, dimensions and initialisers. All declared variables are
/// added.
pub fn variables<'a>(
    cursor: &mut Cursor<'a>,
    space: VarSpace,
    linkage: Linkage,
    out: &mut Vec<Var<'a>>,
) -> Result<(), SyntaxError> {
    let mut shape = shape(cursor)?;
    // The hints may follow the type, as in `.param .u64 .ptr .global .align 4 name`.
    if cursor.accept_dot("ptr")? {
        skip_pointer_hints(cursor)?;
    }
    if let Token::Dot("v2" | "v4") = cursor.peek() {
        shape.vector = if cursor.dot()? == "v2" { 2 } else { 4 };
    }
    loop {
        let name = cursor.ident()?;
        let element = u64::from(shape.ty.bytes()) * shape.vector;
        let (mut size, mut sized) = (element, true);
        while cursor.accept(b'[')? {
            if cursor.accept(b']')? {
                sized = false;
                continue;
            }
            let count = constant(cursor, 0)?;
            cursor.expect(b']')?;
            size = match u64::try_from(count).ok().and_then(|count| size.checked_mul(count)) {
                Some(size) if size <= MAX_BYTES => size,
                _ => return cursor.error(format!("'{name}' is too large")),
            };
        }
        let mut init = Init::default();
        if cursor.accept(b'=')? {
            initializer(cursor, shape.ty, &mut init, 0)?;
            if !sized {
                size = init.bytes.len() as u64;
                sized = true;
            }
            if init.bytes.len() as u64 > size {
                return cursor.error(format!("'{name}' has more initialisers than elements"));
            }
        }
        out.push(Var {
            name,
            space,
            linkage,
            managed: shape.managed,
            ty: shape.ty,
            align: shape.align,
            size: if sized { size } else { 0 },
            init,
        });
        if space == VarSpace::Param || space == VarSpace::Reg || !cursor.accept(b',')? {
            return Ok(());
        }
    }
}

/// Parses an integer constant: numbers with + and - between them, which may be negated or in parentheses.
pub fn constant(cursor: &mut Cursor, depth: usize) -> Result<i64, SyntaxError> {
    let mut value = constant_term(cursor, depth)?;
    loop {
        if cursor.accept(b'+')? {
            value = value.wrapping_add(constant_term(cursor, depth)?);
        } else if cursor.accept(b'-')? {
            value = value.wrapping_sub(constant_term(cursor, depth)?);
        } else if cursor.accept(b'*')? {
            value = value.wrapping_mul(constant_term(cursor, depth)?);
        } else {
            return Ok(value);
        }
    }
}

fn constant_term(cursor: &mut Cursor, depth: usize) -> Result<i64, SyntaxError> {
    if depth > MAX_NESTING {
        return cursor.error("a constant is nested too deeply");
    }
    if cursor.accept(b'-')? {
        return Ok(constant_term(cursor, depth + 1)?.wrapping_neg());
    }
    if cursor.accept(b'~')? {
        return Ok(!constant_term(cursor, depth + 1)?);
    }
    if cursor.accept(b'(')? {
        let value = constant(cursor, depth + 1)?;
        cursor.expect(b')')?;
        return Ok(value);
    }
    match cursor.advance()? {
        Token::Int(value) => Ok(value as i64),
        Token::Ident("WARP_SZ") => Ok(32),
        other => cursor.error(format!("expected a constant, found {}", describe(other))),
    }
}

fn initializer<'a>(cursor: &mut Cursor<'a>, ty: Ty, init: &mut Init<'a>, depth: usize) -> Result<(), SyntaxError> {
    if depth > MAX_NESTING || init.bytes.len() > MAX_INIT_BYTES {
        return cursor.error("an initialiser is too large");
    }
    if cursor.accept(b'{')? {
        while !cursor.accept(b'}')? {
            initializer(cursor, ty, init, depth + 1)?;
            if cursor.peek() != Token::Punct(b'}') {
                cursor.expect(b',')?;
            }
        }
        return Ok(());
    }
    element(cursor, ty, init)
}

fn element<'a>(cursor: &mut Cursor<'a>, ty: Ty, init: &mut Init<'a>) -> Result<(), SyntaxError> {
    let size = ty.bytes() as usize;
    let negative = cursor.accept(b'-')?;
    let bits = match cursor.peek() {
        Token::F32(bits) => {
            cursor.advance()?;
            let bits = if negative { bits ^ 1 << 31 } else { bits };
            if ty == Ty::F64 { f64::from(f32::from_bits(bits)).to_bits() } else { u64::from(bits) }
        }
        Token::F64(bits) => {
            cursor.advance()?;
            let value = if negative { -f64::from_bits(bits) } else { f64::from_bits(bits) };
            if ty == Ty::F32 { u64::from((value as f32).to_bits()) } else { value.to_bits() }
        }
        Token::Ident(name) if name != "WARP_SZ" => {
            let offset = init.bytes.len() as u64;
            init.bytes.resize(init.bytes.len() + size, 0);
            let relocation = address(cursor, offset, size as u32)?;
            init.relocations.push(relocation);
            return Ok(());
        }
        _ => {
            let value = constant(cursor, 0)?;
            if cursor.accept(b'(')? {
                let offset = init.bytes.len() as u64;
                init.bytes.resize(init.bytes.len() + size, 0);
                let mut relocation = address(cursor, offset, size as u32)?;
                relocation.shift = (value as u64).trailing_zeros() & 63;
                init.relocations.push(relocation);
                return cursor.expect(b')');
            }
            let value = if negative { value.wrapping_neg() } else { value };
            match ty {
                Ty::F32 => u64::from((value as f32).to_bits()),
                Ty::F64 => (value as f64).to_bits(),
                _ => value as u64,
            }
        }
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&bits.to_le_bytes());
    init.bytes.extend_from_slice(&bytes[..size]);
    Ok(())
}

/// Parses `symbol + 4` or `generic(symbol) + 4`. The caller parses the byte masks, such as `0xff00(symbol)`.
fn address<'a>(cursor: &mut Cursor<'a>, offset: u64, size: u32) -> Result<Relocation<'a>, SyntaxError> {
    let mut symbol = cursor.ident()?;
    if symbol == "generic" && cursor.accept(b'(')? {
        symbol = cursor.ident()?;
        cursor.expect(b')')?;
    }
    let addend = match cursor.peek() {
        Token::Punct(b'+') => {
            cursor.advance()?;
            constant(cursor, 0)?
        }
        Token::Punct(b'-') => constant(cursor, 0)?,
        _ => 0,
    };
    Ok(Relocation { offset, size, shift: 0, symbol, addend })
}
