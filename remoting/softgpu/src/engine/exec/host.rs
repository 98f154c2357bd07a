//! Accesses to memory through host addresses that were checked.

use std::arch::asm;
use std::arch::x86_64::__m128i;
use std::mem::transmute;

/// The host address of memory that was checked for the accessed number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Host(u64);

mod sealed {
    pub trait Integer {}
}

/// The types that can be read and written: integers, for which all bit patterns are valid.
pub trait Integer: Copy + Default + sealed::Integer {}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl sealed::Integer for $ty {}
        impl Integer for $ty {}
    )*};
}

integers!(u8, i8, u16, i16, u32, i32, u64);

impl Host {
    /// Creates a host address. All accessed bytes must be in device memory (which stays mapped while kernels run, see
    /// `MemoryMap`), in memory of the running block, or in the launch's parameters. The address must be aligned, except
    /// for accesses to single bytes.
    #[inline(always)]
    pub fn checked(address: u64) -> Host {
        Host(address)
    }

    #[inline(always)]
    pub fn address(self) -> u64 {
        self.0
    }

    /// Returns the address `bytes` further on, which must still be in the checked memory.
    #[inline(always)]
    pub fn plus(self, bytes: usize) -> Host {
        Host(self.0 + bytes as u64)
    }

    /// Reads a value. The read is volatile, because other threads and the host may write there at the same time.
    #[inline(always)]
    pub fn read<T: Integer>(self) -> T {
        // SAFETY: valid and aligned, see `checked`.
        unsafe { (self.0 as *const T).read_volatile() }
    }

    #[inline(always)]
    pub fn write<T: Integer>(self, value: T) {
        // SAFETY: as in `read`; all of this memory is writable.
        unsafe { (self.0 as *mut T).write_volatile(value) }
    }

    /// Reads contiguous elements of several lanes, which were all checked.
    #[inline(always)]
    pub fn read_row<T: Integer, const N: usize>(self) -> [T; N] {
        // SAFETY: as in `read`, for the whole row.
        unsafe { (self.0 as *const [T; N]).read_unaligned() }
    }

    #[inline(always)]
    pub fn write_row<T: Integer, const N: usize>(self, row: &[T; N]) {
        // SAFETY: as in `read_row`.
        unsafe { (self.0 as *mut [T; N]).write_unaligned(*row) }
    }

    /// Reads 2, 4, 8 or 16 bytes as one atomic access.
    #[inline(always)]
    pub fn read_piece(self, bytes: usize) -> u128 {
        match bytes {
            2 => self.read::<u16>().into(),
            4 => self.read::<u32>().into(),
            8 => self.read::<u64>().into(),
            _ => self.read_sixteen(),
        }
    }

    /// Writes 2, 4, 8 or 16 bytes as one atomic access.
    #[inline(always)]
    pub fn write_piece(self, bytes: usize, piece: u128) {
        match bytes {
            2 => self.write(piece as u16),
            4 => self.write(piece as u32),
            8 => self.write(piece as u64),
            _ => self.write_sixteen(piece),
        }
    }

    /// Reads 16 bytes in one instruction. On processors with AVX, an aligned access of 16 bytes is atomic.
    #[inline(always)]
    fn read_sixteen(self) -> u128 {
        let piece: __m128i;
        // SAFETY: valid, see `checked`; the instruction takes any alignment, and reads alone.
        unsafe {
            asm!("movdqu {}, [{}]", out(xmm_reg) piece, in(reg) self.0, options(nostack, preserves_flags, readonly))
        };
        // SAFETY: both are any 16 bytes.
        unsafe { transmute(piece) }
    }

    #[inline(always)]
    fn write_sixteen(self, piece: u128) {
        // SAFETY: both are any 16 bytes.
        let piece: __m128i = unsafe { transmute(piece) };
        // SAFETY: as in `read_sixteen`; all of this memory is writable.
        unsafe { asm!("movdqu [{}], {}", in(reg) self.0, in(xmm_reg) piece, options(nostack, preserves_flags)) };
    }
}
