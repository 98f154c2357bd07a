//! The fields of a session: its connection, the queue of commands, the awaited answers, and the reason of its end.

use super::Known;
use super::parts::arena::Arena;
use super::parts::held::Held;
use super::parts::host_calls::Callbacks;
use super::parts::jobs::Jobs;
use super::parts::landings::Landings;
use super::parts::outbox::Outbox;
use super::parts::pieces::Ring;
use super::parts::receiver::Receiver;
use super::parts::reconnect::Reconnect;
use super::parts::sharing::Shared;
use super::parts::stripe::Stripes;
use super::parts::wait::{Lead, Slot, lock};
use super::parts::wake::Wake;
use super::pending::Pending;
use crate::Code;
use crate::locks::Ordered;
use crate::program::{log, process, sys};
use driverapi::errors::{CUDA_ERROR_EXTERNAL_DEVICE, is_sticky};
use protocol::{EVENTS_TELL, MirrorsTold, since};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};

/// After this long without a byte a waiting call probes whether the peer is alive, and then waits as long for the
/// answer.
pub(super) const QUIET_SECONDS: u32 = 5;

/// The most bytes of news that wait for a call that lets the host see them.
const MOST_NEWS: usize = 16 << 20;

/// The device's writes to mirrors: the worker's report, and the bytes of the runs.
pub struct News {
    pub told: MirrorsTold,
    pub bytes: Vec<u8>,
}

/// Bytes of captured copies that the worker has not taken yet.
#[derive(Default)]
pub(super) struct Window {
    pub(super) outstanding: u64,
    pub(super) waiters: Vec<Arc<Slot>>,
}

/// The last record of an event that is known to be complete.
#[derive(Default)]
pub struct Progress {
    pub done: AtomicU64,
}

/// The connection of this process to its worker on one appliance.
pub struct Session {
    pub(super) socket: OwnedFd,
    /// The name of the appliance, for people.
    pub(super) peer: String,
    /// The version of the wire that the worker speaks on this session.
    pub(super) wire: u32,
    pub(super) outbox: Ordered<Outbox>,
    /// Signals that there is a connection again, that the share is no longer suspended, or that the session is lost.
    pub(super) reconnected: Condvar,
    /// Whether the share is suspended: then little is sent.
    pub(super) held: Held,
    /// Wakes the background thread that sends.
    pub(super) wake: Wake,
    /// The way to reach the worker again.
    pub(super) reconnect: OnceLock<Reconnect>,
    pub(super) epoch: AtomicU64,
    /// Three values: bytes that the reader has received; how many of them the worker knows of; whether it must get an
    /// acknowledgement.
    pub(super) received: AtomicU64,
    pub(super) told: AtomicU64,
    pub(super) must_acknowledge: AtomicBool,
    /// Bytes that the worker has received.
    pub(super) acknowledged: AtomicU64,
    pub(super) lead: Lead,
    pub(super) receiver: Ordered<Receiver>,
    pub(super) watch: sys::Watch,
    pub(super) pending: Ordered<BTreeMap<u64, Pending>>,
    /// The code that every call answers from now on, or 0.
    pub(super) failure: AtomicU32,
    /// The code of a failed copy that no call waited for, until a synchronising call has answered it; or 0.
    pub(super) late: AtomicU32,
    pub(super) lost: AtomicBool,
    pub(super) last_work: AtomicU64,
    /// How many launches were sent.
    pub(super) launches: AtomicU64,
    pub(super) window: Mutex<Window>,
    pub(super) fences: Mutex<HashMap<u64, Arc<Slot>>>,
    pub(super) events: Mutex<HashMap<u64, Weak<Progress>>>,
    pub(super) callbacks: Callbacks,
    pub(super) jobs: Jobs<Session>,
    pub(super) shared: Shared,
    pub(super) ring: Ordered<Ring>,
    /// The worker's reports on mirrors, until a call lets the host see them.
    pub(super) news: Mutex<Vec<News>>,
    pub(super) news_bytes: AtomicUsize,
    pub(super) landings: Landings,
    /// The commands of all streams that are not known to be complete; a long command counts several times (`weight`).
    pub(super) queued: AtomicU32,
    pub(super) stripes: Stripes,
    pub(super) arena: OnceLock<Arena>,
    pub(super) image_bytes: AtomicU64,
    /// Devices that reach another one's memory, and the number of reasons (`Access`).
    pub reached: Ordered<HashMap<(u32, u32), u32>>,
}

impl Session {
    /// Returns how many bytes of images the worker keeps.
    pub fn image_bytes(&self) -> u64 {
        self.image_bytes.load(SeqCst)
    }

    pub fn arena(&self) -> &Arena {
        self.arena.get_or_init(Arena::default)
    }

    /// # Errors
    /// The sticky error, if there is one.
    pub fn check(&self) -> Result<(), Code> {
        match self.failure.load(SeqCst) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Takes the worker's reports on mirrors since the last call, in its order.
    pub fn take_news(&self) -> Vec<News> {
        let mut news = lock(&self.news);
        self.news_bytes.store(0, SeqCst);
        std::mem::take(&mut *news)
    }

    /// Takes the ranges where bytes have landed in the program's memory since the last call; they are noted from the
    /// first call on.
    pub fn take_landings(&self) -> Vec<Range<usize>> {
        self.landings.take()
    }

    /// Whether there is too much news to wait for a program that neither waits nor queries.
    pub fn has_much_news(&self) -> bool {
        self.news_bytes.load(SeqCst) > MOST_NEWS
    }

    /// Whether the worker's version has such a command. Where it does not, there is another way.
    pub fn has(&self, code: u32) -> bool {
        since(code) <= self.wire
    }

    /// Whether answers about events carry the output printed before, and the late error.
    pub fn events_tell(&self) -> bool {
        self.wire >= EVENTS_TELL
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(super) fn may_reconnect(&self) -> bool {
        self.reconnect.get().is_some()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(SeqCst)
    }

    /// Ends the session as lost. Called by the reader only, so that nothing is written to the program's memory after a
    /// call has failed.
    pub(super) fn lose(&self, code: Code, reason: &str) {
        let code = if code == 0 { CUDA_ERROR_EXTERNAL_DEVICE } else { code };
        let code = self.failure.compare_exchange(0, code, SeqCst, SeqCst).err().unwrap_or(code);
        if !self.lost.swap(true, SeqCst) {
            if process::check_alive().is_ok() {
                log::error(&format!(
                    "the session on appliance {} ended: {reason}; CUDA calls now fail with code {code}; start the program again for a new session",
                    self.peer
                ));
            }
            sys::shut_down(self.fd());
            drop(self.outbox.lock());
            self.reconnected.notify_all();
            self.wake.wake();
            self.lead.wake_all();
            // Nothing can be sent any more, so nothing is added after this.
            let pending = std::mem::take(&mut *self.pending.lock());
            pending.into_values().for_each(|pending| pending.reject(code));
        }
    }

    pub(super) fn take_late(&self) -> Result<(), Code> {
        match self.late.swap(0, SeqCst) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Returns the last command that any stream was given.
    pub fn newest_in_streams(&self) -> u64 {
        self.outbox.lock().streams.newest()
    }

    /// Whether all work of the program's streams is known to be complete, if all commands up to `synchronised` are.
    pub fn is_quiet(&self, how: Known, synchronised: u64) -> bool {
        self.outbox.lock().streams.is_quiet(how, synchronised)
    }

    /// Like [`Session::is_quiet`], for the work of one stream.
    pub fn is_stream_complete(&self, stream_id: u64, how: Known, synchronised: u64) -> bool {
        self.outbox.lock().streams.is_complete(stream_id, how, synchronised)
    }

    /// Like [`Session::is_stream_complete`], for a legacy stream.
    pub fn is_legacy_complete(&self, stream_id: u64, how: Known, synchronised: u64) -> bool {
        self.outbox.lock().streams.is_legacy_complete(stream_id, how, synchronised)
    }

    /// Registers a stream of the library's own: its work is not the program's.
    pub fn own_stream(&self, stream_id: u64) {
        self.outbox.lock().streams.own(stream_id);
    }

    /// Removes such a stream, which is gone.
    pub fn disown_stream(&self, stream_id: u64) {
        self.outbox.lock().streams.disown(stream_id);
    }

    /// Notes that a stream was waited for or queried: its work, and that of the streams that it waits for, is complete
    /// up to this command.
    pub fn note_complete(&self, stream_id: u64, how: Known, number: u64) {
        self.outbox.lock().streams.note_complete(stream_id, how, number);
    }

    /// Returns the command up to which all work of a stream, and of those that it waits for, is known to be complete.
    pub fn complete_in_stream(&self, stream_id: u64, how: Known) -> u64 {
        self.outbox.lock().streams.complete(stream_id, how)
    }

    /// Keeps a code for the next call that synchronises.
    pub(super) fn note_late(&self, code: Code) {
        let _ = self.late.compare_exchange(0, code, SeqCst, SeqCst);
    }

    /// Keeps sticky errors; every answer passes here.
    pub(super) fn note_code(&self, code: Code) {
        if is_sticky(code) {
            let _ = self.failure.compare_exchange(0, code, SeqCst, SeqCst);
        }
    }

    /// Notes that the command appended last uses device memory.
    pub fn note_work(&self) {
        self.last_work.fetch_max(self.outbox.lock().last, SeqCst);
    }

    /// The number of the last command that uses device memory.
    pub fn last_work(&self) -> u64 {
        self.last_work.load(SeqCst)
    }

    /// The number of the last command.
    pub fn last_command(&self) -> u64 {
        self.outbox.lock().last
    }
}
