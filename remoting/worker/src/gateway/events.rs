//! Events at the gateway that the appliance receives.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;
use tokio::sync::mpsc;

use super::refusals::Refusals;
use super::turns::Used;

#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Event {
    Listening {
        port: u16,
        control: u16,
    },
    SessionConnected {
        id: String,
    },
    LeaseHeld {
        id: String,
    },
    LeaseGone {
        id: String,
    },
    Synced {
        number: u64,
    },
    Refused {
        peer: String,
        reason: String,
    },
    /// GPU time that leases have used since the last such event.
    Used {
        times: Vec<Used>,
    },
    /// Number of refusals that were not reported by `refused`.
    RefusedMore {
        count: u64,
    },
}

/// Limit on the entries of one packet.
const MOST_USED: usize = 32;

/// Queue of events for the appliance.
#[derive(Debug)]
pub struct Events {
    sender: mpsc::Sender<Event>,
    refusals: Mutex<Refusals>,
}

pub fn channel() -> (Events, mpsc::Receiver<Event>) {
    let (sender, receiver) = mpsc::channel(1024);
    (Events { sender, refusals: Mutex::default() }, receiver)
}

impl Events {
    /// Waits if the appliance is behind: these events must not be lost.
    pub async fn send(&self, event: Event) {
        // The receiver lives as long as the process serves.
        let _ = self.sender.send(event).await;
    }

    /// Reports a refusal for people to read. Unauthenticated peers must not fill a log or memory, or delay the gateway:
    /// refusals that are not reported in full are counted.
    pub fn refused(&self, peer: impl ToString, reason: impl ToString) {
        let mut refusals = self.refusals();
        if refusals.tell(Instant::now()) {
            let event = Event::Refused { peer: peer.to_string(), reason: reason.to_string() };
            if self.sender.try_send(event).is_err() {
                refusals.lost();
            }
        }
    }

    /// Reports used time, from a thread that must not wait: if the appliance is far behind, the event is lost.
    pub fn used(&self, times: Vec<Used>) {
        // A packet holds no more.
        for times in times.chunks(MOST_USED) {
            let _ = self.sender.try_send(Event::Used { times: times.to_vec() });
        }
    }

    pub fn left_out(&self) -> Option<Event> {
        self.refusals().left_out(Instant::now()).map(|count| Event::RefusedMore { count })
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_form_of_the_interface() {
        let event = Event::SessionConnected { id: "ab".into() };
        assert_eq!(serde_json::to_string(&event).unwrap(), r#"{"op":"session_connected","id":"ab"}"#);
    }
}
