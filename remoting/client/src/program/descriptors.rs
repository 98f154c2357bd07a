//! A list of the descriptors that `connect` has open. A forked child closes them.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};

const NONE: i32 = -1;

/// The open descriptors. This array has no lock, because a forked child reads it, and another thread may have held the
/// lock at the fork.
static OPEN: [AtomicI32; 256] = [const { AtomicI32::new(NONE) }; 256];

/// Returns the sockets that a forked child closes, so that a session ends with its process and not with its last child.
pub fn open_fds() -> impl Iterator<Item = RawFd> {
    OPEN.iter().map(|slot| slot.load(Ordering::Acquire)).filter(|fd| *fd != NONE)
}

/// Keeps a descriptor on the list until it is dropped. It must be dropped before the descriptor is closed.
#[derive(Debug)]
pub struct Listed(Option<&'static AtomicI32>);

impl Listed {
    pub fn new(fd: RawFd) -> Self {
        let free = |slot: &&AtomicI32| slot.compare_exchange(NONE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        Listed(OPEN.iter().find(free))
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.store(NONE, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_listed_while_its_guard_lives() {
        let fd = 1_000_001;
        let listed = Listed::new(fd);
        assert!(open_fds().any(|open| open == fd));
        drop(listed);
        assert!(open_fds().all(|open| open != fd));
    }
}
