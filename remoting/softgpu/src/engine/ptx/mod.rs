//! PTX text to a syntax tree. Knows the grammar, not the instructions: any opcode parses.

pub mod ast;
mod body;
mod declaration;
mod lexer;
mod module;
mod types;

pub use module::parse;
pub use types::Ty;

/// The line at which the text stopped making sense, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    pub line: usize,
    pub message: String,
}
