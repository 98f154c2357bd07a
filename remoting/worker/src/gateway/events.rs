//! Events that the gateway reports to the appliance.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc;

use super::refusals::Refusals;
use crate::packets::{GatewayEvent, UsedTime};

/// Limit on the entries of one packet.
const MOST_USED: usize = 32;

/// The queue of events for the appliance.
#[derive(Debug)]
pub struct Events {
    sender: mpsc::Sender<GatewayEvent>,
    refusals: Mutex<Refusals>,
}

pub fn channel() -> (Events, mpsc::Receiver<GatewayEvent>) {
    let (sender, receiver) = mpsc::channel(1024);
    (Events { sender, refusals: Mutex::default() }, receiver)
}

impl Events {
    /// Queues an event. Waits while the queue is full, because these events must not be lost.
    pub async fn send(&self, event: GatewayEvent) {
        // The receiver exists as long as the process serves.
        let _ = self.sender.send(event).await;
    }

    /// Reports the refusal of a connection, for the log. Unauthenticated peers must not fill the log or memory, or
    /// delay the gateway. Therefore refusals beyond a limit are only counted.
    pub fn refused(&self, peer: impl ToString, reason: impl ToString) {
        let mut refusals = self.refusals();
        if refusals.tell(Instant::now()) {
            let event = GatewayEvent::Refused { peer: peer.to_string(), reason: reason.to_string() };
            if self.sender.try_send(event).is_err() {
                refusals.lost();
            }
        }
    }

    /// Reports used time. It never waits: if the queue is full, the event is lost.
    pub fn used(&self, times: Vec<UsedTime>) {
        // One packet can hold only this many entries.
        for times in times.chunks(MOST_USED) {
            let _ = self.sender.try_send(GatewayEvent::Used { times: times.to_vec() });
        }
    }

    pub fn left_out(&self) -> Option<GatewayEvent> {
        self.refusals().left_out(Instant::now()).map(|count| GatewayEvent::RefusedMore { count })
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
        let event = GatewayEvent::SessionConnected { id: "ab".into() };
        assert_eq!(serde_json::to_string(&event).unwrap(), r#"{"op":"session_connected","id":"ab"}"#);
    }
}
