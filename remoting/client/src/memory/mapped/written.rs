//! Pages of the program's memory that were written, as the kernel notes it. Used only where the program's user allows
//! it, since the kernel does not see all writes: not those of other mappings, hence of no memory that the program
//! shares.

use super::super::host::HostKind;
use crate::program::{log, process};
use driverapi::descriptors::apart;
use driverapi::written::{Notes, PAGE};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const SETTING: &str = "REMOTEGPU_TRACK_WRITES";
/// Smaller memory is compared sooner than the kernel answers.
const LEAST: usize = 8 * PAGE;

/// Whether all of it is private memory of no file, by a process's list of mappings.
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

/// Returns the kernel's notes, if they are allowed and the kernel has them.
fn kernel() -> Option<&'static Notes> {
    static KERNEL: OnceLock<Option<Notes>> = OnceLock::new();
    let open = || {
        std::env::var_os(SETTING).filter(|value| value == "1")?;
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

/// Whether memory that the program created lies at more than one place, or did.
static HAS_ALIASES: AtomicBool = AtomicBool::new(false);

/// Notes that memory which the program created is about to have a second place.
pub fn note_alias() {
    HAS_ALIASES.store(true, SeqCst);
}

/// Whole pages of the program, whose writes the kernel notes. Where a worker on this machine may write too, its copies
/// are known when they have landed.
pub struct Written {
    pages: Range<usize>,
}

impl Written {
    /// Makes the kernel note from now on what is written to the whole pages of this memory; `None` where that cannot be
    /// known.
    pub fn follow(start: usize, size: usize, kind: HostKind) -> Option<Written> {
        let pages = start.next_multiple_of(PAGE)..(start + size) / PAGE * PAGE;
        if pages.len() < LEAST {
            return None;
        }
        let kernel = kernel()?;
        let is_known = match kind {
            HostKind::Allocated => true,
            HostKind::Created => !HAS_ALIASES.load(SeqCst),
            HostKind::Registered | HostKind::Managed | HostKind::Variable => {
                let maps = apart(|| std::fs::read_to_string("/proc/self/maps")).ok()?;
                is_private(&maps, &pages)
            }
        };
        if !is_known {
            return None;
        }
        kernel.register(&pages).ok()?;
        Some(Written { pages })
    }

    /// The pages that the kernel notes.
    pub fn pages(&self) -> &Range<usize> {
        &self.pages
    }

    /// Returns the ranges written since the last call, at first all; `None` if that is not known any more.
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
