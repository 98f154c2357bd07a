//! Probation: the time in which a connection must be authenticated, and the place that it occupies.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::guard::defences::{Defence, stands};

use super::crowd::{Crowd, peer_of};
use super::limits::{ANSWER, REPORT};

/// The connections of a port, in two groups: unauthenticated (strangers) and authenticated (known).
#[derive(Debug)]
pub struct Door {
    patience: Duration,
    strangers: Mutex<Crowd<Arc<Notify>>>,
    known: Mutex<Crowd<Arc<Notify>>>,
}

/// Limits on the number of connections, in total and for one peer.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    pub in_all: usize,
    pub of_peer: usize,
}

impl Door {
    /// Creates a port without connections. `patience` is the time in which a connection must authenticate itself.
    pub fn new(patience: Duration, strangers: Most, known: Most) -> Arc<Self> {
        let patience = if stands(Defence::Patience) { patience } else { Duration::from_secs(3600) };
        let strangers = if stands(Defence::Crowd) { strangers } else { known };
        let crowd = |most: Most| Mutex::new(Crowd::new(most.in_all, most.of_peer));
        Arc::new(Door { patience, strangers: crowd(strangers), known: crowd(known) })
    }

    fn crowd(&self, known: bool) -> MutexGuard<'_, Crowd<Arc<Notify>>> {
        let crowd = if known { &self.known } else { &self.strangers };
        // Every method of `Crowd` leaves it consistent at each point where the method could panic.
        crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calls of a connection that are not answered, by their numbers, and whether each was sent as a whole.
pub type Calls = BTreeMap<u32, bool>;

/// A connection's place at a port. The place belongs to the strangers until the connection is authenticated.
#[derive(Debug)]
pub struct Probation {
    door: Arc<Door>,
    peer: IpAddr,
    deadline: Instant,
    leave: Arc<Notify>,
    passed: Notify,
    calls: watch::Sender<Calls>,
    /// The number of the place, and whether the place belongs to the known connections.
    place: Mutex<(u64, bool)>,
}

impl Probation {
    pub fn new(door: &Arc<Door>, address: IpAddr) -> Arc<Self> {
        let (peer, leave) = (peer_of(address), Arc::new(Notify::new()));
        let number = enter(door, peer, &leave, false);
        let deadline = Instant::now() + door.patience;
        Arc::new(Probation {
            door: door.clone(),
            peer,
            deadline,
            leave,
            passed: Notify::new(),
            calls: watch::Sender::default(),
            place: Mutex::new((number, false)),
        })
    }

    /// Marks the connection as authenticated.
    pub fn pass(&self) {
        let mut place = self.place();
        if !place.1 {
            self.door.crowd(false).leave(self.peer, place.0);
            *place = (enter(&self.door, self.peer, &self.leave, true), true);
            self.passed.notify_waiters();
        }
    }

    pub fn is_known(&self) -> bool {
        self.place().1
    }

    /// Waits until the connection is authenticated.
    pub async fn proved(self: Arc<Self>) {
        // The future is created before the check, so that it notices an authentication between the check and the wait.
        let passed = self.passed.notified();
        if !self.is_known() {
            passed.await;
        }
    }

    /// Reads or changes the calls of the connection.
    pub fn calls<T>(&self, change: impl FnOnce(&mut Calls) -> T) -> T {
        let mut result = None;
        self.calls.send_modify(|calls| result = Some(change(calls)));
        result.expect("`send_modify` calls its argument once")
    }

    /// Waits until fewer than `most` calls are open, or the connection is authenticated.
    pub async fn room(self: Arc<Self>, most: usize) {
        let mut changes = self.calls.subscribe();
        tokio::select! {
            _ = changes.wait_for(|calls| calls.len() < most) => {}
            () = self.clone().proved() => {}
        }
    }

    /// Waits until the connection has to end, and returns the reason: it was not authenticated in time, or there are
    /// too many connections.
    pub async fn over(&self) -> String {
        tokio::select! {
            () = self.late() => format!("did not prove within {} s whom it is for", self.door.patience.as_secs()),
            () = self.leave.notified() => "left its place to another: there are too many connections".to_owned(),
        }
    }

    async fn late(&self) {
        tokio::time::sleep_until(self.deadline).await;
        // Calls that were sent in time are answered first. Later ones change nothing.
        let mut changes = self.calls.subscribe();
        let sent: Vec<u32> = changes.borrow().iter().filter(|(_, sent)| **sent).map(|(number, _)| *number).collect();
        if !sent.is_empty() {
            let answered = changes.wait_for(|calls| !sent.iter().any(|number| calls.contains_key(number)));
            if tokio::time::timeout(ANSWER, answered).await.is_ok() {
                // What a call has proved is reported by another channel than its answer.
                tokio::time::sleep(REPORT).await;
            }
        }
        if self.is_known() {
            std::future::pending::<()>().await;
        }
    }

    fn place(&self) -> MutexGuard<'_, (u64, bool)> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Probation {
    fn drop(&mut self) {
        let (number, known) = *self.place();
        self.door.crowd(known).leave(self.peer, number);
    }
}

fn enter(door: &Door, peer: IpAddr, leave: &Arc<Notify>, known: bool) -> u64 {
    let (number, leaves) = door.crowd(known).enter(peer, leave.clone());
    if let Some(other) = leaves {
        other.notify_one();
    }
    number
}
