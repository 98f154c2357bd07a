//! The arguments of a call as the processor passes them, before their types are known.

use std::ffi::c_void;

/// The largest number of arguments of a driver function. It is harmless to pass more arguments than a function has.
pub const MOST: usize = 16;

/// The argument registers and the stack pointer, as a stub saved them.
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

    /// Copies the arguments of a call out of the saved registers and the stack.
    ///
    /// # Safety
    /// `registers` must come from a stub for a function with `count` parameters.
    pub unsafe fn of(registers: &Registers, count: usize) -> Self {
        let mut words = [0; MOST];
        words[..6].copy_from_slice(&registers.integers);
        for (index, word) in words.iter_mut().enumerate().take(count).skip(6) {
            // SAFETY: the caller of the stub put its stack arguments there. The memory after them is the caller's own
            // stack frame.
            *word = unsafe { registers.stack.add(index - 6).read() };
        }
        Self { words, float: registers.float }
    }

    /// Calls a function with these arguments. Returns its code.
    ///
    /// # Safety
    /// `target` must be the function that the program called, in the driver.
    #[allow(clippy::many_single_char_names)]
    pub unsafe fn call(&self, target: *const c_void) -> u32 {
        #[rustfmt::skip]
        type Any = unsafe extern "C" fn(
            u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, f64,
        ) -> u32;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = self.words;
        // SAFETY: integers and pointers are passed in the same places whatever their types are. A function with fewer
        // parameters does not read the others.
        unsafe {
            let target = std::mem::transmute::<*const c_void, Any>(target);
            target(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, self.float)
        }
    }
}
