//! Lowering of one function: operands become registers and constants, and statements become instructions with virtual
//! registers.
//!
//! `function` processes a body and calls `decode` for each statement. Then `flow` orders the blocks, and `allocate`
//! replaces virtual registers by slots. `builder` is the state of the function, and `operands` converts its operands.
//! `link` calls this module for each function. The module does not depend on opcodes.

mod builder;
mod function;
mod operands;

pub use builder::{Lower, Lowering, Place, Refuse, double, refuse};
pub use function::{Index, Lowered, lower};
