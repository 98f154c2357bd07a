//! Events that processes share (`CU_EVENT_INTERPROCESS`): a page of words that all of them have.

use crate::ffi::R;
use crate::memory::arena::{PAGE, SharedPage};
use crate::memory::process_handle::has_ended;
use driverapi::descriptors::apart;
use driverapi::errors::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_OUT_OF_MEMORY};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The interval at which a waiting thread looks.
const INTERVAL: Duration = Duration::from_micros(50);
/// The number of looks after which it checks whether the process that it waits for still exists.
const PATIENCE: u32 = 100;
/// Records that may be under way at a time; an older one counts as complete with the one that takes its place.
const RECORDS: u64 = (SharedPage::WORDS as u64 - 1) / 2;

/// Records are numbered. The first word has the latest number; then there are two words for each record: the process
/// that makes it, and whether it is complete.
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

    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` for a file that is not an event's.
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

    /// The latest record of any process; 0 if there was none.
    pub fn latest(&self) -> u64 {
        self.page.word(0).load(Ordering::Acquire)
    }

    /// Begins a record that this process completes.
    pub fn begin(&self) -> u64 {
        let record = self.page.word(0).fetch_add(1, Ordering::AcqRel) + 1;
        self.maker(record).store(record << 32 | u64::from(std::process::id()), Ordering::Release);
        record
    }

    pub fn finish(&self, record: u64) {
        self.complete(record).fetch_max(record, Ordering::AcqRel);
    }

    /// Whether no wait is needed: the record is complete, or its process has ended.
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

    /// Waits for a record, or until `given_up`.
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
