//! Events that several sessions of a lease have. A page of memory that their workers share counts the records: who waits
//! reads there which is the latest, and looks until it is complete. An error of a record stays with the session that made it.

use crate::driver::Result;
use crate::requests::{Request, Token};
use crate::session::Session;
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

/// The first words of the page: the number of the latest record, and of the latest that is complete. The appliance sets
/// the second to the largest number when the exporter is gone.
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

    /// # Errors
    /// If the system has no more memory or descriptors.
    pub fn create() -> io::Result<Page> {
        let file = memfd_create("remotegpu-event", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, PAGE)?;
        fcntl_add_seals(&file, Page::SEALS)?;
        Page::open(file)
    }

    /// What another worker created.
    ///
    /// # Errors
    /// If it is no such page.
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

    /// # Errors
    /// If there are no more descriptors.
    pub fn file(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }

    fn words(&self) -> &Words {
        // SAFETY: mapped until the page is dropped; other processes change the words as atomics only, and any value is one.
        unsafe { self.words.as_ref() }
    }

    /// The number of a new record.
    pub fn record(&self) -> u64 {
        self.words().recorded.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    pub fn complete(&self, number: u64) {
        self.words().completed.fetch_max(number, Ordering::AcqRel);
    }

    /// The number of the latest record.
    fn latest(&self) -> u64 {
        self.words().recorded.load(Ordering::Acquire)
    }

    fn is_complete(&self, number: u64) -> bool {
        self.words().completed.load(Ordering::Acquire) >= number
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped in `open`, and nothing refers to it any more.
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

enum Then {
    OpenGate(u64),
    Reply(u64),
}

struct Wait {
    page: Rc<Page>,
    number: u64,
    then: Then,
}

#[derive(Default)]
pub struct SharedEvents {
    live: HashMap<u64, SharedEvent>,
    waits: Vec<Wait>,
}

impl SharedEvents {
    /// Waits that a client may have outstanding.
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

    /// A record of this session is complete.
    fn done(&mut self, event: u64, generation: u64) {
        if let Some(shared) = self.live.get_mut(&event)
            && let Some(number) = shared.numbers.remove(&generation)
        {
            shared.page.complete(number);
        }
    }

    /// The token of an event that is destroyed, when no record of it is outstanding any more.
    fn ended(&mut self, event: u64) -> Option<Token> {
        let ended = self.live.get(&event).is_some_and(|shared| shared.destroyed && shared.numbers.is_empty());
        if ended { self.live.remove(&event).map(|shared| shared.token) } else { None }
    }

    pub fn is_pending(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Whether the latest record is complete; if it is not, `then` happens when it is.
    fn wait(&mut self, event: u64, then: Then) -> Result<bool> {
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
}

impl Session {
    pub fn shared_event_record(&mut self, seq: u64, event: u64, generation: u64) -> Result<()> {
        let shared = self.shared_events.get(event)?;
        let number = shared.page.record();
        shared.numbers.insert(generation, number);
        self.reply(seq, 0);
        Ok(())
    }

    pub fn shared_event_gate(&mut self, seq: u64, event: u64, gate: u64) -> Result<()> {
        let complete = self.shared_events.wait(event, Then::OpenGate(gate))?;
        self.reply(seq, if complete { 0 } else { CUDA_ERROR_NOT_READY });
        Ok(())
    }

    pub fn shared_event_synchronize(&mut self, seq: u64, event: u64) -> Result<()> {
        if self.shared_events.wait(event, Then::Reply(seq))? {
            self.synchronised(seq, 0);
        }
        Ok(())
    }

    pub fn shared_event_query(&mut self, seq: u64, event: u64) -> Result<()> {
        let page = &self.shared_events.get(event)?.page;
        let code = if page.is_complete(page.latest()) { 0 } else { CUDA_ERROR_NOT_READY };
        // Bytes that landed before go first.
        self.collect();
        self.reply(seq, code);
        Ok(())
    }

    /// Goes on with what waited for records that are complete. Returns whether there was any.
    pub fn take_shared_waits(&mut self) -> bool {
        let ready = |wait: &mut Wait| wait.page.is_complete(wait.number);
        let ready: Vec<_> = self.shared_events.waits.extract_if(.., ready).collect();
        for wait in &ready {
            match wait.then {
                Then::OpenGate(gate) => self.gate_open(gate),
                Then::Reply(seq) => self.synchronised(seq, 0),
            }
        }
        !ready.is_empty()
    }

    pub fn shared_event_done(&mut self, event: u64, generation: u64) {
        self.shared_events.done(event, generation);
        self.release_shared_event(event);
    }

    /// The event is destroyed; other sessions still wait for its outstanding records.
    pub fn shared_event_destroy(&mut self, event: u64) {
        if let Ok(shared) = self.shared_events.get(event) {
            shared.destroyed = true;
            self.release_shared_event(event);
        }
    }

    /// All work of the context is complete, and its events are gone.
    pub fn end_shared_events(&mut self, context: u64) {
        let of_context = self.shared_events.live.iter().filter(|(_, shared)| shared.context == context);
        for event in of_context.map(|(event, _)| *event).collect::<Vec<_>>() {
            if let Some(shared) = self.shared_events.live.remove(&event) {
                shared.numbers.values().for_each(|number| shared.page.complete(*number));
                self.requests.push(Request::Release { token: shared.token });
            }
        }
    }

    fn release_shared_event(&mut self, event: u64) {
        if let Some(token) = self.shared_events.ended(event) {
            self.requests.push(Request::Release { token });
        }
    }
}
