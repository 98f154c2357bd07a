//! Reconnection. When a connection breaks, another one replaces it. The session continues at the byte where each end
//! stopped receiving.

use crate::program::log;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The first pause between two attempts.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The result of a failed attempt to reconnect, with a reason for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retry {
    Later(String),
    /// The appliance does not have the session any more, so further attempts are useless.
    Never(String),
}

type Connect = dyn Fn(u64, u64) -> Result<(OwnedFd, u64), Retry> + Send + Sync;

/// The settings and the function with which a session connects to its worker again.
pub struct Reconnect {
    /// The time for which the appliance keeps a session without a connection.
    pub grace: Duration,
    /// Makes a connection. Its arguments are the number of the attempt and the number of bytes that this end has
    /// received. It returns the connection and the number of bytes that the worker has received.
    pub connect: Box<Connect>,
}

impl Reconnect {
    /// Repeats attempts with a growing pause until `go_on` accepts a connection, at most for `grace`. `attempts` counts
    /// the attempts of the session. `received` is the number of bytes that this end has received.
    ///
    /// # Errors
    /// The reason why there is no connection.
    pub fn try_again(
        &self,
        peer: &str,
        attempts: &AtomicU64,
        received: u64,
        reason: String,
        go_on: impl Fn(&OwnedFd, u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let (begun, grace) = (Instant::now(), self.grace);
        let mut pause = SHORTEST_PAUSE;
        let mut told = false;
        loop {
            let attempt = attempts.fetch_add(1, SeqCst) + 1;
            let error = match (self.connect)(attempt, received) {
                Ok((socket, theirs)) => {
                    go_on(&socket, theirs)?;
                    if told {
                        let seconds = begun.elapsed().as_secs_f32();
                        log::error(&format!("appliance {peer} is back after {seconds:.1} s; the program goes on"));
                    }
                    return Ok(());
                }
                Err(Retry::Never(error)) => return Err(format!("{reason}; {error}")),
                Err(Retry::Later(error)) => error,
            };
            let left = grace.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(format!("{reason}; there was no way back to it for {} s: {error}", grace.as_secs()));
            }
            if !std::mem::replace(&mut told, true) {
                log::error(&format!(
                    "appliance {peer} is lost: {reason}; CUDA calls wait for it up to {} s",
                    grace.as_secs()
                ));
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
