//! The syntax tree. Names in the tree borrow from the PTX text.

use super::Ty;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    Internal,
    Visible,
    Weak,
    Common,
    Extern,
}

/// The state spaces in which a variable can be declared.
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
    /// The PTX version, such as 84 for `.version 8.4`.
    pub version: u32,
    /// The target architecture, such as 80 for `.target sm_80`.
    pub target: u32,
    pub vars: Vec<Var<'a>>,
    pub functions: Vec<Function<'a>>,
    /// The name and the aliasee of each `.alias` directive.
    pub aliases: Vec<(&'a str, &'a str)>,
}

#[derive(Debug, Clone)]
pub struct Var<'a> {
    pub name: &'a str,
    pub space: VarSpace,
    pub linkage: Linkage,
    /// Whether the host can use the variable too.
    pub managed: bool,
    pub ty: Ty,
    pub align: u32,
    /// The size in bytes, or 0 for an array without a size.
    pub size: u64,
    pub init: Init<'a>,
}

/// An initialiser: its bytes, and the places in them that contain an address.
#[derive(Debug, Clone, Default)]
pub struct Init<'a> {
    pub bytes: Vec<u8>,
    pub relocations: Vec<Relocation<'a>>,
}

#[derive(Debug, Clone)]
pub struct Relocation<'a> {
    pub offset: u64,
    pub size: u32,
    /// The number of bits by which the address is first shifted right, for `0xff00(symbol)`.
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
    /// The number in `.minnctapersm`. `max_registers` is the number in `.maxnreg`.
    pub min_blocks: Option<u32>,
    pub max_registers: Option<u32>,
    pub reqntid: Option<[u32; 3]>,
    pub body: Option<Body<'a>>,
}

#[derive(Debug, Clone, Default)]
pub struct Body<'a> {
    /// The type of each virtual register that is used.
    pub regs: Vec<Ty>,
    /// The function's returns, parameters and inner variables, in this order.
    pub vars: Vec<Var<'a>>,
    pub instrs: Vec<Instr<'a>>,
    /// For each label, the index of the instruction after the label.
    pub labels: Vec<usize>,
    /// The `.branchtargets` lists by name. A list contains labels.
    pub branch_targets: Vec<(&'a str, Vec<u32>)>,
}

#[derive(Debug, Clone)]
pub struct Instr<'a> {
    /// The register of the guard predicate, and whether the predicate is negated.
    pub guard: Option<(u32, bool)>,
    pub op: &'a str,
    pub mods: Vec<&'a str>,
    pub operands: Vec<Operand<'a>>,
    pub line: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Operand<'a> {
    Reg(u32),
    /// A variable, by index into `Body::vars`.
    Var(u32),
    /// A label, by index into `Body::labels`.
    Label(u32),
    /// A module-scope variable or function, by name.
    Symbol(&'a str),
    /// A special register, such as `%tid.x`.
    Special(&'a str, &'a str),
    Int(i64),
    F32(u32),
    F64(u64),
    /// A vector, such as `{a, b}`.
    Vector(Vec<Operand<'a>>),
    /// A list in a call, such as `(a, b)`.
    List(Vec<Operand<'a>>),
    /// An address, such as `[base + offset]`. The base may be `Int` for an absolute address.
    Address(Box<Operand<'a>>, i64),
    /// A negated predicate, such as `!p`.
    Not(Box<Operand<'a>>),
    /// A negated register, such as `-r`.
    Negative(Box<Operand<'a>>),
    /// A part of a register, such as `r.b0`.
    Part(Box<Operand<'a>>, &'a str),
    /// A pair of destinations, such as `p|q`.
    Pair(Box<Operand<'a>>, Box<Operand<'a>>),
    /// The destination `_`, which discards the result.
    Sink,
}
