//! Lowering one function: operands to registers and constants, statements to instructions with virtual registers.
//!
//! `function` goes through a body, has `decode` make each instruction, and then `flow` and `allocate` order the blocks
//! and replace virtual registers by slots; `builder` is the function under way, and `operands` are its operands. Called
//! by `link`, for one function at a time. It knows no opcode: `decode` does.

mod builder;
mod function;
mod operands;

pub use builder::{Lower, Lowering, Place, Refuse, double, refuse};
pub use function::{Index, Lowered, lower};
