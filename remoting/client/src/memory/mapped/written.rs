//! Tracking of the program's writes by the kernel, per page. It is used only if the user enables it. The kernel does
//! not see writes through other mappings, so shared memory of the program is not tracked.

use super::super::host::HostKind;
use crate::program::{log, process};
use driverapi::descriptors::apart;
use driverapi::rules::{Rule, kept};
use driverapi::written::{Notes, PAGE};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const SETTING: &str = "REMOTEGPU_TRACK_WRITES";
/// The minimum size in bytes of memory whose writes are tracked. Smaller memory is compared faster than the kernel
/// answers.
const LEAST: usize = 8 * PAGE;

/// Returns whether all pages are private anonymous memory. `maps` is the content of `/proc/self/maps`.
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

/// Returns the kernel's write tracking, if the user enables it and the kernel supports it.
fn kernel() -> Option<&'static Notes> {
    static KERNEL: OnceLock<Option<Notes>> = OnceLock::new();
    let open = || {
        std::env::var_os(SETTING).filter(|value| value == "1" || !kept(Rule::TrackAsked))?;
        let tell = |error: &io::Error| {
            log::error(&format!(
                "{SETTING} is set, but the kernel does not tell what was written ({error}): all page-locked memory that \
                 kernels use in place is compared before each command. It takes Linux 6.7 and a sandbox that allows \
                 userfaultfd"
            ));
        };
        let kernel = Notes::open().inspect_err(tell).ok()?;
        kernel.descriptors().into_iter().for_each(|descriptor| process::close_in_children(descriptor.as_raw_fd()));
        Some(kernel)
    };
    KERNEL.get_or_init(open).as_ref()
}

/// Whether memory that the program created was ever mapped at more than one address.
static HAS_ALIASES: AtomicBool = AtomicBool::new(false);

/// Records that the program maps created memory at a second address.
pub fn note_alias() {
    HAS_ALIASES.store(true, SeqCst);
}

/// Whole pages of the program for which the kernel tracks writes. A worker on this machine may write there too; its
/// copies are recorded separately.
pub struct Written {
    pages: Range<usize>,
}

impl Written {
    /// Starts the tracking of writes to the whole pages of this memory. Returns `None` if that is not possible.
    pub fn follow(start: usize, size: usize, kind: HostKind) -> Option<Written> {
        let pages = start.next_multiple_of(PAGE)..(start + size) / PAGE * PAGE;
        if pages.len() < LEAST {
            return None;
        }
        let kernel = kernel()?;
        let is_known = match kind {
            HostKind::Allocated => true,
            HostKind::Created => !HAS_ALIASES.load(SeqCst) || !kept(Rule::TrackAlias),
            HostKind::Registered | HostKind::Managed | HostKind::Variable => {
                let maps = apart(|| std::fs::read_to_string("/proc/self/maps")).ok()?;
                is_private(&maps, &pages) || !kept(Rule::TrackPrivate)
            }
        };
        if !is_known {
            return None;
        }
        kernel.register(&pages).ok()?;
        Some(Written { pages })
    }

    /// Returns the range of the tracked pages.
    pub fn pages(&self) -> &Range<usize> {
        &self.pages
    }

    /// Returns the ranges that were written since the last call. The first call returns all pages. Returns `None` if
    /// the kernel does not track these pages any more.
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
        let own = crate::program::sys::allocate_pages(2 * PAGE).expose_provenance();
        let now = std::fs::read_to_string("/proc/self/maps").expect("a list");
        assert!(is_private(&now, &(own..own + 2 * PAGE)));
    }
}
