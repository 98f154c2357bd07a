//! Which devices of an appliance may access each other's memory, and the number of reasons for it.

use crate::Code;
use crate::locks::{Ordered, Rank};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// A device, and another device whose memory it may access, as the worker numbers them.
pub type Pair = (u32, u32);

/// The number of reasons for each pair of devices.
pub struct Reached(Ordered<HashMap<Pair, Arc<AtomicU32>>>);

/// One reason. Dropping it takes no lock, because the reader may drop the last one.
pub struct Reason {
    pair: Pair,
    reasons: Arc<AtomicU32>,
}

impl Default for Reached {
    fn default() -> Self {
        Reached(Ordered::new(Rank::Reached, HashMap::new()))
    }
}

impl Reached {
    /// Adds a reason for a pair. Calls `allow` if it is the first one.
    ///
    /// # Errors
    /// Those of `allow`.
    pub fn add(&self, pair: Pair, allow: impl FnOnce() -> Result<(), Code>) -> Result<Reason, Code> {
        let mut all = self.0.lock();
        let reasons = Arc::clone(all.entry(pair).or_default());
        if reasons.load(SeqCst) == 0 {
            allow()?;
        }
        reasons.fetch_add(1, SeqCst);
        Ok(Reason { pair, reasons })
    }

    /// Ends a reason. Calls `withdraw` with its pair if it is the last one.
    ///
    /// # Errors
    /// Those of `withdraw`.
    pub fn end(&self, reason: Reason, withdraw: impl FnOnce(Pair) -> Result<(), Code>) -> Result<(), Code> {
        let _all = self.0.lock();
        let (pair, is_last) = (reason.pair, reason.reasons.load(SeqCst) == 1);
        drop(reason);
        if is_last { withdraw(pair) } else { Ok(()) }
    }
}

impl Drop for Reason {
    fn drop(&mut self) {
        self.reasons.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    const PAIR: Pair = (0, 1);

    #[test]
    fn the_first_reason_allows_and_the_last_one_that_ends_withdraws() {
        let reached = Reached::default();
        let unasked = || -> Result<(), Code> { panic!("only the first reason allows, and the last one withdraws") };
        let mut told = Vec::new();
        let mut tell = |allowed| {
            told.push(allowed);
            Ok(())
        };
        let first = reached.add(PAIR, || tell(true)).expect("added");
        let second = reached.add(PAIR, unasked).expect("added");
        reached.end(first, |_| unasked()).expect("ended");
        reached.end(second, |pair| tell(pair != PAIR)).expect("ended");
        assert!(reached.add(PAIR, || Err(1)).is_err(), "the access was withdrawn, so it is asked for again");
        drop(reached.add(PAIR, || Ok(())).expect("added"));
        drop(reached.add(PAIR, || tell(true)).expect("added"));
        assert_eq!(told, [true, false, true]);
    }

    /// The reader drops the last owner of a context while another thread sends under the lock, and waits for the
    /// reader.
    #[test]
    fn a_reason_is_dropped_while_another_thread_sends_under_the_lock() {
        let reached = Reached::default();
        let old = reached.add(PAIR, || Ok(())).expect("added");
        let send = || {
            let (dropped, wait) = mpsc::channel();
            thread::spawn(move || {
                drop(old);
                dropped.send(())
            });
            wait.recv_timeout(Duration::from_secs(10)).map_err(|_| 1)
        };
        assert!(reached.add((1, 0), send).is_ok(), "the drop of a reason waits for the lock `Reached` (limit: 10 s)");
    }
}
