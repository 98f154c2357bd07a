//! The parser of function bodies (ISA 4.3). It resolves names in statements to registers, variables and labels.

use std::collections::HashMap;

use super::ast::{Body, Instr, Linkage, Operand, Var, VarSpace};
use super::declaration::{constant, space, variables};
use super::lexer::{Cursor, Token, describe};
use super::{SyntaxError, Ty};

const MAX_SCOPES: usize = 64;
const MAX_REGISTERS: usize = 1 << 20;
const MAX_NESTING: usize = 8;

/// The names that are declared in one `{ }` block.
#[derive(Default)]
struct Scope<'a> {
    regs: HashMap<&'a str, u32>,
    /// The ranges of registers, such as `%r<10>`: number and type by prefix. A register is created when it is first
    /// named.
    ranges: HashMap<&'a str, (u64, Ty)>,
    vars: HashMap<&'a str, u32>,
    labels: HashMap<&'a str, u32>,
    /// The names that were used before their declaration: labels further down, or module-scope symbols.
    pending: Vec<(&'a str, Place)>,
}

/// The place of an operand whose name is not resolved yet.
#[derive(Clone, Copy)]
enum Place {
    Operand(usize, usize),
    Target(usize, usize),
}

pub struct BodyParser<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    body: Body<'a>,
    scopes: Vec<Scope<'a>>,
}

impl<'c, 'a> BodyParser<'c, 'a> {
    /// Parses a body after its opening brace. `formals` are the returns and parameters, which are visible in the body.
    pub fn parse(cursor: &'c mut Cursor<'a>, formals: &[&Var<'a>]) -> Result<Body<'a>, SyntaxError> {
        let mut parser = BodyParser { cursor, body: Body::default(), scopes: vec![Scope::default()] };
        for formal in formals {
            let index = parser.body.vars.len() as u32;
            parser.body.vars.push((*formal).clone());
            if formal.space == VarSpace::Reg {
                let reg = parser.new_reg(formal.ty)?;
                parser.scope().regs.insert(formal.name, reg);
            } else {
                parser.scope().vars.insert(formal.name, index);
            }
        }
        while !parser.scopes.is_empty() {
            parser.statement()?;
        }
        Ok(parser.body)
    }

    fn scope(&mut self) -> &mut Scope<'a> {
        self.scopes.last_mut().expect("a statement is inside a scope")
    }

    fn new_reg(&mut self, ty: Ty) -> Result<u32, SyntaxError> {
        if self.body.regs.len() >= MAX_REGISTERS {
            return self.cursor.error("a function has too many registers");
        }
        self.body.regs.push(ty);
        Ok(self.body.regs.len() as u32 - 1)
    }

    fn statement(&mut self) -> Result<(), SyntaxError> {
        match self.cursor.peek() {
            Token::Punct(b'{') => {
                self.cursor.advance()?;
                if self.scopes.len() >= MAX_SCOPES {
                    return self.cursor.error("blocks are nested too deeply");
                }
                self.scopes.push(Scope::default());
                Ok(())
            }
            Token::Punct(b'}') => {
                self.cursor.advance()?;
                self.close_scope();
                Ok(())
            }
            Token::Punct(b';') => self.cursor.advance().map(drop),
            Token::Dot(name) => self.directive(name, None),
            Token::Punct(b'@') | Token::Ident(_) => self.label_or_instruction(),
            other => self.cursor.error(format!("expected a statement, found {}", describe(other))),
        }
    }

    fn directive(&mut self, name: &'a str, label: Option<&'a str>) -> Result<(), SyntaxError> {
        let line = self.cursor.line();
        self.cursor.advance()?;
        match name {
            "reg" => self.registers(),
            "loc" => self.cursor.skip_line(line),
            "branchtargets" => self.branch_targets(label.unwrap_or_default()),
            "pragma" | "callprototype" | "calltargets" => self.cursor.skip_statement(),
            _ => match space(name) {
                Some(space) => {
                    let first = self.body.vars.len();
                    variables(self.cursor, space, Linkage::Internal, &mut self.body.vars)?;
                    for index in first..self.body.vars.len() {
                        let name = self.body.vars[index].name;
                        self.scope().vars.insert(name, index as u32);
                    }
                    self.cursor.expect(b';')
                }
                None => self.cursor.error(format!("'.{name}' is not known inside a function")),
            },
        }
    }

    fn registers(&mut self) -> Result<(), SyntaxError> {
        let name = self.cursor.dot()?;
        let Some(ty) = Ty::parse(name) else {
            return self.cursor.error(format!("'.{name}' is not a register type"));
        };
        loop {
            let name = self.cursor.ident()?;
            if self.cursor.accept(b'<')? {
                let count = self.cursor.int()?;
                self.cursor.expect(b'>')?;
                self.scope().ranges.insert(name, (count, ty));
            } else {
                let reg = self.new_reg(ty)?;
                self.scope().regs.insert(name, reg);
            }
            if !self.cursor.accept(b',')? {
                return self.cursor.expect(b';');
            }
        }
    }

    fn branch_targets(&mut self, name: &'a str) -> Result<(), SyntaxError> {
        let list = self.body.branch_targets.len();
        let mut count = 0;
        loop {
            let target = self.cursor.ident()?;
            self.scope().pending.push((target, Place::Target(list, count)));
            count += 1;
            if !self.cursor.accept(b',')? {
                break;
            }
        }
        self.body.branch_targets.push((name, vec![u32::MAX; count]));
        self.cursor.expect(b';')
    }

    fn close_scope(&mut self) {
        let Some(scope) = self.scopes.pop() else { return };
        for (name, place) in scope.pending {
            match (scope.labels.get(name), place) {
                (Some(&label), Place::Operand(instr, operand)) => {
                    self.body.instrs[instr].operands[operand] = Operand::Label(label);
                }
                (Some(&label), Place::Target(list, index)) => self.body.branch_targets[list].1[index] = label,
                (None, _) => {
                    if let Some(outer) = self.scopes.last_mut() {
                        outer.pending.push((name, place));
                    }
                }
            }
        }
    }

    fn label_or_instruction(&mut self) -> Result<(), SyntaxError> {
        let line = self.cursor.line();
        let guard = self.guard()?;
        let op = self.cursor.ident()?;
        if guard.is_none() && self.cursor.accept(b':')? {
            if let Token::Dot(name @ ("branchtargets" | "callprototype" | "calltargets")) = self.cursor.peek() {
                return self.directive(name, Some(op));
            }
            let label = self.body.labels.len() as u32;
            self.body.labels.push(self.body.instrs.len());
            self.scope().labels.insert(op, label);
            return Ok(());
        }
        let mut mods = Vec::new();
        while let Token::Dot(name) = self.cursor.peek() {
            mods.push(name);
            self.cursor.advance()?;
        }
        let mut operands = Vec::new();
        while self.cursor.peek() != Token::Punct(b';') {
            let operand = self.operand(0)?;
            if let Operand::Symbol(name) = operand {
                let place = Place::Operand(self.body.instrs.len(), operands.len());
                self.scope().pending.push((name, place));
            }
            operands.push(operand);
            if !self.cursor.accept(b',')? {
                break;
            }
        }
        self.cursor.expect(b';')?;
        self.body.instrs.push(Instr { guard, op, mods, operands, line });
        Ok(())
    }

    fn guard(&mut self) -> Result<Option<(u32, bool)>, SyntaxError> {
        if !self.cursor.accept(b'@')? {
            return Ok(None);
        }
        let negated = self.cursor.accept(b'!')?;
        let name = self.cursor.ident()?;
        match self.register(name)? {
            Some(reg) if self.body.regs[reg as usize] == Ty::Pred => Ok(Some((reg, negated))),
            _ => self.cursor.error(format!("'{name}' is not a predicate")),
        }
    }

    /// Returns the register `name`, or `None` if no register has this name.
    fn register(&mut self, name: &'a str) -> Result<Option<u32>, SyntaxError> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: Option<u64> = name[prefix.len()..].parse().ok();
        for depth in (0..self.scopes.len()).rev() {
            let scope = &self.scopes[depth];
            if let Some(&reg) = scope.regs.get(name) {
                return Ok(Some(reg));
            }
            if scope.vars.contains_key(name) {
                return Ok(None);
            }
            if let (Some(&(count, ty)), Some(number)) = (scope.ranges.get(prefix), number)
                && number < count
            {
                let reg = self.new_reg(ty)?;
                self.scopes[depth].regs.insert(name, reg);
                return Ok(Some(reg));
            }
        }
        Ok(None)
    }

    fn named(&mut self, name: &'a str) -> Result<Operand<'a>, SyntaxError> {
        if let Some(reg) = self.register(name)? {
            return Ok(Operand::Reg(reg));
        }
        if let Some(&var) = self.scopes.iter().rev().find_map(|scope| scope.vars.get(name)) {
            return Ok(Operand::Var(var));
        }
        match name {
            "_" => Ok(Operand::Sink),
            "WARP_SZ" => Ok(Operand::Int(32)),
            _ if name.starts_with('%') => {
                let part = if let Token::Dot(part) = self.cursor.peek() {
                    self.cursor.advance()?;
                    part
                } else {
                    ""
                };
                Ok(Operand::Special(name, part))
            }
            _ => Ok(Operand::Symbol(name)),
        }
    }

    fn operand(&mut self, depth: usize) -> Result<Operand<'a>, SyntaxError> {
        if depth > MAX_NESTING {
            return self.cursor.error("an operand is nested too deeply");
        }
        match self.cursor.peek() {
            Token::Punct(b'[') => {
                self.cursor.advance()?;
                self.address(depth)
            }
            Token::Punct(b'{') => {
                self.cursor.advance()?;
                Ok(Operand::Vector(self.list(b'}', depth)?))
            }
            Token::Punct(b'(') => {
                self.cursor.advance()?;
                Ok(Operand::List(self.list(b')', depth)?))
            }
            Token::Punct(b'!') => {
                self.cursor.advance()?;
                Ok(Operand::Not(Box::new(self.operand(depth + 1)?)))
            }
            Token::Ident(name) if name != "WARP_SZ" => {
                self.cursor.advance()?;
                let first = self.named(name)?;
                if let (Operand::Reg(_), Token::Dot(part)) = (&first, self.cursor.peek()) {
                    self.cursor.advance()?;
                    return Ok(Operand::Part(Box::new(first), part));
                }
                if self.cursor.accept(b'|')? {
                    let second = self.operand(depth + 1)?;
                    return Ok(Operand::Pair(Box::new(first), Box::new(second)));
                }
                if matches!(first, Operand::Symbol(_) | Operand::Var(_)) {
                    let offset = self.offset()?;
                    if offset != 0 {
                        return Ok(Operand::Address(Box::new(first), offset));
                    }
                }
                Ok(first)
            }
            _ => self.number(depth),
        }
    }

    fn number(&mut self, depth: usize) -> Result<Operand<'a>, SyntaxError> {
        let negative = self.cursor.accept(b'-')?;
        match self.cursor.peek() {
            Token::Ident(name) if negative && name != "WARP_SZ" => {
                Ok(Operand::Negative(Box::new(self.operand(depth + 1)?)))
            }
            Token::F32(bits) => {
                self.cursor.advance()?;
                Ok(Operand::F32(if negative { bits ^ 1 << 31 } else { bits }))
            }
            Token::F64(bits) => {
                self.cursor.advance()?;
                Ok(Operand::F64(if negative { bits ^ 1 << 63 } else { bits }))
            }
            _ => {
                let value = constant(self.cursor, 0)?;
                Ok(Operand::Int(if negative { value.wrapping_neg() } else { value }))
            }
        }
    }

    fn list(&mut self, close: u8, depth: usize) -> Result<Vec<Operand<'a>>, SyntaxError> {
        let mut items = Vec::new();
        while !self.cursor.accept(close)? {
            items.push(self.operand(depth + 1)?);
            if self.cursor.peek() != Token::Punct(close) {
                self.cursor.expect(b',')?;
            }
        }
        Ok(items)
    }

    fn offset(&mut self) -> Result<i64, SyntaxError> {
        match self.cursor.peek() {
            Token::Punct(b'+') => {
                self.cursor.advance()?;
                constant(self.cursor, 0)
            }
            Token::Punct(b'-') => constant(self.cursor, 0),
            _ => Ok(0),
        }
    }

    fn address(&mut self, depth: usize) -> Result<Operand<'a>, SyntaxError> {
        let base = match self.cursor.peek() {
            Token::Ident(name) if name != "WARP_SZ" => {
                self.cursor.advance()?;
                self.named(name)?
            }
            _ => Operand::Int(constant(self.cursor, 0)?),
        };
        let offset = self.offset()?;
        // The address is a texture with coordinates: `[tex, {x, y}]`, or with a sampler `[tex, sampler, {x, y}]`.
        if self.cursor.accept(b',')? {
            let mut parts = vec![base, self.operand(depth + 1)?];
            while self.cursor.accept(b',')? {
                parts.push(self.operand(depth + 1)?);
            }
            self.cursor.expect(b']')?;
            return Ok(Operand::List(parts));
        }
        self.cursor.expect(b']')?;
        Ok(Operand::Address(Box::new(base), offset))
    }
}
