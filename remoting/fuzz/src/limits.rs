//! An allocator that ends the process when one allocation is too large. A decoder must not allocate that much for any
//! input.

use std::alloc::{GlobalAlloc, Layout, System};

/// The largest allocation in bytes. No valid seed needs as much, and an appliance has much more memory.
pub const LARGEST: usize = 64 << 20;

pub struct Limited;

fn check(size: usize) {
    if size > LARGEST {
        // Code that allocates must not run here.
        std::process::abort();
    }
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        check(size);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}
