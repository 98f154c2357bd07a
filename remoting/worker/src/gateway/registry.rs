//! The sessions and leases that the appliance expects, and the tickets that authenticate their connections.

use std::collections::{HashMap, VecDeque};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::{Preface, PrefaceKind};
use tokio::sync::watch;

use crate::guard::defences::{Defence, stands};

pub type Id = [u8; 16];
pub type Ticket = [u8; 32];

/// The lifetime of a session's ticket.
pub const TICKET_LIFE: Duration = Duration::from_secs(10);

/// Limit on the remembered sessions and leases that have moved. The oldest are forgotten.
const MOST_MOVED: usize = 4096;

/// Limit on the number of connections that hold one lease.
const MOST_HOLDERS: usize = 8;

/// Limit on a session's additional connections: its stripes, one connection for memory, one that resumes, and as many
/// again that a broken network has left open. Connections that only the worker holds are not counted, because they cost
/// the gateway nothing.
const MOST_OTHERS: usize = 24;

/// The place of an additional connection. The place is free again when this value is dropped.
pub type Place = Arc<()>;

/// The registry of expected connections. `W` is the type of the socket to a session's worker.
#[derive(Debug)]
pub struct Registry<W> {
    /// The sessions whose client has not connected yet.
    sessions: HashMap<Id, Session<W>>,
    /// The sessions whose client has connected. The client may reconnect or share memory.
    joined: HashMap<Id, Session<W>>,
    leases: HashMap<Id, Lease>,
    /// The sessions and leases that have moved to another appliance, each with its ticket and its new address.
    moved: HashMap<Id, (Ticket, String)>,
    moved_in_order: VecDeque<Id>,
}

#[derive(Debug)]
struct Session<W> {
    ticket: Ticket,
    expires: Instant,
    /// Whether the client may reconnect after its connection broke.
    resumes: bool,
    worker: Arc<W>,
    others: Place,
}

impl<W> Session<W> {
    fn new(ticket: Ticket, expires: Instant, resumes: bool, worker: W) -> Self {
        Session { ticket, expires, resumes, worker: Arc::new(worker), others: Place::default() }
    }

    fn place(&self) -> Result<Place, Refusal> {
        let taken = Arc::strong_count(&self.others) - 1;
        if taken < MOST_OTHERS { Ok(self.others.clone()) } else { Err(Refusal::Crowded) }
    }
}

#[derive(Debug)]
struct Lease {
    ticket: Ticket,
    /// The connections that hold the lease, by number, the oldest first. A connection ends when its sender is dropped.
    holders: VecDeque<(u64, watch::Sender<()>)>,
    /// The number of the latest holder.
    latest: u64,
}

#[derive(Debug)]
pub enum Admitted<W> {
    Session(Arc<W>),
    /// The connection continues a session.
    Resumed {
        worker: Arc<W>,
        epoch: u64,
        received: u64,
        place: Place,
    },
    /// The client of a session uses the connection to share memory.
    Memory {
        worker: Arc<W>,
        place: Place,
    },
    /// The connection carries bytes of a session's large copies.
    Stripe {
        worker: Arc<W>,
        number: u64,
        place: Place,
    },
    Lease {
        ended: watch::Receiver<()>,
        first: bool,
        holder: u64,
    },
    /// The session or lease has moved to this address, in the form of [`carrier::MOVED`].
    Moved(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    Unknown,
    WrongTicket,
    Expired,
    Crowded,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refusal::Unknown => "no such session or lease, or its ticket was used before",
            Refusal::WrongTicket => "the ticket is wrong",
            Refusal::Expired => "the ticket was not used within 10 s",
            Refusal::Crowded => "its session has as many connections as it may have",
        })
    }
}

impl<W> Default for Registry<W> {
    fn default() -> Self {
        let (sessions, joined, leases) = (HashMap::new(), HashMap::new(), HashMap::new());
        Registry { sessions, joined, leases, moved: HashMap::new(), moved_in_order: VecDeque::new() }
    }
}

impl<W> Registry<W> {
    pub fn add_session(&mut self, id: Id, ticket: Ticket, worker: W, resumes: bool, now: Instant) {
        self.sessions.insert(id, Session::new(ticket, now + TICKET_LIFE, resumes, worker));
    }

    /// Adds a session whose client was admitted by another gateway.
    pub fn add_joined(&mut self, id: Id, ticket: Ticket, worker: W, now: Instant) {
        self.joined.insert(id, Session::new(ticket, now, true, worker));
    }

    pub fn add_lease(&mut self, id: Id, ticket: Ticket) {
        self.leases.insert(id, Lease { ticket, holders: VecDeque::new(), latest: 0 });
    }

    /// Records that a session or lease has moved. A client with its ticket receives the new address. Connections that
    /// hold the lease end.
    pub fn add_moved(&mut self, id: Id, ticket: Ticket, to: String) {
        self.forget(&id);
        if self.moved.insert(id, (ticket, to)).is_none() {
            self.moved_in_order.push_back(id);
        }
        if self.moved_in_order.len() > MOST_MOVED
            && let Some(oldest) = self.moved_in_order.pop_front()
        {
            self.moved.remove(&oldest);
        }
    }

    /// Revokes the ticket of a session or lease, and closes the connections that hold the lease.
    pub fn forget(&mut self, id: &Id) {
        self.sessions.remove(id);
        self.joined.remove(id);
        self.leases.remove(id);
    }

    /// Drops the sockets of workers whose client did not connect in time. The workers then read the end of their data
    /// socket.
    pub fn expire(&mut self, now: Instant) {
        self.sessions.retain(|_, session| now < session.expires);
    }

    /// Admits a connection, and invalidates the session's ticket. A wrong ticket invalidates nothing, so that a peer
    /// without the ticket cannot take the session from its owner.
    ///
    /// # Errors
    /// The reason to close the connection.
    pub fn admit(&mut self, preface: &Preface, now: Instant) -> Result<Admitted<W>, Refusal> {
        // Another ticket may belong to a session that moves back; then the order that admits it has not arrived yet.
        if let Some((ticket, to)) = self.moved.get(&preface.id).filter(|_| !self.is_here(&preface.id))
            && proved(preface, ticket).is_ok()
        {
            return Ok(Admitted::Moved(to.clone()));
        }
        match preface.kind {
            PrefaceKind::Session => {
                let session = self.sessions.get(&preface.id).ok_or(Refusal::Unknown)?;
                proved(preface, &session.ticket)?;
                let session = self.sessions.remove(&preface.id).ok_or(Refusal::Unknown)?;
                if now >= session.expires {
                    return Err(Refusal::Expired);
                }
                let worker = session.worker.clone();
                self.joined.insert(preface.id, session);
                Ok(Admitted::Session(worker))
            }
            // The worker decides which of several attempts is the last one.
            PrefaceKind::Resume { epoch, received } => {
                let session = self.joined.get(&preface.id).filter(|session| session.resumes).ok_or(Refusal::Unknown)?;
                proved(preface, &session.ticket)?;
                Ok(Admitted::Resumed { place: session.place()?, worker: session.worker.clone(), epoch, received })
            }
            PrefaceKind::Memory => {
                let session = self.joined.get(&preface.id).ok_or(Refusal::Unknown)?;
                proved(preface, &session.ticket)?;
                Ok(Admitted::Memory { place: session.place()?, worker: session.worker.clone() })
            }
            PrefaceKind::Stripe { number } => {
                let session = self.joined.get(&preface.id).ok_or(Refusal::Unknown)?;
                proved(preface, &session.ticket)?;
                Ok(Admitted::Stripe { place: session.place()?, worker: session.worker.clone(), number })
            }
            PrefaceKind::Lease => {
                let lease = self.leases.get_mut(&preface.id).ok_or(Refusal::Unknown)?;
                proved(preface, &lease.ticket)?;
                // A new connection always gets a place, because it may replace a connection that broke unnoticed.
                if lease.holders.len() >= MOST_HOLDERS {
                    lease.holders.pop_front();
                }
                let (holding, ended) = watch::channel(());
                lease.latest += 1;
                lease.holders.push_back((lease.latest, holding));
                Ok(Admitted::Lease { ended, first: lease.holders.len() == 1, holder: lease.latest })
            }
        }
    }

    /// Whether the registry has a session or lease with this id. A session that moved away may have moved back.
    fn is_here(&self, id: &Id) -> bool {
        self.sessions.contains_key(id) || self.joined.contains_key(id) || self.leases.contains_key(id)
    }

    /// Removes a connection that held the lease and has ended. Returns whether it was the last one.
    pub fn let_go(&mut self, id: &Id, holder: u64) -> bool {
        let Some(lease) = self.leases.get_mut(id) else { return false };
        lease.holders.retain(|(number, _)| *number != holder);
        lease.holders.is_empty()
    }
}

fn proved(preface: &Preface, ticket: &Ticket) -> Result<(), Refusal> {
    let proved = equal_in_constant_time(&preface.expected(ticket), &preface.ticket);
    if proved { Ok(()) } else { Err(Refusal::WrongTicket) }
}

/// Compares two tickets in constant time, so that a ticket cannot be guessed byte by byte.
fn equal_in_constant_time(a: &Ticket, b: &Ticket) -> bool {
    black_box(a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b))) == 0 || !stands(Defence::Ticket)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Id = [7; 16];
    const TICKET: Ticket = [9; 32];

    fn preface(kind: PrefaceKind, ticket: Ticket) -> Preface {
        Preface { kind, id: ID, ticket }
    }

    fn with_session(now: Instant) -> Registry<&'static str> {
        let mut registry = Registry::default();
        registry.add_session(ID, TICKET, "worker", true, now);
        registry
    }

    #[test]
    fn a_ticket_is_good_once() {
        let now = Instant::now();
        let mut registry = with_session(now);
        let preface = preface(PrefaceKind::Session, TICKET);
        assert!(matches!(registry.admit(&preface, now), Ok(Admitted::Session(_))));
        assert_eq!(registry.admit(&preface, now).unwrap_err(), Refusal::Unknown);
    }

    #[test]
    fn who_knows_the_ticket_may_come_again() {
        let now = Instant::now();
        let mut registry = with_session(now);
        let again = |ticket: Ticket| Preface::resume(ID, &ticket, 1, 42);
        assert_eq!(registry.admit(&again(TICKET), now).unwrap_err(), Refusal::Unknown, "before the first");
        registry.admit(&preface(PrefaceKind::Session, TICKET), now).unwrap();
        assert_eq!(registry.admit(&again([8; 32]), now).unwrap_err(), Refusal::WrongTicket);
        let forged = Preface { kind: PrefaceKind::Resume { epoch: 2, received: 42 }, ..again(TICKET) };
        assert_eq!(registry.admit(&forged, now).unwrap_err(), Refusal::WrongTicket);
        let late = now + 100 * TICKET_LIFE;
        assert!(matches!(registry.admit(&again(TICKET), late), Ok(Admitted::Resumed { epoch: 1, received: 42, .. })));
        registry.forget(&ID);
        assert_eq!(registry.admit(&again(TICKET), late).unwrap_err(), Refusal::Unknown);
    }

    #[test]
    fn stripes_are_for_who_knows_the_ticket_of_a_session_that_is_there() {
        let now = Instant::now();
        let mut registry = with_session(now);
        let stripe = |ticket: Ticket| Preface::stripe(ID, &ticket, 5);
        assert_eq!(registry.admit(&stripe(TICKET), now).unwrap_err(), Refusal::Unknown, "before the first");
        registry.admit(&preface(PrefaceKind::Session, TICKET), now).unwrap();
        assert!(matches!(registry.admit(&stripe(TICKET), now), Ok(Admitted::Stripe { number: 5, .. })));
        assert_eq!(registry.admit(&stripe([8; 32]), now).unwrap_err(), Refusal::WrongTicket);
        let forged = Preface { kind: PrefaceKind::Stripe { number: 6 }, ..stripe(TICKET) };
        assert_eq!(registry.admit(&forged, now).unwrap_err(), Refusal::WrongTicket);
    }

    #[test]
    fn a_session_has_so_many_other_connections_and_each_gives_its_place_back() {
        let now = Instant::now();
        let mut registry = with_session(now);
        registry.add_session([6; 16], TICKET, "another", true, now);
        for id in [ID, [6; 16]] {
            let first = Preface { kind: PrefaceKind::Session, id, ticket: TICKET };
            registry.admit(&first, now).unwrap();
        }
        let mut places: Vec<Place> = (0..MOST_OTHERS as u64)
            .map(|number| {
                let preface = match number % 3 {
                    0 => Preface::resume(ID, &TICKET, number, 0),
                    1 => Preface::stripe(ID, &TICKET, number),
                    _ => Preface::memory(ID, &TICKET),
                };
                match registry.admit(&preface, now) {
                    Ok(Admitted::Resumed { place, .. } | Admitted::Stripe { place, .. })
                    | Ok(Admitted::Memory { place, .. }) => place,
                    other => panic!("{other:?}"),
                }
            })
            .collect();
        let again = Preface::resume(ID, &TICKET, 99, 0);
        assert_eq!(registry.admit(&again, now).unwrap_err(), Refusal::Crowded);
        assert_eq!(registry.admit(&Preface::stripe(ID, &[8; 32], 99), now).unwrap_err(), Refusal::WrongTicket);
        assert!(
            registry.admit(&Preface::resume([6; 16], &TICKET, 1, 0), now).is_ok(),
            "others have places of their own"
        );
        places.pop();
        assert!(registry.admit(&again, now).is_ok());
    }

    #[test]
    fn who_knows_the_ticket_is_told_where_it_has_moved() {
        let now = Instant::now();
        let mut registry = with_session(now);
        registry.admit(&preface(PrefaceKind::Session, TICKET), now).unwrap();
        registry.add_moved(ID, TICKET, "there".into());
        let again = |ticket: Ticket| Preface::resume(ID, &ticket, 1, 42);
        assert!(matches!(registry.admit(&again(TICKET), now), Ok(Admitted::Moved(to)) if to == "there"));
        assert_eq!(registry.admit(&again([8; 32]), now).unwrap_err(), Refusal::Unknown, "it may be about to come back");
        registry.add_joined(ID, TICKET, "worker", now);
        assert!(matches!(registry.admit(&again(TICKET), now), Ok(Admitted::Resumed { .. })), "it came back");
        for number in 0..2 * MOST_MOVED {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
            registry.add_moved(id, TICKET, String::new());
        }
        assert_eq!((registry.moved.len(), registry.moved_in_order.len()), (MOST_MOVED, MOST_MOVED));
    }

    #[test]
    fn a_wrong_ticket_takes_nothing_from_the_owner() {
        let now = Instant::now();
        let mut registry = with_session(now);
        for byte in 0..32 {
            let mut wrong = TICKET;
            wrong[byte] ^= 0x80;
            assert_eq!(registry.admit(&preface(PrefaceKind::Session, wrong), now).unwrap_err(), Refusal::WrongTicket);
        }
        assert!(registry.admit(&preface(PrefaceKind::Session, TICKET), now).is_ok());
    }

    #[test]
    fn a_ticket_expires() {
        let now = Instant::now();
        let late = now + TICKET_LIFE;
        assert_eq!(
            with_session(now).admit(&preface(PrefaceKind::Session, TICKET), late).unwrap_err(),
            Refusal::Expired
        );
        let mut registry = with_session(now);
        registry.expire(late - Duration::from_millis(1));
        assert_eq!(registry.sessions.len(), 1);
        registry.expire(late);
        assert_eq!(registry.sessions.len(), 0);
    }

    #[test]
    fn the_ticket_of_a_session_is_none_of_a_lease() {
        let now = Instant::now();
        assert_eq!(with_session(now).admit(&preface(PrefaceKind::Lease, TICKET), now).unwrap_err(), Refusal::Unknown);
    }

    #[test]
    fn a_lease_is_held_until_the_last_connection_ends() {
        let now = Instant::now();
        let mut registry: Registry<()> = Registry::default();
        registry.add_lease(ID, TICKET);
        let preface = preface(PrefaceKind::Lease, TICKET);
        let Ok(Admitted::Lease { ended, first: true, holder }) = registry.admit(&preface, now) else { panic!() };
        let Ok(Admitted::Lease { first: false, holder: other, .. }) = registry.admit(&preface, now) else { panic!() };
        assert!(!registry.let_go(&ID, other));
        assert!(ended.has_changed().is_ok());
        registry.forget(&ID);
        assert!(ended.has_changed().is_err(), "holding connections are told");
        assert!(!registry.let_go(&ID, holder), "nothing to report of a forgotten lease");
        registry.add_lease(ID, TICKET);
        let Ok(Admitted::Lease { first: true, holder, .. }) = registry.admit(&preface, now) else { panic!() };
        assert!(registry.let_go(&ID, holder));
    }

    #[test]
    fn of_too_many_that_hold_a_lease_the_oldest_leaves() {
        let now = Instant::now();
        let mut registry: Registry<()> = Registry::default();
        registry.add_lease(ID, TICKET);
        let preface = preface(PrefaceKind::Lease, TICKET);
        let held: Vec<_> = (0..MOST_HOLDERS + 3)
            .map(|_| match registry.admit(&preface, now) {
                Ok(Admitted::Lease { ended, holder, .. }) => (ended, holder),
                other => panic!("{other:?}"),
            })
            .collect();
        let gone: Vec<_> = held.iter().map(|(ended, _)| ended.has_changed().is_err()).collect();
        assert_eq!(gone, [vec![true; 3], vec![false; MOST_HOLDERS]].concat());
        let last: Vec<_> = held.iter().map(|(_, holder)| registry.let_go(&ID, *holder)).collect();
        assert_eq!(last.iter().position(|last| *last), Some(held.len() - 1), "it is held until the last one ends");
    }
}
