//! The exported functions: each keeps its arguments and goes to `enter`, which knows no signature but the table's.

use crate::functions_generated::FUNCTIONS;
use crate::mode;
use std::ffi::c_void;

/// The most arguments that a function of the driver has; more are passed on harmlessly.
pub const MOST: usize = 16;

/// Arguments as the stub found them.
#[repr(C)]
pub struct Registers {
    integers: [u64; 6],
    float: f64,
    stack: *const u64,
}

#[derive(Clone, Copy)]
pub struct Arguments {
    pub words: [u64; MOST],
    float: f64,
}

impl Arguments {
    pub fn new(words: [u64; MOST]) -> Self {
        Self { words, float: 0.0 }
    }

    /// # Safety
    /// From a stub, of a function with `count` parameters.
    unsafe fn of(registers: &Registers, count: usize) -> Self {
        let mut words = [0; MOST];
        words[..6].copy_from_slice(&registers.integers);
        for (index, word) in words.iter_mut().enumerate().take(count).skip(6) {
            // SAFETY: the caller of the stub put its arguments there; beyond them is its own frame.
            *word = unsafe { registers.stack.add(index - 6).read() };
        }
        Self { words, float: registers.float }
    }

    /// # Safety
    /// `target` is the function that the program meant.
    #[allow(clippy::many_single_char_names)]
    pub unsafe fn call(&self, target: *const c_void) -> u32 {
        #[rustfmt::skip]
        type Any = unsafe extern "C" fn(
            u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, f64,
        ) -> u32;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = self.words;
        // SAFETY: whole numbers and pointers travel in the same places whatever their types; a function that has fewer
        // parameters does not look at the others.
        unsafe {
            let target = std::mem::transmute::<*const c_void, Any>(target);
            target(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, self.float)
        }
    }
}

/// # Safety
/// Called by the stubs below.
pub unsafe extern "C" fn enter(index: usize, registers: *const Registers) -> u64 {
    let function = &FUNCTIONS[index];
    let count = function.parameters.map_or(MOST, <[_]>::len);
    // SAFETY: the stub's own frame.
    let arguments = unsafe { Arguments::of(&*registers, count) };
    u64::from(mode::call(index, &arguments))
}

#[macro_export]
#[doc(hidden)]
macro_rules! functions {
    ($([$index:literal] $symbol:ident: $parameters:expr;)*) => {
        $(
            /// # Safety
            /// As the driver's function of this name.
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
                    enter = sym $crate::stub::enter,
                )
            }
        )*

        pub static FUNCTIONS: &[Function] =
            &[$(Function { symbol: stringify!($symbol), entry: $symbol, parameters: $parameters }),*];
    };
}
