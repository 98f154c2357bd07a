//! Precopy: a session's memory is sent to its next worker while the session still runs. When it is stopped, only bytes
//! that changed meanwhile are sent again, so that it is stopped for less time.

use crate::copying::staging::Scratch;
use crate::driver::{Driver, Handle, Result as DriverResult};
use crate::moving::ground::Ground;
use crate::moving::image::{Failed, PIECE, Piece, Place, random_key, read_with};
use crate::moving::replay::Replay;
use crate::session::commands::Session;
use crate::session::requests::Request;
use ring::aead::{Aad, LessSafeKey, Nonce, Tag};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

/// Bytes that are read at a time. Memory that the program gives back is unmapped after the read.
const BATCH: u64 = 8 * PIECE as u64;

/// The connection to the other worker, and what that worker already has.
pub struct Ahead {
    pub there: Replay,
    /// `None` for a session that was suspended: nothing was created there.
    pub ground: Option<Ground>,
    /// A tag of the bytes of each piece that was sent, by its address and length.
    tags: HashMap<(u64, usize), Tag>,
    key: LessSafeKey,
    /// Kept until the session is stopped: the driver frees page-locked memory only when no kernel runs.
    buffers: Option<Buffers>,
}

struct Buffers {
    pair: [Scratch; 2],
    context: Handle,
}

impl Buffers {
    fn new(driver: &Driver, context: Handle) -> DriverResult<Buffers> {
        driver.set_current(context)?;
        Ok(Buffers { pair: [Scratch::new(driver, PIECE)?, Scratch::new(driver, PIECE)?], context })
    }

    /// Frees the buffers. If their context has ended, they are gone with it.
    fn free(self, driver: &Driver) {
        if driver.set_current(self.context).is_ok() {
            let _ = self.pair.into_iter().try_for_each(|scratch| scratch.free(driver));
        }
    }
}

impl Ahead {
    fn new(connection: OwnedFd) -> Result<Ahead, Failed> {
        Ok(Ahead {
            there: Replay::new(connection)?,
            ground: None,
            tags: HashMap::new(),
            key: random_key()?,
            buffers: None,
        })
    }

    fn make(&mut self, ground: Ground) -> Result<(), Failed> {
        ground.make(&mut self.there, None)?;
        self.ground = Some(ground);
        Ok(())
    }

    fn fetch(&mut self, driver: &Driver, batch: &[Place]) -> Result<Vec<(Piece, Vec<u8>)>, Failed> {
        let mut pieces = Vec::new();
        let Some(context) = batch.iter().find_map(|place| place.filler).map(|filler| filler.context) else {
            return Ok(pieces);
        };
        if self.buffers.is_none() {
            self.buffers = Some(Buffers::new(driver, context).map_err(|code| format!("CUDA error {code}"))?);
        }
        let Some(buffers) = &mut self.buffers else { return Ok(pieces) };
        read_with(driver, &mut buffers.pair, batch, |piece, bytes| {
            pieces.push((*piece, bytes.to_vec()));
            Ok(())
        })?;
        Ok(pieces)
    }

    fn send(&mut self, pieces: &[(Piece, Vec<u8>)]) -> Result<(), Failed> {
        let Some(ground) = &self.ground else { return Ok(()) };
        for (piece, bytes) in pieces {
            let (context, stream) = ground.stream(piece.device)?;
            self.there.copy(context, stream, piece.address, bytes, true)?;
            self.tags.insert((piece.address, bytes.len()), tag(&self.key, bytes)?);
        }
        Ok(())
    }

    /// Frees the buffers, on a helper's thread, when no kernel of the session runs.
    pub fn free_buffers(&mut self, driver: &Driver) {
        if let Some(buffers) = self.buffers.take() {
            buffers.free(driver);
        }
    }

    /// Whether the other worker has exactly these bytes at this place.
    ///
    /// # Errors
    /// If they cannot be compared.
    pub fn has(&self, piece: &Piece, bytes: &[u8]) -> Result<bool, Failed> {
        let sent = self.tags.get(&(piece.address, bytes.len()));
        sent.map_or(Ok(false), |sent| Ok(tag(&self.key, bytes)?.as_ref() == sent.as_ref()))
    }
}

/// Returns a tag that tells these bytes from others. It stays in this process, so a nonce may repeat.
fn tag(key: &LessSafeKey, bytes: &[u8]) -> Result<Tag, Failed> {
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    key.seal_in_place_separate_tag(nonce, Aad::from(bytes), &mut []).map_err(|_| "memory could not be compared".into())
}

impl Session {
    /// Sends memory ahead for the appliance, which will soon move the session to the worker at the other end of this
    /// connection.
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
            let todo = self.places(&ground.slabs).iter().flat_map(parts).collect();
            self.hold.sends_ahead = true;
            self.helpers.start(
                move |_| (ahead.make(ground), ahead),
                move |session: &mut Session, (made, ahead)| session.sent_ahead(made, ahead, todo),
            );
            Ok(())
        });
        if let Err(reason) = begun {
            self.requests.push(Request::NotMoved { reason });
        }
    }

    /// Sends the next batch.
    fn sent_ahead(&mut self, sent: Result<(), Failed>, mut ahead: Ahead, mut todo: VecDeque<Place>) {
        if let Err(reason) = sent {
            (self.hold.sends_ahead, self.hold.ahead) = (false, Some(ahead));
            self.forget_ahead();
            return self.requests.push(Request::NotMoved { reason });
        }
        let batch = self.next_batch(&mut todo);
        if batch.is_empty() {
            return self.is_ahead(ahead);
        }
        // One thread reads and unmaps, so that nothing is unmapped while it is read; another one waits for the network.
        self.helpers.start_in_order(
            move |driver| (ahead.fetch(driver, &batch), ahead),
            move |session: &mut Session, (fetched, mut ahead)| {
                session.helpers.start(
                    // Memory that cannot be read now is sent when the session is stopped.
                    move |_| (ahead.send(&fetched.unwrap_or_default()), ahead),
                    move |session: &mut Session, (sent, ahead)| session.sent_ahead(sent, ahead, todo),
                );
            },
        );
    }

    fn is_ahead(&mut self, ahead: Ahead) {
        let bytes = ahead.there.copied;
        (self.hold.sends_ahead, self.hold.ahead) = (false, Some(ahead));
        self.requests.push(Request::Ahead { bytes });
    }

    /// Forgets the other worker: the session does not move.
    pub fn forget_ahead(&mut self) {
        if let Some(mut ahead) = self.hold.ahead.take().filter(|ahead| ahead.buffers.is_some()) {
            self.helpers.start(move |driver| ahead.free_buffers(driver), |_: &mut Session, ()| ());
        }
    }

    /// Returns the next places to send, of those that are still mapped.
    fn next_batch(&self, todo: &mut VecDeque<Place>) -> Vec<Place> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH
            && let Some(place) = todo.pop_front()
        {
            if self.memory.is_mapped(place.address, place.size) {
                bytes += place.size;
                batch.push(Place { filler: self.filler(place.device), ..place });
            }
        }
        batch
    }
}

/// Splits a place so that its pieces are the same as those of the whole.
fn parts(place: &Place) -> impl Iterator<Item = Place> + use<> {
    let place = *place;
    (0..place.size).step_by(BATCH as usize).map(move |from| Place {
        address: place.address + from,
        size: (place.size - from).min(BATCH),
        ..place
    })
}
