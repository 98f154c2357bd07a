//! PTX text to a syntax tree. Knows the grammar, not the instructions: any opcode parses.
//!
//! `lexer` makes tokens; `module`, `declaration` and `body` parse them into the tree of `ast`. Called by `compile`.
//! Text that does not follow the grammar is a [`SyntaxError`] with its line.

pub mod ast;
mod body;
mod declaration;
mod lexer;
mod module;
mod types;

pub use lexer::SyntaxError;
pub use module::parse;
pub use types::Ty;
