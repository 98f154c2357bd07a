//! Arguments of a call as the processor passes them, before anything is known of their types.

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
    pub unsafe fn of(registers: &Registers, count: usize) -> Self {
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
