//! The observer of the memory that kernels touch. While it is off, handlers are the same as without it: `exec` chooses
//! others when a program is compiled while it is on.

use std::sync::atomic::{AtomicBool, Ordering};

/// Strong accesses (atomic, volatile, relaxed, acquire, release) may meet each other.
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

    /// Whether two accesses to a byte need an order.
    pub fn conflicts(self, other: Access) -> bool {
        (self.writes() || other.writes()) && !(self.is_strong() && other.is_strong())
    }
}

/// A kernel's accesses to global memory, on any of its OS threads.
pub trait Watch: Send + Sync {
    fn touch(&self, access: Access, address: u64, bytes: u64);
    fn fence(&self);
    /// A strong read, after it was done.
    fn acquire(&self, address: u64, ordered: bool);
    /// A strong write, before it is done.
    fn release(&self, address: u64, ordered: bool);
}

static ON: AtomicBool = AtomicBool::new(false);

/// Programs that are compiled after this call report their memory accesses to the observer.
pub fn switch_on() {
    ON.store(true, Ordering::Release);
}

pub fn is_on() -> bool {
    ON.load(Ordering::Acquire)
}
