//! Reads and writes the program's memory at addresses that the program or the driver gave.

use crate::value::{Hash, Value, to_hex};
use std::ffi::{CStr, c_void};

const PIECE: usize = 1 << 20;
/// No program has more; what asks for it is a mistake that the driver will refuse.
const MOST: u64 = 1 << 42;

/// Copies from an address that may be no memory at all: the driver below may refuse what we must not follow.
fn copy(address: u64, to: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: address as usize as *mut c_void, iov_len: to.len() };
    // SAFETY: the kernel writes to a live slice, and checks what it reads.
    unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) == to.len() as isize }
}

/// Rows of bytes.
#[derive(Clone, Copy)]
pub struct Area {
    pub address: u64,
    pub width: u64,
    pub rows: u64,
    pub pitch: u64,
    pub slices: u64,
    pub slice_pitch: u64,
}

impl Area {
    pub fn line(address: u64, bytes: u64) -> Self {
        Self { address, width: bytes, rows: 1, pitch: 0, slices: 1, slice_pitch: 0 }
    }

    fn pieces(self) -> impl Iterator<Item = (u64, usize)> {
        let rows = (0..self.slices).flat_map(move |slice| {
            (0..self.rows).map(move |row| {
                self.address
                    .wrapping_add(slice.wrapping_mul(self.slice_pitch))
                    .wrapping_add(row.wrapping_mul(self.pitch))
            })
        });
        rows.flat_map(move |row| {
            let starts = (0..self.width).step_by(PIECE);
            starts.map(move |at| (row.wrapping_add(at), (self.width - at).min(PIECE as u64) as usize))
        })
    }

    pub fn bytes(self) -> u64 {
        self.width.saturating_mul(self.rows).saturating_mul(self.slices)
    }

    /// Length and hash, and if wanted the contents, of what lies there.
    pub fn describe(self, contents: bool) -> Value {
        if self.bytes() > MOST {
            return Value::text("unreadable");
        }
        let (mut hash, mut hex, mut buffer) = (Hash::default(), String::new(), Vec::new());
        for (address, length) in self.pieces() {
            buffer.resize(length, 0);
            if !copy(address, &mut buffer) {
                return Value::text("unreadable");
            }
            hash.add(&buffer);
            if contents {
                hex += &to_hex(&buffer);
            }
        }
        let mut fields =
            vec![("bytes".into(), Value::Unsigned(self.bytes())), ("hash".into(), Value::Text(hash.text()))];
        if contents {
            fields.push(("contents".into(), Value::Text(hex)));
        }
        Value::Map(fields)
    }

    /// # Safety
    /// It is the program's, to be written now.
    pub unsafe fn fill(self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        if bytes.len() as u64 != self.bytes() {
            return false;
        }
        for (address, length) in self.pieces() {
            let (piece, after) = rest.split_at(length);
            // SAFETY: as promised.
            unsafe { write(address, piece) };
            rest = after;
        }
        true
    }
}

/// # Safety
/// The address is null or holds such a value of the program's, as CUDA asks for; any bytes are one.
pub unsafe fn value<T: Copy>(address: u64) -> Option<T> {
    // SAFETY: as promised.
    (address != 0).then(|| unsafe { (address as usize as *const T).read_unaligned() })
}

/// # Safety
/// As `value`.
pub unsafe fn word(address: u64, size: usize) -> Option<u64> {
    // SAFETY: as promised.
    unsafe {
        match size {
            1 => value::<u8>(address).map(u64::from),
            2 => value::<u16>(address).map(u64::from),
            4 => value::<u32>(address).map(u64::from),
            _ => value::<u64>(address),
        }
    }
}

/// # Safety
/// As `value`.
pub unsafe fn slice<'a>(address: u64, length: usize) -> &'a [u8] {
    if address == 0 || length > isize::MAX as usize {
        return &[];
    }
    // SAFETY: as promised.
    unsafe { std::slice::from_raw_parts(address as usize as *const u8, length) }
}

/// # Safety
/// The address is null or a C string.
pub unsafe fn text(address: u64) -> Option<String> {
    // SAFETY: as promised.
    (address != 0).then(|| unsafe { CStr::from_ptr(address as usize as *const _) }.to_string_lossy().into_owned())
}

/// # Safety
/// The address is null or the program's to be written with that many bytes.
pub unsafe fn write(address: u64, bytes: &[u8]) {
    if address != 0 {
        // SAFETY: as promised.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as usize as *mut u8, bytes.len()) };
    }
}

/// New memory of a replay's: readable if the program may use it, else only a range that nothing else gets.
pub fn reserve(bytes: u64, usable: bool) -> Option<u64> {
    let access = if usable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let length = usize::try_from(bytes.max(1)).ok()?;
    // SAFETY: a new mapping, wherever the kernel likes.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
    (address != libc::MAP_FAILED).then_some(address as usize as u64)
}

pub fn give_back(address: u64, bytes: u64) {
    // SAFETY: what `reserve` gave, and the program's no more.
    unsafe { libc::munmap(address as usize as *mut c_void, bytes.max(1) as usize) };
}
