//! Events that several sessions of a lease share. A memory page that their workers share counts the records of an
//! event. A worker that waits reads the number of the latest record and polls the page until that record is complete.
//! Only the session that made a record learns of its error.

use crate::driver::Result;
use crate::packets::Token;
use driverapi::errors::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: u64 = 4096;

/// The first words of the page: the number of the latest record, and the number of the latest complete record. When the
/// exporter has ended, the appliance sets the second word to the largest number.
#[repr(C)]
struct Words {
    recorded: AtomicU64,
    completed: AtomicU64,
}

#[derive(Debug)]
pub struct Page {
    words: NonNull<Words>,
    file: OwnedFd,
}

impl Page {
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    /// Creates a page for a new shared event.
    ///
    /// # Errors
    /// Fails if the system has no more memory or descriptors.
    pub fn create() -> io::Result<Page> {
        let file = memfd_create("remotegpu-event", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, PAGE)?;
        fcntl_add_seals(&file, Page::SEALS)?;
        Page::open(file)
    }

    /// Opens a page that another worker created.
    ///
    /// # Errors
    /// Fails if the file is not a page of this kind.
    pub fn open(file: OwnedFd) -> io::Result<Page> {
        if fstat(&file)?.st_size as u64 != PAGE || !fcntl_get_seals(&file)?.contains(Page::SEALS) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: a new mapping that replaces none, of a file whose size cannot change.
        let at =
            unsafe { mmap(null_mut(), PAGE as usize, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)? };
        let words = NonNull::new(at.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Page { words, file })
    }

    /// Returns a descriptor of the page, for other workers.
    ///
    /// # Errors
    /// Fails if no descriptors are left.
    pub fn file(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }

    fn words(&self) -> &Words {
        // SAFETY: mapped until the page is dropped. Other processes change the words only as atomics, and every value
        // is valid.
        unsafe { self.words.as_ref() }
    }

    /// Adds a record and returns its number.
    pub fn record(&self) -> u64 {
        self.words().recorded.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    pub fn complete(&self, number: u64) {
        self.words().completed.fetch_max(number, Ordering::AcqRel);
    }

    /// Returns the number of the latest record.
    fn latest(&self) -> u64 {
        self.words().recorded.load(Ordering::Acquire)
    }

    fn is_complete(&self, number: u64) -> bool {
        self.words().completed.load(Ordering::Acquire) >= number
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped in `open`, and no reference to it is left.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), PAGE as usize) };
    }
}

struct SharedEvent {
    context: u64,
    page: Rc<Page>,
    token: Token,
    /// The numbers of this session's records that are not complete, by generation.
    numbers: HashMap<u64, u64>,
    destroyed: bool,
}

/// The action to run when a record is complete.
pub enum Then {
    OpenGate(u64),
    Reply(u64),
}

struct Wait {
    page: Rc<Page>,
    number: u64,
    then: Then,
}

/// The shared events of a session. `sharing` executes the commands for them.
#[derive(Default)]
pub struct SharedEvents {
    live: HashMap<u64, SharedEvent>,
    waits: Vec<Wait>,
}

impl SharedEvents {
    /// Limit on a client's pending waits.
    const MOST_WAITS: usize = 1 << 16;

    pub fn contains(&self, event: u64) -> bool {
        self.live.contains_key(&event)
    }

    pub fn insert(&mut self, event: u64, context: u64, page: Rc<Page>, token: Token) {
        self.live.insert(event, SharedEvent { context, page, token, numbers: HashMap::new(), destroyed: false });
    }

    fn get(&mut self, event: u64) -> Result<&mut SharedEvent> {
        self.live.get_mut(&event).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn record(&mut self, event: u64, generation: u64) -> Result<()> {
        let shared = self.get(event)?;
        let number = shared.page.record();
        shared.numbers.insert(generation, number);
        Ok(())
    }

    /// Marks a record of this session as complete. If the event was destroyed and has no other pending record, removes
    /// the event and returns its token.
    pub fn done(&mut self, event: u64, generation: u64) -> Option<Token> {
        let shared = self.live.get_mut(&event)?;
        if let Some(number) = shared.numbers.remove(&generation) {
            shared.page.complete(number);
        }
        self.ended(event)
    }

    /// Destroys an event. Returns its token if no record of it is pending. Otherwise the event stays, because other
    /// sessions still wait for its records.
    pub fn destroy(&mut self, event: u64) -> Option<Token> {
        self.live.get_mut(&event)?.destroyed = true;
        self.ended(event)
    }

    fn ended(&mut self, event: u64) -> Option<Token> {
        let ended = self.live.get(&event).is_some_and(|shared| shared.destroyed && shared.numbers.is_empty());
        if ended { self.live.remove(&event).map(|shared| shared.token) } else { None }
    }

    /// Removes the shared events of a context whose work is complete. Returns their tokens.
    pub fn end_context(&mut self, context: u64) -> Vec<Token> {
        let of_context = self.live.extract_if(|_, shared| shared.context == context);
        let end = |(_, shared): (u64, SharedEvent)| {
            shared.numbers.values().for_each(|number| shared.page.complete(*number));
            shared.token
        };
        of_context.map(end).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    pub fn is_pending(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Whether the latest record of the event is complete.
    pub fn is_complete(&mut self, event: u64) -> Result<bool> {
        let page = &self.get(event)?.page;
        Ok(page.is_complete(page.latest()))
    }

    /// Returns whether the latest record of the event is complete. If not, [`Self::ready`] returns `then` when it is.
    pub fn wait(&mut self, event: u64, then: Then) -> Result<bool> {
        let page = Rc::clone(&self.get(event)?.page);
        let number = page.latest();
        if page.is_complete(number) {
            return Ok(true);
        }
        if self.waits.len() >= Self::MOST_WAITS {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        self.waits.push(Wait { page, number, then });
        Ok(false)
    }

    /// Removes and returns the actions whose records are now complete.
    pub fn ready(&mut self) -> Vec<Then> {
        let ready = self.waits.extract_if(.., |wait| wait.page.is_complete(wait.number));
        ready.map(|wait| wait.then).collect()
    }
}
