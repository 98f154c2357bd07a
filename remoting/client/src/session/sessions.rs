//! The list of this process's sessions, and unique ids for their objects.

use super::parts::host_box::HostBox;
use super::state::Session;
use crate::locks::{Ordered, Rank};
use crate::program::sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

pub(super) static SESSIONS: Ordered<Vec<Arc<Session>>> = Ordered::new(Rank::Sessions, Vec::new());

/// Returns an id that this process has never used, for a context, stream, event, module or token.
pub fn mint() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, SeqCst)
}

/// The maximum time that an ending process waits for its appliances.
const GOODBYE: Duration = Duration::from_millis(500);

/// Ends all sessions before the process ends. The resources of the process must be free for the next process, so this
/// waits until the workers close their connections.
pub fn say_goodbye() {
    let Some(sessions) = SESSIONS.try_lock() else { return };
    let until = Instant::now() + GOODBYE;
    let told: Vec<_> = sessions.iter().filter(|session| session.close()).collect();
    told.iter()
        .for_each(|session| sys::wait_until_closed(session.fd(), until.saturating_duration_since(Instant::now())));
}

/// Returns the session whose arena contains the address, if there is one.
pub fn owner_of(address: u64) -> Option<Arc<Session>> {
    SESSIONS.lock().iter().find(|session| session.arena().contains(address)).cloned()
}

/// Returns whether a pending copy or host function of any stream may still write this host memory.
pub fn is_unsettled(memory: &HostBox) -> bool {
    let unsettled = |session: &Arc<Session>| session.has_callbacks() || session.is_landing(memory);
    SESSIONS.lock().iter().any(|session| !session.is_lost() && unsettled(session))
}

/// Returns whether a stream waits for a word of page-locked memory. The program may write other page-locked memory
/// before that word.
pub fn is_any_waiting() -> bool {
    SESSIONS.lock().iter().any(|session| !session.is_lost() && session.has_waits())
}
