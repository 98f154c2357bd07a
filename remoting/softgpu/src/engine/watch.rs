//! The observer of accesses to memory by kernels. While it is off, programs use the ordinary handlers. A program that
//! is compiled while it is on uses handlers that report their accesses.

use std::sync::atomic::{AtomicBool, Ordering};

/// The kinds of accesses. Strong accesses (atomic, volatile, relaxed, acquire, release) do not conflict with each
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Access {
    Read = 0,
    Write = 1,
    StrongRead = 2,
    StrongWrite = 3,
}

impl Access {
    pub fn from_bits(bits: u32) -> Access {
        [Access::Read, Access::Write, Access::StrongRead, Access::StrongWrite][bits as usize & 3]
    }

    pub fn writes(self) -> bool {
        matches!(self, Access::Write | Access::StrongWrite)
    }

    pub fn is_strong(self) -> bool {
        matches!(self, Access::StrongRead | Access::StrongWrite)
    }

    /// Whether two accesses to the same byte conflict if no order is between them.
    pub fn conflicts(self, other: Access) -> bool {
        (self.writes() || other.writes()) && !(self.is_strong() && other.is_strong())
    }
}

/// An observer of a kernel's accesses to global memory. All OS threads of the kernel call it.
pub trait Watch: Send + Sync {
    fn touch(&self, access: Access, address: u64, bytes: u64);
    fn fence(&self);
    /// Records a strong read, after it was done.
    fn acquire(&self, address: u64, ordered: bool);
    /// Records a strong write, before it is done.
    fn release(&self, address: u64, ordered: bool);
}

static ON: AtomicBool = AtomicBool::new(false);

/// Makes programs that are compiled after this call report their memory accesses.
pub fn switch_on() {
    ON.store(true, Ordering::Release);
}

pub fn is_on() -> bool {
    ON.load(Ordering::Acquire)
}
