//! The exported functions. Each saves its arguments and calls `enter`, which finds the signature in the table.

use crate::mode;
use crate::registers::{Arguments, MOST, Registers};
use crate::signature::Table;

/// Handles a call of an exported function: reads its arguments and passes the call to the mode of the process.
///
/// # Safety
/// Only the stubs of `functions!` may call this function, with their saved registers.
pub unsafe fn enter(table: Table, index: usize, registers: *const Registers) -> u64 {
    let count = table[index].parameters.map_or(MOST, <[_]>::len);
    // SAFETY: the stub passed its own stack frame.
    let arguments = unsafe { Arguments::of(&*registers, count) };
    u64::from(mode::call(table, index, &arguments))
}

macro_rules! functions {
    ($([$index:literal] $symbol:ident: $parameters:expr;)*) => {
        $(
            /// The exported function of this name. It saves its arguments and calls `enter`.
            ///
            /// # Safety
            /// The same conditions as for the driver's function with this name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol() {
                ::core::arch::naked_asm!(
                    ".cfi_startproc",
                    "push rbp",
                    ".cfi_def_cfa_offset 16",
                    ".cfi_offset rbp, -16",
                    "mov rbp, rsp",
                    ".cfi_def_cfa_register rbp",
                    "sub rsp, 64",
                    "mov [rsp], rdi",
                    "mov [rsp + 8], rsi",
                    "mov [rsp + 16], rdx",
                    "mov [rsp + 24], rcx",
                    "mov [rsp + 32], r8",
                    "mov [rsp + 40], r9",
                    "movsd [rsp + 48], xmm0",
                    "lea rax, [rbp + 16]",
                    "mov [rsp + 56], rax",
                    "mov edi, {index}",
                    "mov rsi, rsp",
                    "call {enter}",
                    "leave",
                    ".cfi_def_cfa rsp, 8",
                    "ret",
                    ".cfi_endproc",
                    index = const $index,
                    enter = sym enter,
                )
            }
        )*

        static FUNCTIONS: &[Function] =
            &[$(Function { symbol: stringify!($symbol), entry: $symbol, parameters: $parameters }),*];

        unsafe extern "C" fn enter(index: usize, registers: *const $crate::registers::Registers) -> u64 {
            // SAFETY: only the exported functions above call this.
            unsafe { $crate::stub::enter(FUNCTIONS, index, registers) }
        }
    };
}
pub(crate) use functions;
