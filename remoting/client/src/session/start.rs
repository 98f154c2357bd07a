//! The start of a session: it sends the first frame, reserves the arena and starts the threads.

use super::parts::held::Held;
use super::parts::host_calls::Callbacks;
use super::parts::jobs::Jobs;
use super::parts::landings::Landings;
use super::parts::outbox::Outbox;
use super::parts::pieces::Ring;
use super::parts::reached::Reached;
use super::parts::receiver::Receiver;
use super::parts::sharing::Shared;
use super::parts::stripe::Stripes;
use super::parts::wait::Lead;
use super::parts::wake::Wake;
use super::pending::{Pending, Waiter};
use super::sessions::SESSIONS;
use super::state::{QUIET_SECONDS, Session};
use super::{Arena, Opening, Reconnect, Reply, Slot};
use crate::Code;
use crate::locks::{Ordered, Rank};
use crate::program::{log, process, stats, sys};
use protocol::{Opened, Rebase};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

/// The maximum time for the worker to answer the first frame. The worker may lack a CPU, and a driver may start slowly.
const OPEN_SECONDS: u32 = 60;

impl Session {
    /// Starts a session on a connected socket, after `opening` was sent to the worker at the other end. With
    /// `reconnect` the session survives a broken connection.
    ///
    /// # Errors
    /// A message for the user, if the worker does not answer as expected.
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
            outbox: Ordered::new(Rank::Outbox, Outbox::default()),
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
            receiver: Ordered::new(Rank::Receiver, Receiver::default()),
            watch,
            pending: Ordered::new(Rank::Pending, BTreeMap::new()),
            failure: AtomicU32::new(0),
            late: AtomicU32::new(0),
            lost: AtomicBool::new(false),
            fault: OnceLock::new(),
            last_work: AtomicU64::new(0),
            launches: AtomicU64::new(0),
            window: Mutex::default(),
            fences: Mutex::default(),
            events: Mutex::default(),
            callbacks: Callbacks::default(),
            jobs: Jobs::default(),
            shared: Shared::default(),
            ring: Ordered::new(Rank::Ring, Ring::default()),
            news: Mutex::default(),
            news_bytes: AtomicUsize::new(0),
            landings: Landings::default(),
            queued: AtomicU32::new(0),
            stripes: Stripes::default(),
            arena: OnceLock::new(),
            image_bytes: AtomicU64::new(0),
            reached: Reached::default(),
        });
        sys::receive_timeout(fd, Some(QUIET_SECONDS));
        let opened =
            session.open(opening).map_err(|code| format!("the worker of {peer} opens no session (code {code})"));
        // A session that cannot reconnect waits without a limit, and relies on the system to detect a dead peer.
        sys::receive_timeout(fd, reconnect.is_some().then_some(QUIET_SECONDS));
        let opened = opened?;
        if let Some(reconnect) = reconnect {
            let _ = session.reconnect.set(reconnect);
        }
        session.image_bytes.store(opened.image_bytes, SeqCst);
        session.start_threads().map_err(|error| format!("cannot start a thread: {error}"))?;
        let _ = session.arena.set(session.place_arena(opened));
        SESSIONS.lock().push(Arc::clone(&session));
        Ok(session)
    }

    fn open(&self, opening: Opening) -> Result<Opened, Code> {
        let slot = Slot::new();
        self.pending.lock().insert(Opening::NUMBER, Pending::Reply(Waiter::Thread(Arc::clone(&slot))));
        stats::command();
        stats::sent(opening.frame.len());
        stats::round_trip();
        self.outbox.lock().has_sent(Opening::NUMBER, opening.frame);
        self.wait(&slot)?.success()?.decode()
    }

    /// Adds to the worker's silence while the session opens, and logs the first time. `silent` is in seconds.
    pub(super) fn opens_late(&self, silent: &mut u32) -> Result<(), String> {
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

    /// Reserves the arena's addresses, so that no host memory lies there and an address tells whether it is device
    /// memory.
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
        sys::spawn("remotegpu-read", move || reader.guarded("remotegpu-read", || reader.read_in_background()))?;
        let sender = Arc::clone(self);
        sys::spawn("remotegpu-send", move || sender.guarded("remotegpu-send", || sender.flush_in_background()))?;
        self.lead.leave(|| self.watch.arm());
        Ok(())
    }
}
