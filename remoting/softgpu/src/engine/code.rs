//! The decoded form of a program, which the compiler produces and the interpreter runs.

use super::exec::{Block, Slot};

/// The interpreter's next step after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    Next,
    /// Continue at the pc that the handler has set.
    Jump,
    /// Choose another group, because the current one has ended or waits.
    Switch,
    /// Continue at the pc that the handler has set, after other warps have had a turn.
    Yield,
    /// Stop, because the handler has recorded a fault.
    Fault,
}

/// The functions that execute an instruction.
#[derive(Debug, Clone, Copy)]
pub struct Exec {
    /// Executes the instruction for the masked lanes of the running warp.
    pub warp: unsafe fn(&mut Block, &Inst, u32) -> Step,
    /// Executes the instruction for all threads of a block that runs in lockstep.
    pub block: fn(&mut Block, &Inst) -> Step,
    /// Executes the part of the work that `block` leaves, lane by lane.
    pub rows: unsafe fn(&mut Block, &Inst) -> Step,
}

/// The value of an operand that the instruction does not have.
pub const NONE: u32 = u32::MAX;
/// The flag of an operand that is a slot of the constant pool instead of a register.
pub const CONST: u32 = 1 << 31;
/// The flag of a predicate operand that is negated.
pub const NOT: u32 = 1 << 30;

/// An instruction. Its operands are virtual registers before register allocation, and slots of the frame afterwards.
#[derive(Clone)]
pub struct Inst {
    pub exec: Exec,
    /// The destination operands.
    pub d: u32,
    pub d2: u32,
    /// The source operands.
    pub a: u32,
    pub b: u32,
    pub c: u32,
    pub e: u32,
    /// The predicate operand that guards the instruction, or `NONE`.
    pub guard: u32,
    /// The other destinations and sources of an instruction on vectors.
    pub targets: List,
    pub sources: List,
    pub mods: u32,
    /// An address offset, a branch target or another number that the handler reads.
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

/// A part of `Code::lists`.
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
    /// The number of register slots in a frame. `preds` is the number of its predicates.
    pub slots: u32,
    pub preds: u32,
    /// The bytes of local memory in a frame, a multiple of 16.
    pub local_bytes: u32,
    /// The offset and size in bytes of each parameter, and below of each return value, in the frame's local memory.
    pub params: Vec<(u32, u32)>,
    pub returns: Vec<(u32, u32)>,
}

/// A call instruction's callee, arguments and return values.
#[derive(Debug, Clone)]
pub struct CallSite {
    pub callee: Callee,
    /// The offset and size in bytes of each argument, and below of each return value, in the caller's local memory.
    pub args: Vec<(u32, u32)>,
    pub returns: Vec<(u32, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callee {
    Function(u32),
    /// The callee's address is in the instruction's operand `a`.
    Indirect,
}

/// The decoded program without its constants.
#[derive(Default)]
pub struct Code {
    pub insts: Vec<Inst>,
    /// The source line of each instruction, for error messages.
    pub lines: Vec<u32>,
    pub lists: Vec<u32>,
    /// The targets of indexed branches.
    pub tables: Vec<u32>,
    pub functions: Vec<FunctionInfo>,
    pub calls: Vec<CallSite>,
    /// Whether an instruction of the program makes the threads of a block wait for each other.
    pub barriers: bool,
    /// The alignment in bytes of the start of dynamic shared memory.
    pub dynamic_align: u32,
    /// Whether the program calls `malloc`.
    pub heap: bool,
}

/// The variable or function whose address a constant contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    Global(u32),
    Function(u32),
}

/// A constant that contains an address: its slot in the pool, the addressed object and an offset.
#[derive(Debug, Clone, Copy)]
pub struct PoolRelocation {
    pub slot: u32,
    pub target: Target,
    pub addend: i64,
}

/// The constants. Each has its value in all lanes, so handlers can read it like a register.
#[derive(Default, Clone)]
pub struct Pool {
    pub slots: Vec<Slot>,
    pub relocations: Vec<PoolRelocation>,
}

/// The first generic address of shared memory. The constants below are those of local memory, parameters and functions.
/// Host addresses of programs are below 2^57, so these addresses differ from all addresses of device memory.
pub const SHARED_WINDOW: u64 = 1 << 58;
pub const LOCAL_WINDOW: u64 = 1 << 59;
pub const PARAM_WINDOW: u64 = 1 << 60;
pub const FUNCTION_WINDOW: u64 = 1 << 61;

/// Returns the address of a function as kernels see it.
pub fn function_address(index: u32) -> u64 {
    FUNCTION_WINDOW + u64::from(index) * 16
}

pub fn function_at(address: u64) -> Option<u32> {
    let offset = address.checked_sub(FUNCTION_WINDOW)?;
    (offset % 16 == 0).then_some((offset / 16).try_into().ok()?)
}
