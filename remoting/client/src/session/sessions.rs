//! The sessions of this process, and the ids that it gives out.

use super::parts::host_box::HostBox;
use super::state::Session;
use crate::locks::{Ordered, Rank};
use crate::program::sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

pub(super) static SESSIONS: Ordered<Vec<Arc<Session>>> = Ordered::new(Rank::Sessions, Vec::new());

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
    let Some(sessions) = SESSIONS.try_lock() else { return };
    let until = Instant::now() + GOODBYE;
    let told: Vec<_> = sessions.iter().filter(|session| session.close()).collect();
    told.iter()
        .for_each(|session| sys::wait_until_closed(session.fd(), until.saturating_duration_since(Instant::now())));
}

/// The session in whose arena an address lies.
pub fn owner_of(address: u64) -> Option<Arc<Session>> {
    SESSIONS.lock().iter().find(|session| session.arena().contains(address)).cloned()
}

/// Whether an earlier copy or host function of any stream may still write this memory.
pub fn is_unsettled(memory: &HostBox) -> bool {
    let unsettled = |session: &Arc<Session>| session.has_callbacks() || session.is_landing(memory);
    SESSIONS.lock().iter().any(|session| !session.is_lost() && unsettled(session))
}

/// Whether a stream waits for a word of page-locked memory. Before the program writes that word it may write more.
pub fn is_any_waiting() -> bool {
    SESSIONS.lock().iter().any(|session| !session.is_lost() && session.has_waits())
}
