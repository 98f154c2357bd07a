//! Waits for leases of one appliance, or of several together, and reports the reason for the delay.

use std::io::IsTerminal;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use remotegpu_client::connect::{Access, Event, Lease, LeaseWish, Site, open_lease, site};

use crate::child::Signals;
use crate::exits::{BUSY, Failure, UNAVAILABLE, USAGE};
use crate::placement::{possible, spread};
use crate::quantities::in_words;

const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(100);
const TELL_AGAIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_secs(1);

pub enum Waited {
    Granted(Vec<Lease>),
    /// A signal with this number requested an end.
    Stopped(i32),
}

/// Blocks until leases that together satisfy the request are granted, or a signal arrives. Without `wish.wait` it fails
/// at once if the share is not free.
pub fn wait_for(places: &[(String, Access)], wish: &LeaseWish, signals: &Signals) -> Result<Waited, Failure> {
    let mut notice = Notice::new();
    match places {
        [(endpoint, access)] => wait_for_one(endpoint, access, wish.clone(), signals, &mut notice),
        _ => wait_for_several(places, wish, signals, &mut notice),
    }
}

fn wait_for_one(
    endpoint: &str,
    access: &Access,
    wish: LeaseWish,
    signals: &Signals,
    notice: &mut Notice,
) -> Result<Waited, Failure> {
    let events = open_lease(endpoint, access, wish)?;
    loop {
        match events.recv_timeout(LOOK_FOR_SIGNALS) {
            Ok(Ok(Event::Granted(lease))) => return Ok(Waited::Granted(vec![*lease])),
            Ok(Ok(Event::Waiting(reason))) => notice.show(&reason),
            Ok(Err(error)) => return Err(error.into()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let message = format!("the request to {endpoint} broke off; try again, and see the appliance's log");
                return Err(Failure::new(UNAVAILABLE, message));
            }
        }
        if let Some(number) = signals.ending() {
            return Ok(Waited::Stopped(number));
        }
    }
}

/// Retries until all leases are granted at the same time. No lease is held during the wait, because two callers that
/// each hold one lease could block each other.
fn wait_for_several(
    places: &[(String, Access)],
    wish: &LeaseWish,
    signals: &Signals,
    notice: &mut Notice,
) -> Result<Waited, Failure> {
    let words = in_words(wish);
    loop {
        let sites = places.iter().map(|(endpoint, access)| site(endpoint, access)).collect::<Result<Vec<_>, _>>()?;
        check_turns(places, &sites, wish)?;
        if !possible(&sites, wish) {
            let names: Vec<_> = places.iter().map(|(endpoint, _)| endpoint.as_str()).collect();
            let message = format!("{words} is more than {} have together; ask for less", names.join(", "));
            return Err(Failure::new(BUSY, message));
        }
        if let Some(counts) = spread(&sites, wish)
            && let Some(waited) = open_all(places, &counts, wish, signals, notice)?
        {
            return Ok(waited);
        }
        let reason = format!("{words} is not free on {} appliances together", places.len());
        if !wish.wait {
            return Err(Failure::new(BUSY, format!("{reason}; try later, or leave out --no-wait")));
        }
        notice.show(&reason);
        let until = Instant::now() + POLL;
        while Instant::now() < until {
            if let Some(number) = signals.ending() {
                return Ok(Waited::Stopped(number));
            }
            thread::sleep(LOOK_FOR_SIGNALS);
        }
    }
}

/// Opens a lease on each chosen appliance. If another caller was faster, closes the opened ones and returns `None`.
fn open_all(
    places: &[(String, Access)],
    counts: &[u32],
    wish: &LeaseWish,
    signals: &Signals,
    notice: &mut Notice,
) -> Result<Option<Waited>, Failure> {
    let mut leases = Vec::new();
    for ((endpoint, access), &count) in places.iter().zip(counts).filter(|(_, count)| **count > 0) {
        let part = LeaseWish { count, wait: false, ..wish.clone() };
        let opened = wait_for_one(endpoint, access, part, signals, notice);
        if let Ok(Waited::Granted(more)) = opened {
            leases.extend(more);
            continue;
        }
        for lease in &leases {
            let _ = lease.close();
        }
        return match opened {
            Err(failure) if failure.code == BUSY => Ok(None),
            other => other.map(Some),
        };
    }
    Ok(Some(Waited::Granted(leases)))
}

/// Refuses a limit of compute time for an appliance that cannot enforce it. An appliance of an earlier version would
/// ignore it without an error.
fn check_turns(places: &[(String, Access)], sites: &[Site], wish: &LeaseWish) -> Result<(), Failure> {
    if (wish.compute_milli, wish.compute_limit_milli) == (0, 1000) {
        return Ok(());
    }
    match places.iter().zip(sites).find(|(_, site)| !site.turns) {
        None => Ok(()),
        Some(((endpoint, _), _)) => {
            let message = format!(
                "{endpoint} does not divide the time of its GPUs: start it with --compute-mode turns, or leave out \
                 --compute and --compute-limit"
            );
            Err(Failure::new(USAGE, message))
        }
    }
}

/// Shows why and for how long the program waits for a share: one updated line on a terminal, a line from time to time
/// elsewhere.
struct Notice {
    since: Instant,
    live: bool,
    told: Option<(String, Duration)>,
}

impl Notice {
    fn new() -> Self {
        Notice { since: Instant::now(), live: std::io::stderr().is_terminal(), told: None }
    }

    fn show(&mut self, reason: &str) {
        let waited = self.since.elapsed();
        let text = format!("waiting {} s for a share: {reason}", waited.as_secs());
        let again = self.told.as_ref().is_none_or(|(told, when)| told != reason || waited >= *when + TELL_AGAIN);
        if self.live {
            // Turn off line wrapping: a wrapped line could not be erased.
            eprint!("\r\x1b[2K\x1b[?7l{text}\x1b[?7h");
        } else if again {
            eprintln!("remotegpu: {text}");
        }
        if self.live || again {
            self.told = Some((reason.to_owned(), waited));
        }
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        if self.live && self.told.is_some() {
            eprint!("\r\x1b[2K");
        }
    }
}
