//! The syntax tree. Names borrow from the PTX text.

use super::Ty;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    Internal,
    Visible,
    Weak,
    Common,
    Extern,
}

/// State spaces a variable can be declared in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VarSpace {
    Global,
    Const,
    Shared,
    Local,
    Param,
    /// A `.reg` parameter of a function.
    Reg,
}

#[derive(Debug, Clone)]
pub struct Module<'a> {
    /// 84 for `.version 8.4`.
    pub version: u32,
    /// 80 for `.target sm_80`.
    pub target: u32,
    pub vars: Vec<Var<'a>>,
    pub functions: Vec<Function<'a>>,
    /// `.alias name, aliasee`
    pub aliases: Vec<(&'a str, &'a str)>,
}

#[derive(Debug, Clone)]
pub struct Var<'a> {
    pub name: &'a str,
    pub space: VarSpace,
    pub linkage: Linkage,
    /// The host uses it, too.
    pub managed: bool,
    pub ty: Ty,
    pub align: u32,
    /// In bytes; 0 for an array without a size.
    pub size: u64,
    pub init: Init<'a>,
}

/// An initialiser: bytes, and places in them that take an address.
#[derive(Debug, Clone, Default)]
pub struct Init<'a> {
    pub bytes: Vec<u8>,
    pub relocations: Vec<Relocation<'a>>,
}

#[derive(Debug, Clone)]
pub struct Relocation<'a> {
    pub offset: u64,
    pub size: u32,
    /// The address is shifted right by this many bits first, for `0xff00(symbol)`.
    pub shift: u32,
    pub symbol: &'a str,
    pub addend: i64,
}

#[derive(Debug, Clone)]
pub struct Function<'a> {
    pub name: &'a str,
    pub entry: bool,
    pub linkage: Linkage,
    pub returns: Vec<Var<'a>>,
    pub params: Vec<Var<'a>>,
    pub maxntid: Option<[u32; 3]>,
    /// `.minnctapersm` and `.maxnreg`.
    pub min_blocks: Option<u32>,
    pub max_registers: Option<u32>,
    pub reqntid: Option<[u32; 3]>,
    pub body: Option<Body<'a>>,
}

#[derive(Debug, Clone, Default)]
pub struct Body<'a> {
    /// The type of every virtual register used.
    pub regs: Vec<Ty>,
    /// Variables declared inside, after the function's returns and params.
    pub vars: Vec<Var<'a>>,
    pub instrs: Vec<Instr<'a>>,
    /// For each label the index of the instruction it stands before.
    pub labels: Vec<usize>,
    /// `.branchtargets` lists by name.
    pub branch_targets: Vec<(&'a str, Vec<u32>)>,
}

#[derive(Debug, Clone)]
pub struct Instr<'a> {
    /// The guard predicate's register, and whether it is negated.
    pub guard: Option<(u32, bool)>,
    pub op: &'a str,
    pub mods: Vec<&'a str>,
    pub operands: Vec<Operand<'a>>,
    pub line: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Operand<'a> {
    Reg(u32),
    /// An index into `Body::vars`.
    Var(u32),
    /// A label, by index into `Body::labels`.
    Label(u32),
    /// A module-scope variable or function.
    Symbol(&'a str),
    /// A special register, `%tid.x`.
    Special(&'a str, &'a str),
    Int(i64),
    F32(u32),
    F64(u64),
    /// `{a, b}`
    Vector(Vec<Operand<'a>>),
    /// `(a, b)` of a call
    List(Vec<Operand<'a>>),
    /// `[base + offset]`; the base may be `Int` for an absolute address.
    Address(Box<Operand<'a>>, i64),
    /// `!p`
    Not(Box<Operand<'a>>),
    /// `-r`
    Negative(Box<Operand<'a>>),
    /// A part of a register, `r.b0`
    Part(Box<Operand<'a>>, &'a str),
    /// `p|q`
    Pair(Box<Operand<'a>>, Box<Operand<'a>>),
    /// `_`
    Sink,
}
