//! A session: this process's connection to its worker on one appliance.
//!
//! All commands of all threads form one sequence, numbered under the lock of the outbox. A command that no thread waits
//! for leaves with the next one that a thread waits for, when the buffer is full, or within about 100 us. A thread that
//! waits reads the connection itself ([`wait`]); a background thread reads only while none waits.

mod across;
mod arena;
mod callbacks;
mod copies;
mod held;
mod host_box;
mod jobs;
mod landings;
mod opening;
mod outbox;
mod queues;
mod receive;
mod reconnect;
mod ring;
mod send;
mod shared_memory;
mod streams;
mod stripes;
mod wait;

pub use across::PeerSource;
pub use arena::Arena;
pub use callbacks::in_callback;
pub use copies::DeviceBox;
pub use host_box::{HostBox, load, store};
pub use opening::Opening;
pub use reconnect::{Reconnect, Retry};
pub use shared_memory::file as shared_file;
pub use streams::Known;
pub use stripes::wanted_stripes;
pub use wait::{Reply, Slot, lock};

use crate::Code;
use crate::program::{log, process, stats, sys};
use across::Then;
use callbacks::Callbacks;
use copies::Source;
use driverapi::errors::{CUDA_ERROR_EXTERNAL_DEVICE, CUDA_ERROR_UNKNOWN, is_sticky};
use held::Held;
use jobs::Jobs;
use landings::Landings;
use outbox::Outbox;
use protocol::{
    ContextSynchronize, EVENTS_TELL, Message, MirrorsTold, Opened, Rebase, StreamSynchronize, UNCOUNTED, since,
};
use receive::Receiver;
use ring::Ring;
use send::Wake;
use shared_memory::Shared;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};
use stripes::Stripes;
use wait::{Lead, Turn};

/// How long a worker may take to answer the first frame: it may lack a CPU, and a driver may take long to start.
const OPEN_SECONDS: u32 = 60;

/// After this long without a byte a waiting call probes whether the peer is alive, and then waits as long for the
/// answer.
const QUIET_SECONDS: u32 = 5;

/// The receiver of an answer.
enum Waiter {
    Nobody,
    Thread(Arc<Slot>),
    Then(Then),
}

impl Waiter {
    /// Notifies the waiter: the bytes of a copy have been read, or will not be.
    fn supplied(self, code: Code) {
        if let Waiter::Thread(slot) = self {
            slot.finish(Reply { code, tail: Vec::new() });
        }
    }
}

/// The most bytes of news that wait for a call that lets the host see them.
const MOST_NEWS: usize = 16 << 20;

/// The device's writes to mirrors: the worker's report, and the bytes of the runs.
pub struct News {
    pub told: MirrorsTold,
    pub bytes: Vec<u8>,
}

/// The use of a command's answer, or of its pushes.
enum Pending {
    Reply(Waiter),
    /// Bytes land here.
    Landing(HostBox, Waiter),
    /// Requested bytes are read from here.
    Supply(Source, Waiter),
}

impl Pending {
    /// Rejects a command that gets no answer. Threads that wait notice that by themselves.
    fn reject(self, code: Code) {
        if let Pending::Reply(Waiter::Then(then)) | Pending::Landing(_, Waiter::Then(then)) = self {
            then(code);
        }
    }
}

/// Bytes of captured copies that the worker has not taken yet.
#[derive(Default)]
struct Window {
    outstanding: u64,
    waiters: Vec<Arc<Slot>>,
}

/// The last record of an event that is known to be complete.
#[derive(Default)]
pub struct Progress {
    pub done: AtomicU64,
}

pub struct Session {
    socket: OwnedFd,
    /// The name of the appliance, for people.
    peer: String,
    /// The version of the wire that the worker speaks on this session.
    wire: u32,
    outbox: Mutex<Outbox>,
    /// Signals that there is a connection again, that the share is no longer suspended, or that the session is lost.
    reconnected: Condvar,
    /// Whether the share is suspended: then little is sent.
    held: Held,
    /// Wakes the background thread that sends.
    wake: Wake,
    /// The way to reach the worker again.
    reconnect: OnceLock<Reconnect>,
    epoch: AtomicU64,
    /// Three values: bytes that the reader has received; how many of them the worker knows of; whether it must get an
    /// acknowledgement.
    received: AtomicU64,
    told: AtomicU64,
    must_acknowledge: AtomicBool,
    /// Bytes that the worker has received.
    acknowledged: AtomicU64,
    lead: Lead,
    receiver: Mutex<Receiver>,
    watch: sys::Watch,
    pending: Mutex<BTreeMap<u64, Pending>>,
    /// The code that every call answers from now on, or 0.
    failure: AtomicU32,
    /// The code of a failed copy that no call waited for, until a synchronising call has answered it; or 0.
    late: AtomicU32,
    lost: AtomicBool,
    last_work: AtomicU64,
    /// How many launches were sent.
    launches: AtomicU64,
    window: Mutex<Window>,
    fences: Mutex<HashMap<u64, Arc<Slot>>>,
    events: Mutex<HashMap<u64, Weak<Progress>>>,
    callbacks: Callbacks,
    jobs: Jobs,
    shared: Shared,
    ring: Mutex<Ring>,
    /// The worker's reports on mirrors, until a call lets the host see them.
    news: Mutex<Vec<News>>,
    news_bytes: AtomicUsize,
    landings: Landings,
    /// The commands of all streams that are not known to be complete; a long command counts several times (`weight`).
    queued: AtomicU32,
    stripes: Stripes,
    arena: OnceLock<Arena>,
    image_bytes: AtomicU64,
    /// Devices that reach another one's memory, and the number of reasons (`Access`).
    pub reached: Mutex<HashMap<(u32, u32), u32>>,
}

static SESSIONS: Mutex<Vec<Arc<Session>>> = Mutex::new(Vec::new());

/// An id that this process never used before (contexts, streams, events, modules, tokens).
pub fn mint() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, SeqCst)
}

/// How long an ending process waits until its appliances know.
const GOODBYE: Duration = Duration::from_millis(500);

/// Ends all sessions before the process ends. When it has gone, what it had must be free for the next process: so this
/// waits for the workers, which close their ends when the appliances know.
pub fn say_goodbye() {
    let Ok(sessions) = SESSIONS.try_lock() else { return };
    let until = Instant::now() + GOODBYE;
    let told: Vec<_> = sessions.iter().filter(|session| session.close()).collect();
    told.iter()
        .for_each(|session| sys::wait_until_closed(session.fd(), until.saturating_duration_since(Instant::now())));
}

/// The session in whose arena an address lies.
pub fn owner_of(address: u64) -> Option<Arc<Session>> {
    lock(&SESSIONS).iter().find(|session| session.arena().contains(address)).cloned()
}

/// Whether an earlier copy or host function of any stream may still write this memory.
pub fn is_unsettled(memory: &HostBox) -> bool {
    let unsettled = |session: &Arc<Session>| session.has_callbacks() || session.is_landing(memory);
    lock(&SESSIONS).iter().any(|session| !session.is_lost() && unsettled(session))
}

/// Whether a stream waits for a word of page-locked memory. Before the program writes that word it may write more.
pub fn is_any_waiting() -> bool {
    lock(&SESSIONS).iter().any(|session| !session.is_lost() && session.has_waits())
}

impl Session {
    /// Starts a session on a connected socket whose other end is a worker, to which `opening` was sent. With
    /// `reconnect` it outlives the connection.
    ///
    /// # Errors
    /// A line for people, if the worker does not answer as it should.
    pub fn start(
        socket: OwnedFd,
        peer: &str,
        opening: Opening,
        reconnect: Option<Reconnect>,
    ) -> Result<Arc<Session>, String> {
        let fd = socket.as_raw_fd();
        let watch = sys::Watch::new(fd).map_err(|error| format!("cannot watch the connection to {peer}: {error}"))?;
        process::close_in_children(fd);
        let session = Arc::new(Session {
            socket,
            peer: peer.to_owned(),
            wire: opening.wire,
            outbox: Mutex::default(),
            reconnected: Condvar::new(),
            held: Held::default(),
            wake: Wake::default(),
            reconnect: OnceLock::new(),
            epoch: AtomicU64::new(0),
            received: AtomicU64::new(0),
            told: AtomicU64::new(0),
            must_acknowledge: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            lead: Lead::default(),
            receiver: Mutex::default(),
            watch,
            pending: Mutex::default(),
            failure: AtomicU32::new(0),
            late: AtomicU32::new(0),
            lost: AtomicBool::new(false),
            last_work: AtomicU64::new(0),
            launches: AtomicU64::new(0),
            window: Mutex::default(),
            fences: Mutex::default(),
            events: Mutex::default(),
            callbacks: Callbacks::default(),
            jobs: Jobs::default(),
            shared: Shared::default(),
            ring: Mutex::default(),
            news: Mutex::default(),
            news_bytes: AtomicUsize::new(0),
            landings: Landings::default(),
            queued: AtomicU32::new(0),
            stripes: Stripes::default(),
            arena: OnceLock::new(),
            image_bytes: AtomicU64::new(0),
            reached: Mutex::default(),
        });
        sys::receive_timeout(fd, Some(QUIET_SECONDS));
        let opened =
            session.open(opening).map_err(|code| format!("the worker of {peer} opens no session (code {code})"));
        // A session that cannot reconnect waits without a time limit: the system finds out that a peer is gone.
        sys::receive_timeout(fd, reconnect.is_some().then_some(QUIET_SECONDS));
        let opened = opened?;
        if let Some(reconnect) = reconnect {
            let _ = session.reconnect.set(reconnect);
        }
        session.image_bytes.store(opened.image_bytes, SeqCst);
        session.start_threads().map_err(|error| format!("cannot start a thread: {error}"))?;
        let _ = session.arena.set(session.place_arena(opened));
        lock(&SESSIONS).push(Arc::clone(&session));
        Ok(session)
    }

    fn open(&self, opening: Opening) -> Result<Opened, Code> {
        let slot = Slot::new();
        lock(&self.pending).insert(Opening::NUMBER, Pending::Reply(Waiter::Thread(Arc::clone(&slot))));
        stats::command();
        stats::sent(opening.frame.len());
        stats::round_trip();
        lock(&self.outbox).has_sent(Opening::NUMBER, opening.frame);
        self.wait(&slot)?.success()?.decode()
    }

    /// Counts the worker's silence while the session opens, and logs the first one.
    fn opens_late(&self, silent: &mut u32) -> Result<(), String> {
        *silent += QUIET_SECONDS;
        if *silent >= OPEN_SECONDS {
            return Err(format!("its worker has not begun within {OPEN_SECONDS} s"));
        }
        if *silent == QUIET_SECONDS {
            log::error(&format!(
                "the worker of {} has not begun within {QUIET_SECONDS} s; the program waits for it up to {OPEN_SECONDS} s; \
                 if it never begins, look at the load and the log of the appliance",
                self.peer
            ));
        }
        Ok(())
    }

    /// Keeps host allocations out of the arena, so that an address says where its memory is.
    fn place_arena(&self, first: Opened) -> Arena {
        let mut opened = first;
        for _ in 0..8 {
            if sys::reserve(opened.arena_base, opened.arena_size) {
                return Arena::new(&opened, true);
            }
            let answer = self.call(0, &Rebase { avoid: opened.arena_base }).and_then(Reply::success);
            match answer.and_then(|reply| reply.decode()) {
                Ok(other) => opened = other,
                Err(_) => break,
            }
        }
        Arena::new(&opened, false)
    }

    fn start_threads(self: &Arc<Self>) -> std::io::Result<()> {
        let reader = Arc::clone(self);
        sys::spawn("remotegpu-read", move || reader.read_in_background())?;
        let sender = Arc::clone(self);
        sys::spawn("remotegpu-send", move || sender.flush_in_background())?;
        self.lead.leave(|| self.watch.arm());
        Ok(())
    }

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

    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn is_lost(&self) -> bool {
        self.lost.load(SeqCst)
    }

    /// Ends the session as lost. Called by the reader only, so that nothing is written to the program's memory after a
    /// call has failed.
    fn lose(&self, code: Code, reason: &str) {
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
            drop(lock(&self.outbox));
            self.reconnected.notify_all();
            self.wake.wake();
            self.lead.wake_all();
            // Nothing can be sent any more, so nothing is added after this.
            let pending = std::mem::take(&mut *lock(&self.pending));
            pending.into_values().for_each(|pending| pending.reject(code));
        }
    }

    /// Sends a command and waits for its answer, whatever its code.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn call<M: Message>(&self, stream_id: u64, message: &M) -> Result<Reply, Code> {
        self.call_frame(M::CODE, stream_id, |w| {
            w.put(message);
        })
    }

    /// Sends a command that is answered when work is complete, and waits for the answer.
    ///
    /// # Errors
    /// The code of work that failed, also of an earlier copy that no call waited for.
    pub fn synchronise<M: Message>(&self, stream_id: u64, message: &M) -> Result<(), Code> {
        let reply = self.call(stream_id, message)?;
        self.synchronised(&reply)
    }

    /// Waits for the earlier work of a stream.
    ///
    /// # Errors
    /// Like [`Session::synchronise`], for one stream.
    pub fn synchronise_stream(&self, stream_id: u64) -> Result<(), Code> {
        self.synchronise_stream_beside(stream_id, || Ok(()))
    }

    /// Synchronises a stream; `meanwhile` is done when the question, and all work before it, has been sent.
    ///
    /// # Errors
    /// As [`Session::synchronise`], or that of `meanwhile`.
    pub fn synchronise_stream_beside(
        &self,
        stream_id: u64,
        meanwhile: impl FnOnce() -> Result<(), Code>,
    ) -> Result<(), Code> {
        let before = self.last_command();
        let slot = self.ask(StreamSynchronize::CODE, stream_id, |w| {
            w.put(&StreamSynchronize { launches: self.launches.load(SeqCst) });
        })?;
        meanwhile()?;
        self.flush()?;
        let reply = self.wait(&slot)?;
        self.synchronised(&reply)?;
        self.note_complete(stream_id, Known::Told, before);
        Ok(())
    }

    /// Waits for work that is known to be complete and fully reported by the worker: that needs no answer.
    ///
    /// # Errors
    /// The code of an earlier copy that no call waited for, or the session's sticky error.
    pub fn wait_for_nothing(&self) -> Result<(), Code> {
        self.flush()?;
        self.check()?;
        self.take_late()
    }

    /// Waits for the earlier work of a stream outside of any call: the next call that synchronises reports a failure.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn settle_stream(&self, stream_id: u64) -> Result<(), Code> {
        let reply = self.call(stream_id, &StreamSynchronize { launches: UNCOUNTED })?;
        self.note_late(reply.code);
        Ok(())
    }

    /// Waits for the earlier work of a context.
    ///
    /// # Errors
    /// As [`Session::synchronise`].
    pub fn synchronise_context(&self, context: u64) -> Result<(), Code> {
        let reply = self.call_frame(ContextSynchronize::CODE, 0, |w| {
            w.put(&ContextSynchronize { context, launches: self.launches.load(SeqCst) });
        })?;
        self.synchronised(&reply)
    }

    fn synchronised(&self, reply: &Reply) -> Result<(), Code> {
        match reply.code {
            0 => self.take_late(),
            code => Err(code),
        }
    }

    fn take_late(&self) -> Result<(), Code> {
        match self.late.swap(0, SeqCst) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Returns the last command that any stream was given.
    pub fn newest_in_streams(&self) -> u64 {
        lock(&self.outbox).streams.newest()
    }

    /// Whether all work of the program's streams is known to be complete, if all commands up to `synchronised` are.
    pub fn is_quiet(&self, how: Known, synchronised: u64) -> bool {
        lock(&self.outbox).streams.is_quiet(how, synchronised)
    }

    /// Like [`Session::is_quiet`], for the work of one stream.
    pub fn is_stream_complete(&self, stream_id: u64, how: Known, synchronised: u64) -> bool {
        lock(&self.outbox).streams.is_complete(stream_id, how, synchronised)
    }

    /// Like [`Session::is_stream_complete`], for a legacy stream.
    pub fn is_legacy_complete(&self, stream_id: u64, how: Known, synchronised: u64) -> bool {
        lock(&self.outbox).streams.is_legacy_complete(stream_id, how, synchronised)
    }

    /// Registers a stream of the library's own: its work is not the program's.
    pub fn own_stream(&self, stream_id: u64) {
        lock(&self.outbox).streams.own(stream_id);
    }

    /// Removes such a stream, which is gone.
    pub fn disown_stream(&self, stream_id: u64) {
        lock(&self.outbox).streams.disown(stream_id);
    }

    /// Notes that a stream was waited for or queried: its work, and that of the streams that it waits for, is complete
    /// up to this command.
    pub fn note_complete(&self, stream_id: u64, how: Known, number: u64) {
        lock(&self.outbox).streams.note_complete(stream_id, how, number);
    }

    /// Returns the command up to which all work of a stream, and of those that it waits for, is known to be complete.
    pub fn complete_in_stream(&self, stream_id: u64, how: Known) -> u64 {
        lock(&self.outbox).streams.complete(stream_id, how)
    }

    /// Like [`Session::call`], for a generated function.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn call_raw(&self, number: u32, stream_id: u64, payload: &[u8]) -> Result<Reply, Code> {
        self.call_frame(number, stream_id, |w| {
            w.raw(payload);
        })
    }

    /// Sends a generated function whose answer is known.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn tell_raw(&self, number: u32, stream_id: u64, payload: &[u8]) -> Result<(), Code> {
        let body = |w: &mut protocol::Writer| {
            w.raw(payload);
        };
        self.append(number, stream_id, &[], Some(Pending::Reply(Waiter::Nobody)), false, body).map(drop)
    }

    fn call_frame(&self, code: u32, stream_id: u64, body: impl FnOnce(&mut protocol::Writer)) -> Result<Reply, Code> {
        self.wait(&self.ask(code, stream_id, body)?)
    }

    /// Sends a command, and all before it; its answer comes to the slot.
    fn ask(&self, code: u32, stream_id: u64, body: impl FnOnce(&mut protocol::Writer)) -> Result<Arc<Slot>, Code> {
        let slot = Slot::new();
        self.append(code, stream_id, &[], Some(Pending::Reply(Waiter::Thread(Arc::clone(&slot)))), true, body)?;
        stats::round_trip();
        Ok(slot)
    }

    /// Waits until something is delivered to the slot.
    ///
    /// # Errors
    /// The session's error, if it is lost before.
    pub fn wait(&self, slot: &Arc<Slot>) -> Result<Reply, Code> {
        while self.lead.enter(slot, || self.is_lost(), || self.watch.disarm()) == Turn::Read {
            self.read_until(|| slot.is_finished());
            self.lead.leave(|| self.watch.arm());
        }
        slot.reply().ok_or_else(|| self.check().err().unwrap_or(CUDA_ERROR_UNKNOWN))
    }

    /// Whether something is delivered to the slot within `patience`.
    fn is_soon(&self, slot: &Slot, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        while !slot.is_finished() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.poll(left);
            // Another thread may be the reader.
            std::thread::yield_now();
        }
        true
    }

    /// Takes in what has arrived, or arrives within `patience`, unless another thread is reading.
    pub fn poll(&self, patience: Duration) {
        if self.lead.try_enter(|| self.watch.disarm()) {
            if !patience.is_zero() {
                sys::wait_until_readable(self.fd(), patience);
            }
            self.read_available();
            self.lead.leave(|| self.watch.arm());
        }
    }

    /// Makes a token that `Fenced` will bring back, and the slot that shows it.
    pub fn new_fence(&self) -> (u64, Arc<Slot>) {
        let (token, slot) = (mint(), Slot::new());
        lock(&self.fences).insert(token, Arc::clone(&slot));
        (token, slot)
    }

    /// Notes completions of this event in `progress` as long as that lives.
    pub fn follow_event(&self, event: u64, progress: &Arc<Progress>) {
        lock(&self.events).insert(event, Arc::downgrade(progress));
    }

    pub fn forget_event(&self, event: u64) {
        lock(&self.events).remove(&event);
    }

    /// Keeps a code for the next call that synchronises.
    fn note_late(&self, code: Code) {
        let _ = self.late.compare_exchange(0, code, SeqCst, SeqCst);
    }

    /// Keeps sticky errors; every answer passes here.
    fn note_code(&self, code: Code) {
        if is_sticky(code) {
            let _ = self.failure.compare_exchange(0, code, SeqCst, SeqCst);
        }
    }

    /// Notes that the command appended last uses device memory.
    pub fn note_work(&self) {
        self.last_work.fetch_max(lock(&self.outbox).last, SeqCst);
    }

    /// The number of the last command that uses device memory.
    pub fn last_work(&self) -> u64 {
        self.last_work.load(SeqCst)
    }

    /// The number of the last command.
    pub fn last_command(&self) -> u64 {
        lock(&self.outbox).last
    }
}
