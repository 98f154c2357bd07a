//! Accesses to memory through addresses that were checked.

/// The host address of memory that was found valid, for as many bytes as are accessed through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Host(u64);

mod sealed {
    pub trait Integer {}
}

/// What is read and written: integers, for which every bit pattern is valid.
pub trait Integer: Copy + Default + sealed::Integer {}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl sealed::Integer for $ty {}
        impl Integer for $ty {}
    )*};
}

integers!(u8, i8, u16, i16, u32, i32, u64);

impl Host {
    /// `address` must lie in device memory (which stays mapped while kernels run, see `MemoryMap`), in memory of the running
    /// block, or in the launch's parameters, with all the bytes that will be accessed; aligned, unless as bytes.
    #[inline(always)]
    pub fn checked(address: u64) -> Host {
        Host(address)
    }

    #[inline(always)]
    pub fn address(self) -> u64 {
        self.0
    }

    /// An address further on in the bytes that were checked.
    #[inline(always)]
    pub fn plus(self, bytes: usize) -> Host {
        Host(self.0 + bytes as u64)
    }

    /// Volatile: other threads, and the host, may write there meanwhile.
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

    /// Elements of several lanes, one behind the other, each of which was checked.
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
}
