//! The connection of a session that moves to its next worker, and the state that this worker already has.

use crate::driver::staging::Scratch;
use crate::driver::{Driver, Handle, Result as DriverResult};
use crate::moving::ground::Ground;
use crate::moving::image::{Failed, PIECE, Piece, Place, random_key, read_with};
use crate::moving::replay::Replay;
use ring::aead::{Aad, LessSafeKey, Nonce, Tag};
use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// The connection to the next worker, and the parts of the session that already exist there.
pub struct Ahead {
    pub there: Replay,
    /// The memory layout that was created at the next worker. `None` if the session was suspended, because then nothing
    /// was created.
    pub ground: Option<Ground>,
    /// A tag of the bytes of each piece that was sent, by the address and the length of the piece.
    tags: HashMap<(u64, usize), Tag>,
    key: LessSafeKey,
    /// The buffers of the copies. They are kept until the session is stopped, because the driver frees page-locked
    /// memory only when no kernel runs.
    pub(super) buffers: Option<Buffers>,
}

pub(super) struct Buffers {
    pair: [Scratch; 2],
    context: Handle,
}

impl Buffers {
    fn new(driver: &Driver, context: Handle) -> DriverResult<Buffers> {
        driver.set_current(context)?;
        Ok(Buffers { pair: [Scratch::new(driver, PIECE)?, Scratch::new(driver, PIECE)?], context })
    }

    /// Frees the buffers. If their context was destroyed, so were they.
    fn free(self, driver: &Driver) {
        if driver.set_current(self.context).is_ok() {
            let _ = self.pair.into_iter().try_for_each(|scratch| scratch.free(driver));
        }
    }
}

impl Ahead {
    pub(super) fn new(connection: OwnedFd) -> Result<Ahead, Failed> {
        Ok(Ahead {
            there: Replay::new(connection)?,
            ground: None,
            tags: HashMap::new(),
            key: random_key()?,
            buffers: None,
        })
    }

    pub(super) fn make(&mut self, ground: Ground) -> Result<(), Failed> {
        ground.make(&mut self.there, None)?;
        self.ground = Some(ground);
        Ok(())
    }

    pub(super) fn fetch(&mut self, driver: &Driver, batch: &[Place]) -> Result<Vec<(Piece, Vec<u8>)>, Failed> {
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

    pub(super) fn send(&mut self, pieces: &[(Piece, Vec<u8>)]) -> Result<(), Failed> {
        let Some(ground) = &self.ground else { return Ok(()) };
        for (piece, bytes) in pieces {
            let (context, stream) = ground.stream(piece.device)?;
            self.there.copy(context, stream, piece.address, bytes, true)?;
            self.tags.insert((piece.address, bytes.len()), tag(&self.key, bytes)?);
        }
        Ok(())
    }

    /// Frees the buffers. Call this on a helper's thread when no kernel of the session runs.
    pub fn free_buffers(&mut self, driver: &Driver) {
        if let Some(buffers) = self.buffers.take() {
            buffers.free(driver);
        }
    }

    /// Whether the next worker has exactly these bytes for this piece.
    ///
    /// # Errors
    /// Fails if the bytes cannot be compared.
    pub fn has(&self, piece: &Piece, bytes: &[u8]) -> Result<bool, Failed> {
        let sent = self.tags.get(&(piece.address, bytes.len()));
        sent.map_or(Ok(false), |sent| Ok(tag(&self.key, bytes)?.as_ref() == sent.as_ref()))
    }
}

/// Returns a tag that identifies these bytes. Tags stay in this process, so a nonce may be used more than once.
fn tag(key: &LessSafeKey, bytes: &[u8]) -> Result<Tag, Failed> {
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    key.seal_in_place_separate_tag(nonce, Aad::from(bytes), &mut []).map_err(|_| "memory could not be compared".into())
}
