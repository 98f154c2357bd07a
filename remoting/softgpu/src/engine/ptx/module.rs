//! The parser of module-scope directives (ISA 11).

use super::ast::{Function, Linkage, Module, Var, VarSpace};
use super::body::BodyParser;
use super::declaration::{space, variables};
use super::lexer::{Cursor, Token, describe};
use super::{SyntaxError, Ty};

/// Parses one PTX unit.
pub fn parse(text: &str) -> Result<Module<'_>, SyntaxError> {
    let mut cursor = Cursor::new(text)?;
    let cursor = &mut cursor;
    let mut module = Module { version: 0, target: 0, vars: Vec::new(), functions: Vec::new(), aliases: Vec::new() };
    loop {
        match cursor.peek() {
            Token::End => break,
            Token::Dot(_) => directive(cursor, &mut module)?,
            Token::Punct(b';') => cursor.advance().map(drop)?,
            other => return cursor.error(format!("expected a directive, found {}", describe(other))),
        }
    }
    if module.version == 0 {
        return cursor.error("there is no '.version'");
    }
    Ok(module)
}

fn directive<'a>(cursor: &mut Cursor<'a>, module: &mut Module<'a>) -> Result<(), SyntaxError> {
    let line = cursor.line();
    let mut linkage = Linkage::Internal;
    loop {
        let name = cursor.dot()?;
        match name {
            "visible" => linkage = Linkage::Visible,
            "weak" => linkage = Linkage::Weak,
            "extern" => linkage = Linkage::Extern,
            "common" => linkage = Linkage::Common,
            "version" => return version(cursor, module),
            "target" => return target(cursor, module),
            "address_size" => {
                return match cursor.int()? {
                    64 => Ok(()),
                    other => cursor.error(format!("{other}-bit addresses are not supported")),
                };
            }
            "file" | "loc" => return cursor.skip_line(line),
            "pragma" => return cursor.skip_statement(),
            "section" => {
                while cursor.advance()? != Token::Punct(b'{') {
                    if cursor.peek() == Token::End {
                        return cursor.error("a section has no body");
                    }
                }
                return cursor.skip_block();
            }
            "alias" => {
                let name = cursor.ident()?;
                cursor.expect(b',')?;
                let aliasee = cursor.ident()?;
                module.aliases.push((name, aliasee));
                return cursor.expect(b';');
            }
            "entry" | "func" => {
                let function = function(cursor, name == "entry", linkage)?;
                module.functions.push(function);
                return Ok(());
            }
            _ => {
                return match space(name) {
                    Some(space @ (VarSpace::Global | VarSpace::Const | VarSpace::Shared)) => {
                        variables(cursor, space, linkage, &mut module.vars)?;
                        cursor.expect(b';')
                    }
                    _ => cursor.error(format!("'.{name}' is not known at module scope")),
                };
            }
        }
    }
}

fn version(cursor: &mut Cursor, module: &mut Module) -> Result<(), SyntaxError> {
    // The lexer reads "8.4" as one token, a decimal fraction.
    module.version = match cursor.advance()? {
        Token::F64(bits) => (f64::from_bits(bits) * 10.0).round() as u32,
        Token::Int(major) => (major as u32).saturating_mul(10),
        other => return cursor.error(format!("expected a version, found {}", describe(other))),
    };
    Ok(())
}

fn target(cursor: &mut Cursor, module: &mut Module) -> Result<(), SyntaxError> {
    loop {
        let name = cursor.ident()?;
        if let Some(arch) = name.strip_prefix("sm_") {
            let digits = arch.trim_end_matches(|c: char| c.is_ascii_lowercase());
            match digits.parse() {
                Ok(number) => module.target = number,
                Err(_) => return cursor.error(format!("'{name}' is not a target")),
            }
        }
        if !cursor.accept(b',')? {
            return Ok(());
        }
    }
}

fn function<'a>(cursor: &mut Cursor<'a>, entry: bool, linkage: Linkage) -> Result<Function<'a>, SyntaxError> {
    // The hints in `.func .attribute(...)` do not change the function's result.
    if cursor.accept_dot("attribute")? {
        while cursor.advance()? != Token::Punct(b')') {
            if cursor.peek() == Token::End {
                return cursor.error("an attribute is not closed");
            }
        }
    }
    let mut returns = Vec::new();
    if cursor.accept(b'(')? {
        formals(cursor, &mut returns)?;
    }
    let name = cursor.ident()?;
    let mut params = Vec::new();
    if cursor.accept(b'(')? {
        formals(cursor, &mut params)?;
    }
    let mut function = Function {
        name,
        entry,
        linkage,
        returns,
        params,
        maxntid: None,
        min_blocks: None,
        max_registers: None,
        reqntid: None,
        body: None,
    };
    loop {
        match cursor.advance()? {
            Token::Punct(b';') => return Ok(function),
            Token::Punct(b'{') => break,
            Token::Dot("maxntid") => function.maxntid = Some(extent(cursor)?),
            Token::Dot("minnctapersm") => function.min_blocks = Some(extent(cursor)?[0]),
            Token::Dot("maxnreg") => function.max_registers = Some(extent(cursor)?[0]),
            Token::Dot("reqntid") => function.reqntid = Some(extent(cursor)?),
            Token::Dot("pragma") => cursor.skip_statement()?,
            Token::Dot(_) => skip_arguments(cursor)?,
            other => return cursor.error(format!("expected a function body, found {}", describe(other))),
        }
    }
    let visible: Vec<&Var<'a>> = function.returns.iter().chain(&function.params).collect();
    function.body = Some(BodyParser::parse(cursor, &visible)?);
    Ok(function)
}

/// Skips the numbers after a directive, such as `.noreturn`, `.maxnctapersm 1` or `.reqnctapercluster 1, 1, 1`.
fn skip_arguments(cursor: &mut Cursor) -> Result<(), SyntaxError> {
    while let Token::Int(_) | Token::Punct(b',') = cursor.peek() {
        cursor.advance()?;
    }
    Ok(())
}

fn extent(cursor: &mut Cursor) -> Result<[u32; 3], SyntaxError> {
    let mut extent = [1; 3];
    for (index, slot) in extent.iter_mut().enumerate() {
        if index > 0 && !cursor.accept(b',')? {
            break;
        }
        *slot = u32::try_from(cursor.int()?).unwrap_or(u32::MAX);
    }
    Ok(extent)
}

fn formals<'a>(cursor: &mut Cursor<'a>, out: &mut Vec<Var<'a>>) -> Result<(), SyntaxError> {
    while !cursor.accept(b')')? {
        let name = cursor.dot()?;
        let Some(space @ (VarSpace::Param | VarSpace::Reg)) = space(name) else {
            return cursor.error(format!("'.{name}' is not a parameter space"));
        };
        variables(cursor, space, Linkage::Internal, out)?;
        if out.last().is_some_and(|var| space == VarSpace::Reg && var.ty == Ty::Pred && var.size > 0) {
            return cursor.error("a parameter cannot be a predicate");
        }
        if cursor.peek() != Token::Punct(b')') {
            cursor.expect(b',')?;
        }
    }
    Ok(())
}
