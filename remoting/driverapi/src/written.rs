//! Finds written pages with the kernel's write tracking: asynchronous write protection of userfaultfd, and PAGEMAP_SCAN
//! (<https://docs.kernel.org/admin-guide/mm/pagemap.html>, Linux 6.7).
//!
//! Some writes are not tracked: those through other mappings of the same memory, and those of devices to pages that
//! they hold (RDMA, and O_DIRECT and io_uring requests that began earlier).

use crate::descriptors::apart;
use crate::rules::{Rule, kept};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub const PAGE: usize = 4096;
/// The file with a process's own page map. A process that becomes non-dumpable must open it before that.
pub const PAGEMAP: &str = "/proc/self/pagemap";

const UFFD_API: u64 = 0xAA;
const UFFD_USER_MODE_ONLY: i32 = 1;
const UFFD_FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFDIO_API: u64 = 0xC018_AA3F;
const UFFDIO_REGISTER: u64 = 0xC020_AA00;
const UFFDIO_UNREGISTER: u64 = 0x8010_AA01;
const UFFDIO_REGISTER_MODE_WP: u64 = 2;
const PAGEMAP_SCAN: u64 = 0xC060_6610;
const PM_SCAN_WP_MATCHING: u64 = 1;
const PM_SCAN_CHECK_WPASYNC: u64 = 2;
const PAGE_IS_WRITTEN: u64 = 2;

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioRange {
    start: u64,
    len: u64,
}

#[repr(C)]
struct UffdioRegister {
    range: UffdioRange,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct PmScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// The kernel's record of the pages that this process writes.
pub struct Notes {
    faults: OwnedFd,
    pagemap: OwnedFd,
}

impl Notes {
    /// Opens the page map and starts the tracking.
    ///
    /// # Errors
    /// The kernel's error if it cannot track writes, or an error if it misses a trial write.
    pub fn open() -> io::Result<Notes> {
        let pagemap = apart(|| File::open(PAGEMAP))?;
        Notes::with(pagemap.into())
    }

    /// Starts the tracking with an open [`PAGEMAP`].
    ///
    /// # Errors
    /// The errors of [`Notes::open`].
    pub fn with(pagemap: OwnedFd) -> io::Result<Notes> {
        let faults = apart(|| {
            // SAFETY: takes numbers only and returns a new descriptor or -1.
            match unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | UFFD_USER_MODE_ONLY) } {
                -1 => Err(io::Error::last_os_error()),
                // SAFETY: the descriptor is new.
                fd => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
            }
        })?;
        let features = UFFD_FEATURE_WP_UNPOPULATED | UFFD_FEATURE_WP_ASYNC;
        let mut api = UffdioApi { api: UFFD_API, features, ioctls: 0 };
        control(&faults, UFFDIO_API, &mut api)?;
        let notes = Notes { faults, pagemap };
        notes.has_what_is_written()?;
        Ok(notes)
    }

    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.faults.as_fd(), self.pagemap.as_fd()]
    }

    /// Checks that the kernel tracks a store by this process, and a write by the kernel.
    fn has_what_is_written(&self) -> io::Result<()> {
        let trial = Trial::new(2)?;
        let pages = trial.pages(0..2);
        self.register(&pages)?;
        let first = self.take(&pages)?;
        trial.store(0);
        let stored = self.take(&pages)?;
        trial.store_by_the_kernel(1)?;
        let by_kernel = self.take(&pages)?;
        let seen = first == [pages.clone()] && stored == [trial.pages(0..1)] && by_kernel == [trial.pages(1..2)];
        if seen && self.take(&pages)?.is_empty() || !kept(Rule::TrackProbe) {
            Ok(())
        } else {
            Err(io::Error::other("the kernel did not see what was written for a trial"))
        }
    }

    /// Starts to track writes to these pages. The range must consist of whole pages.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn register(&self, pages: &Range<usize>) -> io::Result<()> {
        let range = UffdioRange { start: pages.start as u64, len: pages.len() as u64 };
        let mut register = UffdioRegister { range, mode: UFFDIO_REGISTER_MODE_WP, ioctls: 0 };
        control(&self.faults, UFFDIO_REGISTER, &mut register)
    }

    /// Stops the tracking of these pages. Also call it for a hole in a file, whose pages the kernel does not report.
    pub fn unregister(&self, pages: &Range<usize>) {
        let mut range = UffdioRange { start: pages.start as u64, len: pages.len() as u64 };
        // An error is ignored: unmapped memory is not registered any more.
        let _ = control(&self.faults, UFFDIO_UNREGISTER, &mut range);
    }

    /// Returns the registered pages that were written since the last call, in order. The first call returns all pages.
    ///
    /// # Errors
    /// The kernel's error if some pages are not registered, for example after a new mapping. The pages found before the
    /// error are lost.
    pub fn take(&self, pages: &Range<usize>) -> io::Result<Vec<Range<usize>>> {
        let (mut regions, mut written) = ([PageRegion::default(); 64], Vec::<Range<usize>>::new());
        let mut scan = PmScanArg {
            size: size_of::<PmScanArg>() as u64,
            flags: PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
            end: pages.end as u64,
            walk_end: pages.start as u64,
            vec_len: regions.len() as u64,
            category_mask: PAGE_IS_WRITTEN,
            return_mask: PAGE_IS_WRITTEN,
            ..PmScanArg::default()
        };
        while scan.walk_end < scan.end {
            (scan.start, scan.vec) = (scan.walk_end, regions.as_mut_ptr().expose_provenance() as u64);
            // SAFETY: the structure has the kernel's layout, and its vector has as many regions as `vec_len`.
            let found = unsafe { libc::ioctl(self.pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
            let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
            written.extend(regions[..found].iter().map(|region| region.start as usize..region.end as usize));
        }
        Ok(written)
    }
}

fn control<T>(descriptor: &OwnedFd, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: each caller passes the structure that the request requires.
    match unsafe { libc::ioctl(descriptor.as_raw_fd(), request, std::ptr::from_mut(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A private mapping for a trial of the tracking.
struct Trial {
    start: usize,
    count: usize,
}

impl Trial {
    fn new(count: usize) -> io::Result<Trial> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping that replaces none.
        match unsafe { libc::mmap(std::ptr::null_mut(), count * PAGE, access, flags, -1, 0) } {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            place => Ok(Trial { start: place.expose_provenance(), count }),
        }
    }

    fn pages(&self, pages: Range<usize>) -> Range<usize> {
        self.start + pages.start * PAGE..self.start + pages.end * PAGE
    }

    fn first_byte(&self, page: usize) -> *mut u8 {
        assert!(page < self.count);
        std::ptr::with_exposed_provenance_mut(self.start + page * PAGE)
    }

    fn store(&self, page: usize) {
        // SAFETY: the byte is in the mapping, which only this value uses.
        unsafe { self.first_byte(page).write_volatile(1) }
    }

    fn store_by_the_kernel(&self, page: usize) -> io::Result<()> {
        // SAFETY: the same as in `store`; one byte is written.
        match unsafe { libc::syscall(libc::SYS_getrandom, self.first_byte(page), 1, 0) } {
            1 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping, and no code uses it any more.
        unsafe { libc::munmap(self.first_byte(0).cast(), self.count * PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 64;

    /// Returns memory whose writes are tracked, and the range of its pages.
    fn followed() -> (Notes, Trial, Range<usize>) {
        let notes = Notes::open().expect("Linux 6.7, where userfaultfd is allowed");
        let memory = Trial::new(PAGES).expect("memory");
        let all = memory.pages(0..PAGES);
        notes.register(&all).expect("private memory");
        (notes, memory, all)
    }

    #[test]
    fn tracking_that_does_not_see_a_trial_write_is_refused() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        // Its page map says nothing of what this process writes.
        let pagemap = File::open(format!("/proc/{}/pagemap", other.id())).expect("its page map");
        let refused = Notes::with(pagemap.into()).map(drop).map_err(|error| error.to_string());
        other.kill().and_then(|()| other.wait()).expect("its end");
        assert_eq!(refused, Err("the kernel did not see what was written for a trial".to_owned()));
    }

    #[test]
    fn what_was_written_is_told_once() {
        let (notes, memory, all) = followed();
        assert_eq!(notes.take(&all).expect("known"), std::slice::from_ref(&all), "at first nothing is known");
        assert_eq!(notes.take(&all).expect("known"), []);
        memory.store(3);
        memory.store(4);
        memory.store_by_the_kernel(9).expect("random bytes");
        let expected = [memory.pages(3..5), memory.pages(9..10)];
        assert_eq!(notes.take(&all).expect("known"), expected);
        // SAFETY: a byte of the memory.
        assert_eq!(unsafe { memory.first_byte(3).read_volatile() }, 1, "to read is not to write");
        assert_eq!(notes.take(&all).expect("known"), []);
        // Write more regions than one scan returns.
        (0..PAGES).step_by(2).for_each(|page| memory.store(page));
        let found = notes.take(&all).expect("known");
        assert_eq!(found.iter().map(Range::len).sum::<usize>(), PAGES / 2 * PAGE);
    }

    #[test]
    fn memory_that_is_given_back_counts_as_written() {
        let (notes, memory, all) = followed();
        (0..PAGES).for_each(|page| memory.store(page));
        notes.take(&all).expect("known");
        // SAFETY: a page of the memory, whose bytes become zeros.
        unsafe { libc::madvise(memory.first_byte(5).cast(), PAGE, libc::MADV_DONTNEED) };
        assert_eq!(notes.take(&all).expect("known"), [memory.pages(5..6)]);
    }

    #[test]
    fn memory_that_is_mapped_anew_is_not_known() {
        let (notes, memory, all) = followed();
        notes.take(&all).expect("known");
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: replaces a page of the memory that is not used any more.
        unsafe { libc::mmap(memory.first_byte(5).cast(), PAGE, access, flags, -1, 0) };
        assert!(notes.take(&all).is_err());
        notes.register(&all).expect("private memory");
        assert_eq!(notes.take(&all).expect("known"), [memory.pages(5..6)]);
    }

    #[test]
    fn a_hole_in_a_file_is_to_be_unregistered() {
        let notes = Notes::open().expect("Linux 6.7, where userfaultfd is allowed");
        // SAFETY: a name, and numbers.
        let file = unsafe { libc::memfd_create(c"trial".as_ptr(), 0) };
        // SAFETY: numbers.
        assert_eq!(unsafe { libc::ftruncate(file, (PAGES * PAGE) as i64) }, 0);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping that replaces none.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), PAGES * PAGE, access, libc::MAP_SHARED, file, 0) };
        let memory = Trial { start: place.expose_provenance(), count: PAGES };
        let all = memory.pages(0..PAGES);
        (0..PAGES / 2).for_each(|page| memory.store(page));
        notes.register(&all).expect("memory of a file");
        assert_eq!(notes.take(&all).expect("known"), std::slice::from_ref(&all));
        assert_eq!(notes.take(&all).expect("known"), []);
        memory.store(2);
        memory.store(40);
        assert_eq!(notes.take(&all).expect("known"), [memory.pages(2..3), memory.pages(40..41)]);
        // SAFETY: pages of the memory, whose bytes become zeros.
        assert_eq!(unsafe { libc::madvise(memory.first_byte(5).cast(), 2 * PAGE, libc::MADV_REMOVE) }, 0);
        assert_eq!(notes.take(&all).expect("known"), [], "so holes are told of otherwise");
        notes.unregister(&memory.pages(5..7));
        assert!(notes.take(&all).is_err());
        notes.register(&all).expect("memory of a file");
        assert_eq!(notes.take(&all).expect("known"), [memory.pages(5..7)]);
    }
}
