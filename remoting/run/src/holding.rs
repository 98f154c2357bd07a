//! Leases that are held by an open connection.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remotegpu_client::connect::{ConnectError, Lease};

use crate::exits::Failure;

const MORE_ATTEMPTS: usize = 2;
const PAUSE: Duration = Duration::from_millis(100);
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// The time for which an appliance keeps a lease after its holding connection breaks.
const RECONNECT: Duration = Duration::from_secs(10);

/// A lease whose holding connection a thread keeps open.
pub struct Held {
    lease: Lease,
    closing: Arc<AtomicBool>,
}

impl Held {
    /// Connects to the appliance to hold `lease`, and starts the thread. `moved` is called after each move of the lease
    /// to another appliance. Closes the lease if the connection fails.
    pub fn new(lease: Lease, moved: fn(&Lease)) -> Result<Self, Failure> {
        let connection = match hold(&lease) {
            Ok(connection) => connection,
            Err(error) => {
                let _ = lease.close();
                return Err(error.into());
            }
        };
        let closing = Arc::new(AtomicBool::new(false));
        let (kept, ends) = (lease.clone(), closing.clone());
        thread::spawn(move || keep(&kept, connection, &ends, moved));
        Ok(Held { lease, closing })
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Releases the lease. If that fails, the lease ends with this process.
    pub fn close(self) {
        self.closing.store(true, Ordering::Release);
        let _ = self.lease.close();
    }
}

/// Opens the holding connection. Retries if it breaks at once, because the lease survives some seconds without one.
fn hold(lease: &Lease) -> Result<File, ConnectError> {
    for _ in 0..MORE_ATTEMPTS {
        if let Ok(connection) = lease.hold() {
            return Ok(connection.into());
        }
        thread::sleep(PAUSE);
    }
    lease.hold().map(File::from)
}

fn keep(lease: &Lease, mut connection: File, closing: &AtomicBool, moved: fn(&Lease)) {
    let mut place = lease.endpoint();
    loop {
        // The peer sends nothing; `read` returns at EOF.
        let _ = connection.read(&mut [0]);
        let deadline = Instant::now() + RECONNECT.max(lease.grace);
        connection = loop {
            if closing.load(Ordering::Acquire) {
                return;
            }
            match lease.hold() {
                Ok(again) => {
                    if lease.endpoint() != place {
                        place = lease.endpoint();
                        moved(lease);
                    }
                    break again.into();
                }
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
