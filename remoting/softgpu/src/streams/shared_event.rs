//! Events that several processes share (`CU_EVENT_INTERPROCESS`). The event's words are on a page that all of them map.

use crate::ffi::R;
use crate::memory::arena::{PAGE, SharedPage};
use crate::memory::process_handle::has_ended;
use driverapi::descriptors::apart;
use driverapi::errors::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_OUT_OF_MEMORY};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The interval at which a waiting thread checks the record.
const INTERVAL: Duration = Duration::from_micros(50);
/// The number of checks after which a waiting thread tests whether the recording process still exists.
const PATIENCE: u32 = 100;
/// The maximum number of incomplete records. A new record reuses the words of an old one, which then counts as complete
/// when the new one is.
const RECORDS: u64 = (SharedPage::WORDS as u64 - 1) / 2;

/// An event whose records are numbered. The first word of its page is the latest number. Each record then has two
/// words: the process that made it, and whether it is complete.
pub struct SharedEvent {
    file: OwnedFd,
    page: SharedPage,
}

impl SharedEvent {
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    pub fn create() -> R<SharedEvent> {
        let make = || {
            let file = apart(|| memfd_create("softgpu-event", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING))?;
            ftruncate(&file, PAGE)?;
            fcntl_add_seals(&file, SharedEvent::SEALS)?;
            rustix::io::Result::Ok(file)
        };
        let file = make().map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(SharedEvent { page: SharedPage::show(file.as_fd())?, file })
    }

    /// Opens the event of another process by its file.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` if the file is not that of an event.
    pub fn import(file: OwnedFd) -> R<SharedEvent> {
        let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SharedEvent::SEALS));
        if !sealed || fstat(&file).is_ok_and(|found| found.st_size as u64 != PAGE) {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        Ok(SharedEvent { page: SharedPage::show(file.as_fd())?, file })
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn maker(&self, record: u64) -> &AtomicU64 {
        self.page.word(1 + 2 * (record % RECORDS) as usize)
    }

    fn complete(&self, record: u64) -> &AtomicU64 {
        self.page.word(2 + 2 * (record % RECORDS) as usize)
    }

    /// Returns the latest record of any process, or 0 if there is none.
    pub fn latest(&self) -> u64 {
        self.page.word(0).load(Ordering::Acquire)
    }

    /// Begins a record and returns its number. This process must complete the record.
    pub fn begin(&self) -> u64 {
        let record = self.page.word(0).fetch_add(1, Ordering::AcqRel) + 1;
        self.maker(record).store(record << 32 | u64::from(std::process::id()), Ordering::Release);
        record
    }

    pub fn finish(&self, record: u64) {
        self.complete(record).fetch_max(record, Ordering::AcqRel);
    }

    /// Whether the record is complete or its process has ended. In both cases no wait is needed.
    pub fn is_complete(&self, record: u64) -> bool {
        self.was_finished(record) || self.is_orphan(record)
    }

    fn was_finished(&self, record: u64) -> bool {
        self.complete(record).load(Ordering::Acquire) >= record
    }

    fn is_orphan(&self, record: u64) -> bool {
        let maker = self.maker(record).load(Ordering::Acquire);
        maker >> 32 == record & u64::from(u32::MAX) && has_ended(maker as u32)
    }

    /// Waits until a record is complete or `given_up` returns true.
    pub fn wait(&self, record: u64, given_up: impl Fn() -> bool) {
        let mut looks = 0;
        while !self.was_finished(record) && !given_up() {
            looks += 1;
            if looks % PATIENCE == 0 && self.is_orphan(record) {
                return;
            }
            std::thread::sleep(INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_the_file_sees_the_latest_record() {
        let event = SharedEvent::create().unwrap();
        let other = SharedEvent::import(event.file().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(other.latest(), 0);
        assert!(other.is_complete(0));
        let (first, second) = (event.begin(), other.begin());
        assert_eq!(event.latest(), second);
        other.finish(second);
        assert!(event.is_complete(second) && !event.is_complete(first));
        event.finish(first);
        other.wait(first, || false);
    }

    #[test]
    fn a_record_of_a_process_that_ended_is_waited_for_no_longer() {
        let event = SharedEvent::create().unwrap();
        let record = event.begin();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        event.maker(record).store(record << 32 | u64::from(child.id()), Ordering::Release);
        event.wait(record, || false);
        assert!(event.is_complete(record));
        child.wait().unwrap();
    }

    #[test]
    fn another_file_is_no_event() {
        let file = memfd_create("other", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, PAGE).unwrap();
        assert_eq!(SharedEvent::import(file).map(drop), Err(CUDA_ERROR_INVALID_HANDLE));
    }
}
