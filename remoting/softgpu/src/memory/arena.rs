//! The virtual addresses of device memory, and access to its bytes.
//!
//! A region is reserved once and never returned to the operating system. A kernel that still runs when its memory is
//! freed or unmapped then reads zero pages, and cannot crash the process.

use crate::memory::ranges::Ranges;
use crate::memory::writes;
use driverapi::errors::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN};
use driverapi::memory_operations::Width;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::ffi::R;

pub const PAGE: u64 = 4096;
/// The granularity in bytes of physical memory that programs map.
pub const GRANULARITY: u64 = 2 << 20;
const REGION_SIZES: [u64; 4] = [256 << 30, 64 << 30, 16 << 30, 4 << 30];
/// The first addresses of regions. Linux leaves them free in most processes, so addresses are the same in every run. 0
/// means any address.
const BASES: [u64; 4] = [0x2000_0000_0000, 0x3000_0000_0000, 0x1000_0000_0000, 0];
/// The sizes of regions for modules' variables. They have their own regions, so that their addresses depend only on the
/// modules that were loaded before. Another process that loads the same modules gets the same addresses.
const CODE_SIZES: [u64; 2] = [4 << 30, 256 << 20];
const CODE_BASES: [u64; 4] = [0x2800_0000_0000, 0x3800_0000_0000, 0x1800_0000_0000, 0];

/// A reserved region of address space.
struct Region {
    base: u64,
    len: u64,
    free: Ranges,
}

/// All address space for device addresses.
pub struct Arena {
    regions: Vec<Region>,
    code: Region,
}

impl Arena {
    pub fn reserve() -> R<Arena> {
        let first = Region::reserve(&BASES, &REGION_SIZES)?;
        Ok(Arena { regions: vec![first], code: Region::reserve(&CODE_BASES, &CODE_SIZES)? })
    }

    pub fn contains(&self, address: u64) -> bool {
        self.code.contains(address) || self.region(address).is_some()
    }

    fn region(&self, address: u64) -> Option<usize> {
        self.regions.iter().position(|r| r.contains(address))
    }

    /// Takes addresses for a module's variables.
    pub fn take_for_code(&mut self, len: u64, align: u64) -> R<u64> {
        self.code.free.take(len, align).map_or_else(|| self.take(len, align), Ok)
    }

    pub fn take(&mut self, len: u64, align: u64) -> R<u64> {
        self.regions.iter_mut().find_map(|r| r.free.take(len, align)).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Takes exactly `[at, at + len)`, in a region or as a new region. Returns whether the range was free.
    pub fn take_at(&mut self, at: u64, len: u64) -> bool {
        if let Some(region) = self.region(at) {
            return self.regions[region].free.take_at(at, len);
        }
        if map(at, len).is_none() {
            return false;
        }
        let mut region = Region::new(at, len);
        region.free.take_at(at, len);
        self.regions.push(region);
        true
    }

    pub fn give_back(&mut self, at: u64, len: u64) {
        if self.code.contains(at) {
            self.code.free.give_back(at, len);
        } else if let Some(region) = self.region(at) {
            self.regions[region].free.give_back(at, len);
        }
    }
}

impl Region {
    fn reserve(bases: &[u64], sizes: &[u64]) -> R<Region> {
        let mut places = sizes.iter().flat_map(|&len| bases.iter().map(move |&base| (base, len)));
        let region = places.find_map(|(base, len)| map(base, len).map(|base| Region::new(base, len)));
        region.ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn contains(&self, address: u64) -> bool {
        address >= self.base && address - self.base < self.len
    }

    fn new(base: u64, len: u64) -> Region {
        Region { base, len, free: Ranges::new(base, len) }
    }
}

/// Reserves address space at `base`, or at any address if `base` is 0.
fn map(base: u64, len: u64) -> Option<u64> {
    let exact = if base == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | exact;
    let len = usize::try_from(len).ok()?;
    // SAFETY: a new anonymous mapping that replaces none.
    let at = unsafe { libc::mmap(address(base), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    if base != 0 && at != address(base) {
        // SAFETY: the mapping was made just now. Kernels before 4.17 use the address only as a hint.
        unsafe { libc::munmap(at, len) };
        return None;
    }
    Some(at as u64)
}

fn address<T>(at: u64) -> *mut T {
    ptr::with_exposed_provenance_mut(at as usize)
}

/// Makes `[at, at + len)` read as zeros and returns its pages to the system. `at` is in the arena.
pub fn discard(at: u64, len: u64) {
    let (first, last) = (at.next_multiple_of(PAGE), (at + len) / PAGE * PAGE);
    if first >= last {
        return fill(at, len);
    }
    fill(at, first - at);
    fill(last, at + len - last);
    // SAFETY: whole pages inside the arena, which holds private anonymous memory that stays mapped.
    unsafe { libc::madvise(address(first), (last - first) as usize, libc::MADV_DONTNEED) };
}

/// Makes `[at, at + len)` read as zeros and frees its memory, both private memory and the memory of a file.
pub fn forget(at: u64, len: u64) {
    let (first, last) = (at.next_multiple_of(PAGE), (at + len) / PAGE * PAGE);
    // SAFETY: whole pages inside the arena; where they are a file's the hole is in the file, elsewhere this fails.
    let is_file =
        first < last && unsafe { libc::madvise(address(first), (last - first) as usize, libc::MADV_REMOVE) } == 0;
    if is_file {
        writes::emptied(first as usize..last as usize);
        fill(at, first - at);
        fill(last, at + len - last);
    } else {
        discard(at, len);
    }
}

/// Makes `[at, at + len)` read as zeros. Resident pages are overwritten, which is faster than to free them and allocate
/// them again. No new page is allocated.
pub fn clear(at: u64, len: u64) {
    let end = at + len;
    let (mut from, mut done) = (at, at);
    while from < end {
        let to = ((from / PIECE + 1) * PIECE).min(end);
        if is_resident(from, to) {
            forget(done, from - done);
            find(from, to);
            fill(from, to - from);
            done = to;
        }
        from = to;
    }
    forget(done, end - done);
}

/// Whether all pages of a piece are resident. A page that is swapped out is not resident, but may contain other bytes
/// than zeros.
fn is_resident(from: u64, to: u64) -> bool {
    let mut resident = [0; (PIECE / PAGE) as usize];
    // New memory has no resident pages, so check the first page alone before the rest.
    [PAGE.min(to - from), to - from].into_iter().all(|len| {
        // SAFETY: whole pages inside the arena, where `from` begins one, and no more than there are bytes for.
        let known = unsafe { libc::mincore(address(from), len as usize, resident.as_mut_ptr()) } == 0;
        known && resident[..len.div_ceil(PAGE) as usize].iter().all(|page| page & 1 == 1)
    })
}

/// The number of bytes that are cleared at a time.
const PIECE: u64 = 2 << 20;
/// The number of bytes that a read maps at once if a file's pages are not yet mapped. A write maps one page.
const AROUND: u64 = 64 << 10;

fn find(from: u64, to: u64) {
    for at in (from..to).step_by(AROUND as usize) {
        // SAFETY: inside the arena, which is always readable.
        unsafe { (*address::<AtomicU8>(at)).load(Ordering::Relaxed) };
    }
}

fn fill(at: u64, len: u64) {
    // SAFETY: the callers stay inside the arena, which is always writable.
    unsafe { ptr::write_bytes(address::<u8>(at), 0, len as usize) };
}

/// Maps a file from `offset` on at `[at, at + len)`, a page-aligned range of the arena.
pub fn show(at: u64, len: u64, file: BorrowedFd<'_>, offset: u64) -> R {
    replace(at, len, libc::MAP_SHARED, file.as_raw_fd(), offset)
}

/// Replaces a mapped file by zero pages. For a large range, the page tables are first moved to another address, where a
/// thread of its own unmaps them.
pub fn unmap(at: u64, len: u64) -> R {
    let aside = if len >= MANY_PAGES { move_aside(at, len) } else { None };
    let replaced = replace(at, len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1, 0);
    if let Some(aside) = aside {
        let take_down = move || {
            // SAFETY: a mapping that was made just now, and that no other code knows.
            unsafe { libc::munmap(address(aside), len as usize) };
        };
        if std::thread::Builder::new().spawn(take_down).is_err() {
            take_down();
        }
    }
    replaced
}

const MANY_PAGES: u64 = 64 << 20;

/// Moves the pages of a range to another address and returns that address. The range still maps its file, so a running
/// kernel finds memory there. Returns `None` if the system's kernel does not support this (before Linux 5.13).
fn move_aside(at: u64, len: u64) -> Option<u64> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    // SAFETY: a mapped range of the arena, which stays mapped; the system chooses a place where nothing is.
    let aside = unsafe { libc::mremap(address(at), len as usize, len as usize, flags) };
    (aside != libc::MAP_FAILED).then_some(aside as u64)
}

fn replace(at: u64, len: u64, flags: i32, fd: i32, offset: u64) -> R {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a range of the arena: what is replaced is only ever reached through device addresses.
    let now =
        unsafe { libc::mmap(address(at), len as usize, access, flags | libc::MAP_FIXED, fd, offset as libc::off_t) };
    if now == libc::MAP_FAILED { Err(CUDA_ERROR_UNKNOWN) } else { Ok(()) }
}

/// Copies bytes between checked device memory and memory that the program named. The ranges may overlap.
pub fn copy(dst: u64, src: u64, len: u64) {
    // SAFETY: the range on the device is inside the arena; the other one is the program's promise. They may overlap.
    unsafe { ptr::copy(address::<u8>(src), address::<u8>(dst), len as usize) };
}

/// Copies bytes into checked device memory.
pub fn write(dst: u64, bytes: &[u8]) {
    // SAFETY: the destination was checked against the allocation it lies in.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), address::<u8>(dst), bytes.len()) };
}

/// Reads a word of device memory. The caller has checked its address and alignment. Kernels may change the word
/// meanwhile.
pub fn load(at: u64, width: Width) -> u64 {
    // SAFETY: the word was checked, and its address divides by its width; nothing on the device is ever unmapped.
    unsafe {
        match width {
            Width::Four => (*address::<AtomicU32>(at)).load(Ordering::Acquire).into(),
            Width::Eight => (*address::<AtomicU64>(at)).load(Ordering::Acquire),
        }
    }
}

/// Writes a word of device memory. The conditions are those of [`load`].
pub fn store(at: u64, width: Width, value: u64) {
    // SAFETY: as in `load`.
    unsafe {
        match width {
            Width::Four => (*address::<AtomicU32>(at)).store(value as u32, Ordering::Release),
            Width::Eight => (*address::<AtomicU64>(at)).store(value, Ordering::Release),
        }
    }
}

/// A page of a file that other processes may map too.
pub struct SharedPage {
    at: u64,
}

impl SharedPage {
    pub const WORDS: usize = PAGE as usize / size_of::<AtomicU64>();

    /// Maps the first page of a file. The file must have a page and must not become shorter.
    pub fn show(file: BorrowedFd<'_>) -> R<SharedPage> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping that replaces none.
        let at = unsafe { libc::mmap(ptr::null_mut(), PAGE as usize, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(CUDA_ERROR_OUT_OF_MEMORY) } else { Ok(SharedPage { at: at as u64 }) }
    }

    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < SharedPage::WORDS);
        // SAFETY: a word of the page, which stays mapped as long as `self`, and which every user accesses as an atomic.
        unsafe { &*address::<AtomicU64>(self.at + (index * size_of::<AtomicU64>()) as u64) }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `show`, and no word of it is borrowed any more.
        unsafe { libc::munmap(address(self.at), PAGE as usize) };
    }
}

/// Writes `count` copies of a pattern of 1, 2 or 4 bytes to checked device memory.
pub fn set(dst: u64, pattern: Pattern, count: u64) {
    let count = count as usize;
    // SAFETY: the range was checked; `cuMemset` refuses addresses that the pattern does not divide.
    unsafe {
        match pattern {
            Pattern::Byte(v) => ptr::write_bytes(address::<u8>(dst), v, count),
            Pattern::Half(v) => std::slice::from_raw_parts_mut(address::<u16>(dst), count).fill(v),
            Pattern::Word(v) => std::slice::from_raw_parts_mut(address::<u32>(dst), count).fill(v),
        }
    }
}

#[derive(Clone, Copy)]
pub enum Pattern {
    Byte(u8),
    Half(u16),
    Word(u32),
}

impl Pattern {
    pub fn is_zero(self) -> bool {
        matches!(self, Pattern::Byte(0) | Pattern::Half(0) | Pattern::Word(0))
    }

    pub fn size(self) -> u64 {
        match self {
            Pattern::Byte(_) => 1,
            Pattern::Half(_) => 2,
            Pattern::Word(_) => 4,
        }
    }
}
