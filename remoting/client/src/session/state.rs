//! The fields of a session: its connection, outgoing commands, awaited answers, and the error that ended it.

use super::Known;
use super::parts::arena::Arena;
use super::parts::held::Held;
use super::parts::host_calls::Callbacks;
use super::parts::jobs::Jobs;
use super::parts::landings::Landings;
use super::parts::outbox::Outbox;
use super::parts::pieces::Ring;
use super::parts::reached::Reached;
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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};

/// The time without received bytes after which a waiting call sends a probe. It then waits as long for an answer.
pub(super) const QUIET_SECONDS: u32 = 5;

/// The maximum size in bytes of reports on mirrors that wait for a synchronising call.
const MOST_NEWS: usize = 16 << 20;

/// A report of the worker: the ranges that the device wrote in mirrors of host memory, and the new bytes.
pub struct News {
    pub told: MirrorsTold,
    pub bytes: Vec<u8>,
}

/// The number of bytes of copies that the worker has not received yet, and the threads that wait for it to fall.
#[derive(Default)]
pub(super) struct Window {
    pub(super) outstanding: u64,
    pub(super) waiters: Vec<Arc<Slot>>,
}

impl Window {
    /// Returns whether `len` more bytes can be sent if at most `most` may be outstanding.
    pub(super) fn has(&self, len: u64, most: u64) -> bool {
        self.outstanding == 0 || self.outstanding + len <= most
    }
}

/// The number of an event's last record that is known to be complete.
#[derive(Default)]
pub struct Progress {
    pub done: AtomicU64,
}

/// The connection of this process to its worker on one appliance.
pub struct Session {
    pub(super) socket: OwnedFd,
    /// The name of the appliance, for messages.
    pub(super) peer: String,
    /// The protocol version that the worker uses in this session.
    pub(super) wire: u32,
    pub(super) outbox: Ordered<Outbox>,
    /// Wakes threads that wait for a new connection, for the end of a suspension, or for the loss of the session.
    pub(super) reconnected: Condvar,
    /// The suspension of the share. While it is suspended, commands are kept in the outbox.
    pub(super) held: Held,
    /// Wakes the background thread that sends.
    pub(super) wake: Wake,
    /// The function and settings for reconnecting. Empty if the session cannot reconnect.
    pub(super) reconnect: OnceLock<Reconnect>,
    pub(super) epoch: AtomicU64,
    /// The number of bytes that the reader has received, the number it has acknowledged, and whether an acknowledgement
    /// must be sent.
    pub(super) received: AtomicU64,
    pub(super) told: AtomicU64,
    pub(super) must_acknowledge: AtomicBool,
    /// The number of bytes that the worker has received.
    pub(super) acknowledged: AtomicU64,
    pub(super) lead: Lead,
    pub(super) receiver: Ordered<Receiver>,
    pub(super) watch: sys::Watch,
    pub(super) pending: Ordered<BTreeMap<u64, Pending>>,
    /// The sticky error that every call returns from now on, or 0.
    pub(super) failure: AtomicU32,
    /// The code of a failed copy that no call waited for, or 0. The next synchronising call returns and clears it.
    pub(super) late: AtomicU32,
    pub(super) lost: AtomicBool,
    /// Why a thread of the session failed, if one did.
    pub(super) fault: OnceLock<String>,
    pub(super) last_work: AtomicU64,
    /// The number of launches that were sent.
    pub(super) launches: AtomicU64,
    pub(super) window: Mutex<Window>,
    pub(super) fences: Mutex<HashMap<u64, Arc<Slot>>>,
    pub(super) events: Mutex<HashMap<u64, Weak<Progress>>>,
    pub(super) callbacks: Callbacks,
    pub(super) jobs: Jobs<Session>,
    pub(super) shared: Shared,
    pub(super) ring: Ordered<Ring>,
    /// The worker's reports on mirrors that the program's memory does not show yet.
    pub(super) news: Mutex<Vec<News>>,
    pub(super) news_bytes: AtomicUsize,
    pub(super) landings: Landings,
    /// The number of commands of all streams that are not known to be complete. A long command counts several times
    /// (see `parts::queues`).
    pub(super) queued: AtomicU32,
    pub(super) stripes: Stripes,
    pub(super) arena: OnceLock<Arena>,
    pub(super) image_bytes: AtomicU64,
    pub reached: Reached,
}

impl Session {
    /// Returns the maximum number of bytes of images that the worker stores for this session.
    pub fn image_bytes(&self) -> u64 {
        self.image_bytes.load(SeqCst)
    }

    pub fn arena(&self) -> &Arena {
        self.arena.get_or_init(Arena::default)
    }

    /// Returns `Ok` while the session has no sticky error.
    ///
    /// # Errors
    /// The sticky error.
    pub fn check(&self) -> Result<(), Code> {
        match self.failure.load(SeqCst) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Takes the reports on mirrors that have arrived since the last call, in the worker's order.
    pub fn take_news(&self) -> Vec<News> {
        let mut news = lock(&self.news);
        self.news_bytes.store(0, SeqCst);
        std::mem::take(&mut *news)
    }

    /// Takes the ranges of the program's memory that copies have written since the last call. Recording begins with the
    /// first call.
    pub fn take_landings(&self) -> Vec<Range<usize>> {
        self.landings.take()
    }

    /// Returns whether there are so many reports that they must be applied even if the program neither waits nor
    /// queries.
    pub fn has_much_news(&self) -> bool {
        self.news_bytes.load(SeqCst) > MOST_NEWS
    }

    /// Returns whether the worker's protocol version has this command. If not, the caller uses another command.
    pub fn has(&self, code: u32) -> bool {
        since(code) <= self.wire
    }

    /// Returns whether answers about events include earlier output and the late error.
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

    /// Marks the session as lost. Only the reader calls this, so no byte is written to the program's memory after a
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
            // No command can be appended any more, so this list stays empty from now on.
            let pending = std::mem::take(&mut *self.pending.lock());
            for pending in pending.into_values() {
                // A fault in one of them must not keep the others from knowing.
                let _ = catch_unwind(AssertUnwindSafe(|| pending.reject(code)));
            }
        }
    }

    pub(super) fn take_late(&self) -> Result<(), Code> {
        match self.late.swap(0, SeqCst) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Returns the number of the last command of any stream.
    pub fn newest_in_streams(&self) -> u64 {
        self.outbox.lock().streams.newest()
    }

    /// Returns whether all work of the program's streams is known to be complete, given that all commands up to
    /// `synchronised` are.
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

    /// Registers a stream of the library itself, so that its work does not count as the program's.
    pub fn own_stream(&self, stream_id: u64) {
        self.outbox.lock().streams.own(stream_id);
    }

    /// Removes a stream that [`Session::own_stream`] registered. Call this when the stream has been destroyed.
    pub fn disown_stream(&self, stream_id: u64) {
        self.outbox.lock().streams.disown(stream_id);
    }

    /// Records that the work of a stream, and of the streams it waits for, is complete up to command `number`.
    pub fn note_complete(&self, stream_id: u64, how: Known, number: u64) {
        self.outbox.lock().streams.note_complete(stream_id, how, number);
    }

    /// Returns the number of the command up to which the work of a stream, and of the streams it waits for, is known to
    /// be complete.
    pub fn complete_in_stream(&self, stream_id: u64, how: Known) -> u64 {
        self.outbox.lock().streams.complete(stream_id, how)
    }

    /// Stores a code for the next synchronising call.
    pub(super) fn note_late(&self, code: Code) {
        let _ = self.late.compare_exchange(0, code, SeqCst, SeqCst);
    }

    /// Stores the code if it is a sticky error. Called with the code of every answer.
    pub(super) fn note_code(&self, code: Code) {
        if is_sticky(code) {
            let _ = self.failure.compare_exchange(0, code, SeqCst, SeqCst);
        }
    }

    /// Records that the last appended command uses device memory.
    pub fn note_work(&self) {
        self.last_work.fetch_max(self.outbox.lock().last, SeqCst);
    }

    /// Returns the number of the last command that uses device memory.
    pub fn last_work(&self) -> u64 {
        self.last_work.load(SeqCst)
    }

    /// Returns the number of the last appended command.
    pub fn last_command(&self) -> u64 {
        self.outbox.lock().last
    }
}
