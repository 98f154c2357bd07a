//! Getting a lease, reporting why it takes so long, and holding it.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use remotegpu_client::connect::{Access, ConnectError, Event, Lease, LeaseWish, open_lease};

use crate::child::Signals;
use crate::exits::{Failure, UNAVAILABLE};

const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(100);
const TELL_AGAIN: Duration = Duration::from_secs(30);
const MORE_ATTEMPTS: usize = 2;
const PAUSE: Duration = Duration::from_millis(100);
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// The time for which an appliance keeps a lease whose holding connection broke.
const RECONNECT: Duration = Duration::from_secs(10);

pub enum Waited {
    Granted(Box<Lease>),
    /// By this signal.
    Stopped(i32),
}

pub fn wait_for(endpoint: &str, access: &Access, wish: LeaseWish, signals: &Signals) -> Result<Waited, Failure> {
    let events = open_lease(endpoint, access, wish)?;
    let mut notice = Notice::new();
    loop {
        match events.recv_timeout(LOOK_FOR_SIGNALS) {
            Ok(Ok(Event::Granted(lease))) => return Ok(Waited::Granted(lease)),
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

/// The reason and duration of a wait: one live line on a terminal, a line now and then elsewhere.
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
            // A line that wraps could not be taken back: the terminal cuts it.
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

/// A lease whose holding connection a thread keeps open.
pub struct Held {
    lease: Lease,
    closing: Arc<AtomicBool>,
}

impl Held {
    pub fn new(lease: Lease) -> Result<Self, Failure> {
        let connection = match hold(&lease) {
            Ok(connection) => connection,
            Err(error) => {
                let _ = lease.close();
                return Err(error.into());
            }
        };
        let closing = Arc::new(AtomicBool::new(false));
        let (kept, ends) = (lease.clone(), closing.clone());
        thread::spawn(move || keep(&kept, connection, &ends));
        Ok(Held { lease, closing })
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Gives the lease back. If that fails, the end of this process ends it.
    pub fn close(self) {
        self.closing.store(true, Ordering::Release);
        let _ = self.lease.close();
    }
}

/// A connection that is cut at once is tried again, as the lease lives for some seconds without it.
fn hold(lease: &Lease) -> Result<File, ConnectError> {
    for _ in 0..MORE_ATTEMPTS {
        if let Ok(connection) = lease.hold() {
            return Ok(connection.into());
        }
        thread::sleep(PAUSE);
    }
    lease.hold().map(File::from)
}

fn keep(lease: &Lease, mut connection: File, closing: &AtomicBool) {
    loop {
        // The peer sends nothing; `read` returns at EOF.
        let _ = connection.read(&mut [0]);
        let deadline = Instant::now() + RECONNECT.max(lease.grace);
        connection = loop {
            if closing.load(Ordering::Acquire) {
                return;
            }
            match lease.hold() {
                Ok(again) => break again.into(),
                Err(_) if Instant::now() > deadline => {
                    let endpoint = lease.endpoint();
                    eprintln!("remotegpu: the appliance at {endpoint} ended the lease; its GPU answers no more");
                    return;
                }
                Err(_) => thread::sleep(RECONNECT_PAUSE),
            }
        };
    }
}
