//! Kernels in pieces whose executed instructions can be counted.

use std::ffi::CString;

/// A part of a kernel's PTX. In one launch all threads together execute each of its instructions `executions` times.
pub struct Piece {
    pub text: String,
    pub executions: u64,
}

impl Piece {
    pub fn new(text: impl Into<String>, executions: u64) -> Piece {
        Piece { text: text.into(), executions }
    }
}

/// Returns the number of instructions in a piece: statements that are not directives.
fn instructions(text: &str) -> u64 {
    let statements = text.split(';').map(|part| part.rsplit(':').next().unwrap_or_default().trim());
    statements.filter(|part| !part.is_empty() && !part.starts_with('.')).count() as u64
}

pub fn lane_instructions(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| instructions(&piece.text) * piece.executions).sum()
}

/// Returns a module with one kernel `k(in, out, numbers...)`.
pub fn module(declarations: &str, numbers: usize, pieces: &[Piece]) -> CString {
    let parameters: String = (0..numbers).map(|index| format!(", .param .u32 n{index}")).collect();
    let body: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    let text = format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out{parameters})\n\
         {{\n{declarations}\n{body}\n}}\n"
    );
    CString::new(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_directives_are_not_counted() {
        assert_eq!(instructions(".reg .b32 %r<2>;\nloop: add.u32 %r0, %r0, 1;\n@%p bra loop;\nend:\n ret;"), 3);
    }
}
