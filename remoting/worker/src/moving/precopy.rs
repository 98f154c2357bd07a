//! Precopy: sends a session's memory to its next worker while the session still runs. When the session is stopped, only
//! bytes that changed meanwhile are sent again, so that it is stopped for less time.

use crate::moving::ahead::Ahead;
use crate::moving::image::{Failed, PIECE, Place};
use crate::packets::Request;
use crate::session::commands::Session;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// The number of bytes that are read at a time. Memory that the program frees meanwhile is unmapped after the read.
const BATCH: u64 = 8 * PIECE as u64;

impl Session {
    /// Starts to send memory to the worker at the other end of this connection. The appliance will soon move the
    /// session there.
    pub fn send_ahead(&mut self, connection: Option<OwnedFd>) {
        let begun = connection.ok_or("the appliance gave no connection".into()).and_then(|connection| {
            let mut ahead = Ahead::new(connection)?;
            if self.hold.holds() {
                self.is_ahead(ahead);
                return Ok(());
            }
            self.check_movable()?;
            self.check_unshared()?;
            let ground = self.ground()?;
            let remaining = self.places(&ground.slabs).iter().flat_map(parts).collect();
            self.hold.sends_ahead = true;
            self.helpers.start(
                move |_| (ahead.make(ground), ahead),
                move |session: &mut Session, (made, ahead)| session.sent_ahead(made, ahead, remaining),
            );
            Ok(())
        });
        if let Err(reason) = begun {
            self.requests.push(Request::NotMoved { reason });
        }
    }

    /// Handles the end of a batch, and sends the next one.
    fn sent_ahead(&mut self, sent: Result<(), Failed>, mut ahead: Ahead, mut remaining: VecDeque<Place>) {
        if let Err(reason) = sent {
            (self.hold.sends_ahead, self.hold.ahead) = (false, Some(ahead));
            self.forget_ahead();
            return self.requests.push(Request::NotMoved { reason });
        }
        let batch = self.next_batch(&mut remaining);
        if batch.is_empty() {
            return self.is_ahead(ahead);
        }
        // One thread reads and unmaps, so that no memory is unmapped while it is read. Another thread waits for the
        // network.
        self.helpers.start_in_order(
            move |driver| (ahead.fetch(driver, &batch), ahead),
            move |session: &mut Session, (fetched, mut ahead)| {
                session.helpers.start(
                    // Memory that cannot be read now is sent when the session is stopped.
                    move |_| (ahead.send(&fetched.unwrap_or_default()), ahead),
                    move |session: &mut Session, (sent, ahead)| session.sent_ahead(sent, ahead, remaining),
                );
            },
        );
    }

    fn is_ahead(&mut self, ahead: Ahead) {
        let bytes = ahead.there.copied;
        (self.hold.sends_ahead, self.hold.ahead) = (false, Some(ahead));
        self.requests.push(Request::Ahead { bytes });
    }

    /// Closes the connection to the next worker, because the session does not move.
    pub fn forget_ahead(&mut self) {
        if let Some(mut ahead) = self.hold.ahead.take().filter(|ahead| ahead.buffers.is_some()) {
            self.helpers.start(move |driver| ahead.free_buffers(driver), |_: &mut Session, ()| ());
        }
    }

    /// Returns the next places to send, without those that are no longer mapped.
    fn next_batch(&self, remaining: &mut VecDeque<Place>) -> Vec<Place> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH
            && let Some(place) = remaining.pop_front()
        {
            if self.memory.is_mapped(place.address, place.size) {
                bytes += place.size;
                batch.push(Place { filler: self.filler(place.device), ..place });
            }
        }
        batch
    }
}

/// Splits a place into parts whose pieces are the same as those of the whole place.
fn parts(place: &Place) -> impl Iterator<Item = Place> + use<> {
    let place = *place;
    (0..place.size).step_by(BATCH as usize).map(move |from| Place {
        address: place.address + from,
        size: (place.size - from).min(BATCH),
        ..place
    })
}
