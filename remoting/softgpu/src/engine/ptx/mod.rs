//! The parser, which converts PTX text to a syntax tree. It checks the grammar but not the instructions, so it accepts
//! any opcode.
//!
//! `lexer` reads tokens. `module`, `declaration` and `body` parse them to the tree of `ast`. `compile` calls this
//! module. Text that does not follow the grammar gives a [`SyntaxError`] with its line.

pub mod ast;
mod body;
mod declaration;
mod lexer;
mod module;
mod types;

pub use lexer::SyntaxError;
pub use module::parse;
pub use types::Ty;
