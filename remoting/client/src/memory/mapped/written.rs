//! Which pages of the program's memory were written, as the kernel notes it: asynchronous write protection of userfaultfd,
//! and PAGEMAP_SCAN (<https://docs.kernel.org/admin-guide/mm/pagemap.html>, Linux 6.7). Only where the program's user
//! allows it, since the kernel does not see all writes: not those of devices into pages that they hold (O_DIRECT and
//! io_uring that began before, RDMA). Private memory alone: of shared memory other mappings write unseen.

use crate::{log, process, sys};
use driverapi::descriptors::apart;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

const SETTING: &str = "REMOTEGPU_TRACK_WRITES";
const PAGE: usize = 4096;
/// Less is compared sooner than the kernel answers.
const LEAST: usize = 8 * PAGE;

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

struct Kernel {
    faults: OwnedFd,
    pagemap: File,
}

impl Kernel {
    fn open() -> io::Result<Kernel> {
        let faults = apart(|| {
            // SAFETY: takes numbers only; a new descriptor or -1.
            match unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | UFFD_USER_MODE_ONLY) } {
                -1 => Err(io::Error::last_os_error()),
                // SAFETY: the descriptor is new.
                fd => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
            }
        })?;
        let features = UFFD_FEATURE_WP_UNPOPULATED | UFFD_FEATURE_WP_ASYNC;
        let mut api = UffdioApi { api: UFFD_API, features, ioctls: 0 };
        control(&faults, UFFDIO_API, &mut api)?;
        let kernel = Kernel { faults, pagemap: apart(|| File::open("/proc/self/pagemap"))? };
        process::close_in_children(kernel.faults.as_raw_fd());
        process::close_in_children(kernel.pagemap.as_raw_fd());
        kernel.tells_of_its_own_writes()?;
        Ok(kernel)
    }

    /// Is a store seen, and a write of the kernel?
    fn tells_of_its_own_writes(&self) -> io::Result<()> {
        let place = sys::allocate_pages(2 * PAGE);
        if place.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let start = place.expose_provenance();
        let pages = start..start + 2 * PAGE;
        let is_seen = self.register(&pages).and_then(|()| {
            let first = self.take(&pages)?;
            // SAFETY: the pages were just mapped, and nobody else has them.
            unsafe { place.cast::<u8>().write_volatile(1) };
            let stored = self.take(&pages)?;
            let written = sys::write_memory(start + PAGE, &[1]);
            let by_kernel = self.take(&pages)?;
            let is = |found: &[Range<usize>], part: Range<usize>| found.len() == 1 && found[0] == part;
            Ok(is(&first, pages.clone())
                && is(&stored, start..start + PAGE)
                && (!written || is(&by_kernel, start + PAGE..start + 2 * PAGE))
                && self.take(&pages)?.is_empty())
        });
        // SAFETY: they are used no more.
        unsafe { sys::free_pages(place, 2 * PAGE) };
        if is_seen? { Ok(()) } else { Err(io::Error::other("the kernel did not see what was written for a trial")) }
    }

    fn register(&self, pages: &Range<usize>) -> io::Result<()> {
        let range = UffdioRange { start: pages.start as u64, len: pages.len() as u64 };
        let mut register = UffdioRegister { range, mode: UFFDIO_REGISTER_MODE_WP, ioctls: 0 };
        control(&self.faults, UFFDIO_REGISTER, &mut register)
    }

    fn unregister(&self, pages: &Range<usize>) {
        let mut range = UffdioRange { start: pages.start as u64, len: pages.len() as u64 };
        // What the program has unmapped is registered no more.
        let _ = control(&self.faults, UFFDIO_UNREGISTER, &mut range);
    }

    /// What was written of registered pages since this was last asked; at first, all.
    fn take(&self, pages: &Range<usize>) -> io::Result<Vec<Range<usize>>> {
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
            // SAFETY: the structure has the kernel's layout, and its vector as many regions as it says.
            let found = unsafe { libc::ioctl(self.pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
            let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
            written.extend(regions[..found].iter().map(|region| region.start as usize..region.end as usize));
        }
        Ok(written)
    }
}

fn control<T>(descriptor: &OwnedFd, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: each caller gives the structure that the request takes.
    match unsafe { libc::ioctl(descriptor.as_raw_fd(), request, std::ptr::from_mut(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Is all of it private memory of no file, by a process's list of mappings?
fn is_private(maps: &str, pages: &Range<usize>) -> bool {
    let mut at = pages.start;
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let bounds = fields.next().and_then(|bounds| bounds.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        let Some((Some(start), Some(end))) = bounds.map(|(start, end)| (number(start), number(end))) else {
            return false;
        };
        if at < pages.end && (start..end).contains(&at) {
            let (flags, inode) = (fields.next(), fields.nth(2));
            if !flags.is_some_and(|flags| flags.ends_with('p')) || inode != Some("0") {
                return false;
            }
            at = end;
        }
    }
    at >= pages.end
}

/// If it is allowed, and the kernel can.
fn kernel() -> Option<&'static Kernel> {
    static KERNEL: OnceLock<Option<Kernel>> = OnceLock::new();
    let open = || {
        std::env::var_os(SETTING).filter(|value| value == "1")?;
        let tell = |error: &io::Error| {
            log::error(&format!(
                "{SETTING} is set, but the kernel does not tell what was written ({error}): all page-locked memory that \
                 kernels use in place is compared before each command. It takes Linux 6.7 and a sandbox that allows \
                 userfaultfd"
            ));
        };
        Kernel::open().inspect_err(tell).ok()
    };
    KERNEL.get_or_init(open).as_ref()
}

/// Whole pages of the program, of which the kernel notes what is written.
pub struct Written {
    pages: Range<usize>,
}

impl Written {
    /// Notes from now on what is written of the whole pages of this memory; `None` where that is not known.
    pub fn follow(start: usize, size: usize) -> Option<Written> {
        let pages = start.next_multiple_of(PAGE)..(start + size) / PAGE * PAGE;
        if pages.len() < LEAST {
            return None;
        }
        let kernel = kernel()?;
        let maps = apart(|| std::fs::read_to_string("/proc/self/maps")).ok()?;
        if !is_private(&maps, &pages) {
            return None;
        }
        kernel.register(&pages).ok()?;
        Some(Written { pages })
    }

    /// The pages that it knows of.
    pub fn pages(&self) -> &Range<usize> {
        &self.pages
    }

    /// What was written of them since this was last asked, at first all; `None` if it is not known any more.
    pub fn take(&self) -> Option<Vec<Range<usize>>> {
        kernel()?.take(&self.pages).ok()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if let Some(kernel) = kernel() {
            kernel.unregister(&self.pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    const PAGES: usize = 64;

    struct Memory(*mut u8);

    impl Memory {
        fn new() -> Memory {
            Memory(sys::allocate_pages(PAGES * PAGE))
        }

        fn pages(&self, pages: Range<usize>) -> Range<usize> {
            let start = self.0.expose_provenance();
            start + pages.start * PAGE..start + pages.end * PAGE
        }

        fn bytes(&mut self, page: usize) -> &mut [u8] {
            // SAFETY: a page of the memory, which is borrowed as a whole.
            unsafe { std::slice::from_raw_parts_mut(self.0.add(page * PAGE), PAGE) }
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: it was allocated so, and is used no more.
            unsafe { sys::free_pages(self.0, PAGES * PAGE) }
        }
    }

    /// Memory of which the kernel notes what is written, and all its pages.
    fn followed() -> (Kernel, Memory, Range<usize>) {
        let kernel = Kernel::open().expect("Linux 6.7, where userfaultfd is allowed");
        let memory = Memory::new();
        let all = memory.pages(0..PAGES);
        kernel.register(&all).expect("private memory");
        (kernel, memory, all)
    }

    #[test]
    fn what_was_written_is_told_once() {
        let (kernel, mut memory, all) = followed();
        assert_eq!(kernel.take(&all).expect("known"), std::slice::from_ref(&all), "at first nothing is known");
        assert_eq!(kernel.take(&all).expect("known"), []);
        memory.bytes(3)[7] = 1;
        memory.bytes(4)[0] = 1;
        File::open("/dev/zero").and_then(|mut zeros| zeros.read_exact(memory.bytes(9))).expect("zeros");
        let expected = [memory.pages(3..5), memory.pages(9..10)];
        assert_eq!(kernel.take(&all).expect("known"), expected);
        assert_eq!(memory.bytes(3)[7], 1, "to read is not to write");
        assert_eq!(kernel.take(&all).expect("known"), []);
        // More of them than one answer has.
        (0..PAGES).step_by(2).for_each(|page| memory.bytes(page)[1] = 1);
        let found = kernel.take(&all).expect("known");
        assert_eq!(found.iter().map(Range::len).sum::<usize>(), PAGES / 2 * PAGE);
    }

    #[test]
    fn memory_that_is_given_back_counts_as_written() {
        let (kernel, mut memory, all) = followed();
        (0..PAGES).for_each(|page| memory.bytes(page)[1] = 1);
        kernel.take(&all).expect("known");
        // SAFETY: a page of the memory, whose bytes become zeros.
        unsafe { libc::madvise(memory.0.add(5 * PAGE).cast(), PAGE, libc::MADV_DONTNEED) };
        assert_eq!(kernel.take(&all).expect("known"), [memory.pages(5..6)]);
        assert_eq!(memory.bytes(5)[1], 0);
    }

    #[test]
    fn private_memory_is_told_from_what_others_may_write() {
        let maps = "1000-3000 rw-p 00000000 00:00 0 \n3000-4000 rw-p 00000000 00:00 0    [heap]\n\
                    4000-5000 rw-s 00000000 00:01 77  /memfd:remotegpu-pinned (deleted)\n\
                    5000-6000 r--p 00000000 fd:00 12  /usr/lib/x.so\n7000-8000 rw-p 00000000 00:00 0\n";
        for (start, end, expected) in [
            (0x1000, 0x2000, true),
            (0x2000, 0x4000, true),
            (0x3000, 0x5000, false),
            (0x4000, 0x5000, false),
            (0x5000, 0x6000, false),
            (0x6000, 0x8000, false),
            (0x7000, 0x8000, true),
            (0x7000, 0x9000, false),
        ] {
            assert_eq!(is_private(maps, &(start..end)), expected, "{start:#x}");
        }
        let own = Memory::new();
        let now = std::fs::read_to_string("/proc/self/maps").expect("a list");
        assert!(is_private(&now, &own.pages(0..PAGES)));
    }
}
