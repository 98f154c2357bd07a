//! Reads and writes memory of the program, at addresses that the program or the driver passed.

use crate::value::{Hash, Value, to_hex};
use std::ffi::{CStr, c_void};

const PIECE: usize = 1 << 20;
/// The largest area that is read. A request for more is a mistake of the program, which the driver will refuse.
const MOST: u64 = 1 << 42;

/// Copies bytes from an address that may be invalid, because the driver may refuse a call whose pointers are wrong.
/// Returns `false` if not all bytes could be read.
fn copy(address: u64, to: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: address as usize as *mut c_void, iov_len: to.len() };
    // SAFETY: the kernel writes to a live slice, and checks the address that it reads.
    unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) == to.len() as isize }
}

/// A region of memory: slices of rows of bytes.
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

    /// Returns the length and the hash of the bytes in the area, and with `contents` the bytes too.
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

    /// Writes `bytes` to the area. Returns false, without a write, if the area has another size.
    ///
    /// # Safety
    /// The area must be memory of the program that may be written now.
    pub unsafe fn fill(self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        if bytes.len() as u64 != self.bytes() {
            return false;
        }
        for (address, length) in self.pieces() {
            let (piece, after) = rest.split_at(length);
            // SAFETY: the caller guarantees it (see "# Safety").
            unsafe { write(address, piece) };
            rest = after;
        }
        true
    }
}

/// Returns the value at an address, or `None` if the address is null.
///
/// # Safety
/// `address` must be null or the address of memory of the program with the size of a `T`, and any bytes must be a valid
/// `T`.
pub unsafe fn value<T: Copy>(address: u64) -> Option<T> {
    // SAFETY: the caller guarantees it (see "# Safety").
    (address != 0).then(|| unsafe { (address as usize as *const T).read_unaligned() })
}

/// Returns the integer of `size` bytes at an address, or `None` if the address is null.
///
/// # Safety
/// The same conditions as for `value`.
pub unsafe fn word(address: u64, size: usize) -> Option<u64> {
    // SAFETY: the caller guarantees it (see "# Safety").
    unsafe {
        match size {
            1 => value::<u8>(address).map(u64::from),
            2 => value::<u16>(address).map(u64::from),
            4 => value::<u32>(address).map(u64::from),
            _ => value::<u64>(address),
        }
    }
}

/// Returns the bytes at an address.
///
/// # Safety
/// The same conditions as for `value`, for `length` bytes.
pub unsafe fn slice<'a>(address: u64, length: usize) -> &'a [u8] {
    if address == 0 || length > isize::MAX as usize {
        return &[];
    }
    // SAFETY: the caller guarantees it (see "# Safety").
    unsafe { std::slice::from_raw_parts(address as usize as *const u8, length) }
}

/// Returns the text at an address, or `None` if the address is null.
///
/// # Safety
/// `address` must be null or the address of a C string.
pub unsafe fn text(address: u64) -> Option<String> {
    // SAFETY: the caller guarantees it (see "# Safety").
    (address != 0).then(|| unsafe { CStr::from_ptr(address as usize as *const _) }.to_string_lossy().into_owned())
}

/// Copies `bytes` to an address. Does nothing if the address is null.
///
/// # Safety
/// `address` must be null or the address of memory of the program that may be written, of at least that many bytes.
pub unsafe fn write(address: u64, bytes: &[u8]) {
    if address != 0 {
        // SAFETY: the caller guarantees it (see "# Safety").
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as usize as *mut u8, bytes.len()) };
    }
}

/// Reserves a range of addresses for a replay. The memory is accessible if `usable` is set. Otherwise the range only
/// keeps other mappings away.
pub fn reserve(bytes: u64, usable: bool) -> Option<u64> {
    let access = if usable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let length = usize::try_from(bytes.max(1)).ok()?;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
    (address != libc::MAP_FAILED).then_some(address as usize as u64)
}

pub fn give_back(address: u64, bytes: u64) {
    // SAFETY: the range came from `reserve`, and the program no longer uses it.
    unsafe { libc::munmap(address as usize as *mut c_void, bytes.max(1) as usize) };
}
