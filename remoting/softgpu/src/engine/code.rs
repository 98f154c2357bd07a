//! The decoded form of a program: what the compiler produces and the interpreter runs.

use super::exec::{Block, Slot};

/// The interpreter's next step after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    Next,
    /// The handler has set the pc.
    Jump,
    /// The current group ended or waits.
    Switch,
    /// Like `Jump`, and other warps should get a turn.
    Yield,
    /// The handler has recorded a fault.
    Fault,
}

/// The functions that execute an instruction.
#[derive(Debug, Clone, Copy)]
pub struct Exec {
    /// For the lanes of the mask of the running warp.
    pub warp: unsafe fn(&mut Block, &Inst, u32) -> Step,
    /// For all threads of a block that runs in step.
    pub block: fn(&mut Block, &Inst) -> Step,
    /// For the work that `block` leaves, lane by lane.
    pub rows: unsafe fn(&mut Block, &Inst) -> Step,
}

/// An operand that is not there.
pub const NONE: u32 = u32::MAX;
/// Set in an operand that names a slot of the constant pool instead of a register.
pub const CONST: u32 = 1 << 31;
/// Set in a predicate operand that is to be negated.
pub const NOT: u32 = 1 << 30;

/// One instruction. Before register allocation operands are virtual registers, afterwards slots of the frame.
#[derive(Clone)]
pub struct Inst {
    pub exec: Exec,
    /// Destinations.
    pub d: u32,
    pub d2: u32,
    /// Sources.
    pub a: u32,
    pub b: u32,
    pub c: u32,
    pub e: u32,
    /// A predicate operand, or `NONE`.
    pub guard: u32,
    /// Further destinations and sources, of instructions on vectors.
    pub targets: List,
    pub sources: List,
    pub mods: u32,
    /// An address offset, a branch target, or whatever the handler takes.
    pub imm: i64,
}

impl Inst {
    pub fn new(exec: Exec) -> Inst {
        Inst {
            exec,
            d: NONE,
            d2: NONE,
            a: NONE,
            b: NONE,
            c: NONE,
            e: NONE,
            guard: NONE,
            targets: List::default(),
            sources: List::default(),
            mods: 0,
            imm: 0,
        }
    }
}

/// A stretch of `Code::lists`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct List {
    pub start: u32,
    pub len: u32,
}

impl List {
    pub fn of(self, lists: &[u32]) -> &[u32] {
        &lists[self.start as usize..(self.start + self.len) as usize]
    }
}

/// A function of the program.
#[derive(Debug, Clone)]
pub struct FunctionInfo {
    pub name: String,
    pub entry_pc: u32,
    /// Register slots and predicates of a frame.
    pub slots: u32,
    pub preds: u32,
    /// Local memory of a frame, a multiple of 16.
    pub local_bytes: u32,
    /// Places of the parameters and return values in the frame's local memory: (offset, size).
    pub params: Vec<(u32, u32)>,
    pub returns: Vec<(u32, u32)>,
}

/// A call site.
#[derive(Debug, Clone)]
pub struct CallSite {
    pub callee: Callee,
    /// The caller's copies of the arguments and return values in its frame's local memory: (offset, size).
    pub args: Vec<(u32, u32)>,
    pub returns: Vec<(u32, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callee {
    Function(u32),
    /// The address is in the instruction's operand `a`.
    Indirect,
}

/// Everything the interpreter needs besides constants.
#[derive(Default)]
pub struct Code {
    pub insts: Vec<Inst>,
    /// The source line of each instruction, for messages.
    pub lines: Vec<u32>,
    pub lists: Vec<u32>,
    /// Targets of indexed branches.
    pub tables: Vec<u32>,
    pub functions: Vec<FunctionInfo>,
    pub calls: Vec<CallSite>,
    /// Whether threads of a block wait for each other anywhere.
    pub barriers: bool,
    /// The alignment of the start of dynamic shared memory.
    pub dynamic_align: u32,
    /// Whether anything calls `malloc`.
    pub heap: bool,
}

/// The object that a constant's value depends on, besides its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    Global(u32),
    Function(u32),
}

/// A constant that holds an address: slot of the pool, and what it is the address of.
#[derive(Debug, Clone, Copy)]
pub struct PoolRelocation {
    pub slot: u32,
    pub target: Target,
    pub addend: i64,
}

/// Constants, each spread over all lanes so that handlers need not tell them from registers.
#[derive(Default, Clone)]
pub struct Pool {
    pub slots: Vec<Slot>,
    pub relocations: Vec<PoolRelocation>,
}

/// Starts of the address windows of the non-global spaces in the generic space, and of the one for functions.
/// User-space host addresses are below 2^57, so no window can be mistaken for device memory.
pub const SHARED_WINDOW: u64 = 1 << 58;
pub const LOCAL_WINDOW: u64 = 1 << 59;
pub const PARAM_WINDOW: u64 = 1 << 60;
pub const FUNCTION_WINDOW: u64 = 1 << 61;

/// The address of a function, as kernels see it.
pub fn function_address(index: u32) -> u64 {
    FUNCTION_WINDOW + u64::from(index) * 16
}

pub fn function_at(address: u64) -> Option<u32> {
    let offset = address.checked_sub(FUNCTION_WINDOW)?;
    (offset % 16 == 0).then_some((offset / 16).try_into().ok()?)
}
