//! The contents of slabs, saved in a file from the appliance. They are encrypted and authenticated with a key that only
//! this process has. Therefore nobody can read them on the disk, and changes are detected.

use crate::driver::staging::Scratch;
use crate::driver::{Code, Driver, Handle};
use crate::guard::defences::{Defence, stands};
use crate::memory::overwriting::{Filler, wait, with_filler};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use rustix::io::{pread, pwrite};
use rustix::rand::{GetRandomFlags, getrandom};
use std::os::fd::OwnedFd;

/// The number of bytes that are copied, sealed and written at a time.
pub const PIECE: usize = 4 << 20;

/// A range of mapped memory, and the context and stream that copy it.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub address: u64,
    pub size: u64,
    pub device: u32,
    pub filler: Option<Filler>,
}

/// A part of a slab, and its position in the file.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    number: usize,
    pub address: u64,
    len: usize,
    at: u64,
    pub device: u32,
}

/// Splits places into pieces, device by device, in the order in which they are copied. A piece has the same number when
/// it is saved and restored.
fn pieces(places: &[Place]) -> Vec<Piece> {
    let mut places = places.to_vec();
    places.sort_by_key(|place| place.device);
    let mut all = Vec::new();
    let mut at = 0;
    for place in places {
        for from in (0..place.size).step_by(PIECE) {
            let len = (place.size - from).min(PIECE as u64) as usize;
            all.push(Piece { number: all.len(), address: place.address + from, len, at, device: place.device });
            at += len as u64;
        }
    }
    all
}

/// The reason why something was not saved or restored: a sentence for a person.
pub type Failed = String;

fn driver_says(code: Code) -> Failed {
    format!("the driver answered CUDA error {code}")
}

/// Returns a new random key.
///
/// # Errors
/// Fails if the system has no random bytes.
pub fn random_key() -> Result<LessSafeKey, Failed> {
    let mut bytes = [0; 32];
    let got = getrandom(&mut bytes[..], GetRandomFlags::empty());
    if got != Ok(bytes.len()) {
        return Err("the system has no random bytes for a key".into());
    }
    let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| "the system makes no key")?;
    Ok(LessSafeKey::new(key))
}

pub struct Image {
    file: OwnedFd,
    key: LessSafeKey,
    /// The authentication tags, one for each piece. A tag proves that the bytes of its piece are unchanged and at their
    /// position.
    tags: Vec<Tag>,
}

impl Image {
    /// Creates an image in a file, which has room for all contents.
    ///
    /// # Errors
    /// Fails if the system has no random bytes.
    pub fn new(file: OwnedFd) -> Result<Image, Failed> {
        Ok(Image { file, key: random_key()?, tags: Vec::new() })
    }

    /// Saves the contents of these places. The contents must not change meanwhile.
    ///
    /// # Errors
    /// Fails if the driver cannot copy them, or the file cannot be written. The places are unchanged.
    pub fn save(&mut self, driver: &Driver, places: &[Place]) -> Result<(), Failed> {
        read(driver, places, |piece, bytes| {
            let open = (!stands(Defence::ImageKey)).then(|| bytes.to_vec());
            let sealed = self.key.seal_in_place_separate_tag(nonce(piece), Aad::empty(), bytes);
            self.tags.push(sealed.map_err(|_| "the image could not be sealed")?);
            self.write(open.as_deref().unwrap_or(bytes), piece.at)
        })
    }

    /// Restores the contents of the same places, in the same order.
    ///
    /// # Errors
    /// Fails if the file cannot be read or was changed, or if the driver cannot copy the contents.
    pub fn restore(&self, driver: &Driver, places: &[Place]) -> Result<(), Failed> {
        copying(driver, places, |stream, pair, here| self.restore_all(driver, stream, pair, here))
    }

    /// Calls `take` with all saved contents of these places, in pieces, as [`read`] does.
    ///
    /// # Errors
    /// Fails if the file cannot be read or was changed. Otherwise, the errors of `take`.
    pub fn for_each(
        &self,
        places: &[Place],
        mut take: impl FnMut(&Piece, &mut [u8]) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let mut buffer = vec![0; PIECE];
        pieces(places).iter().try_for_each(|piece| {
            let bytes = &mut buffer[..piece.len];
            self.read(bytes, piece)?;
            take(piece, bytes)
        })
    }

    /// Reads and decrypts one buffer while the driver copies from the other one.
    fn restore_all(
        &self,
        driver: &Driver,
        stream: Handle,
        pair: &mut [Scratch; 2],
        all: &[Piece],
    ) -> Result<(), Failed> {
        for (index, piece) in all.iter().enumerate() {
            let buffer = &mut pair[index % 2];
            self.read(buffer.bytes(piece.len), piece)?;
            wait(driver, stream)
                .and_then(|()| driver.copy_to_device(piece.address, buffer.handle(), piece.len, stream))
                .map_err(driver_says)?;
        }
        wait(driver, stream).map_err(driver_says)
    }

    fn write(&self, mut bytes: &[u8], mut at: u64) -> Result<(), Failed> {
        while !bytes.is_empty() {
            let count = pwrite(&self.file, bytes, at).map_err(|e| format!("the image cannot be written: {e}"))?;
            (bytes, at) = (&bytes[count..], at + count as u64);
        }
        Ok(())
    }

    fn read(&self, bytes: &mut [u8], piece: &Piece) -> Result<(), Failed> {
        let damaged = || format!("the image is damaged at byte {}", piece.at);
        let mut filled = 0;
        while filled < bytes.len() {
            let count = pread(&self.file, &mut bytes[filled..], piece.at + filled as u64);
            match count.map_err(|e| format!("the image cannot be read: {e}"))? {
                0 => return Err(damaged()),
                count => filled += count,
            }
        }
        let tag = *self.tags.get(piece.number).ok_or_else(damaged)?;
        let opened = self.key.open_in_place_separate_tag(nonce(piece), Aad::empty(), tag, bytes, 0..);
        opened.map(drop).map_err(|_| damaged())
    }
}

/// Calls `take` with the contents of these places, in pieces. The contents must not change meanwhile.
///
/// # Errors
/// Fails if the driver cannot copy them. Otherwise, the errors of `take`.
pub fn read(
    driver: &Driver,
    places: &[Place],
    mut take: impl FnMut(&Piece, &mut [u8]) -> Result<(), Failed>,
) -> Result<(), Failed> {
    copying(driver, places, |stream, pair, all| read_all(driver, stream, pair, all, &mut take))
}

/// Like [`read`], with two buffers of the caller and the session's streams. Leaves out memory that none of the
/// session's contexts can copy.
///
/// # Errors
/// Fails if the driver cannot copy the memory. Otherwise, the errors of `take`.
pub fn read_with(
    driver: &Driver,
    pair: &mut [Scratch; 2],
    places: &[Place],
    mut take: impl FnMut(&Piece, &mut [u8]) -> Result<(), Failed>,
) -> Result<(), Failed> {
    places.iter().try_for_each(|place| {
        let Some(Filler { context, stream }) = place.filler else { return Ok(()) };
        driver.set_current(context).map_err(driver_says)?;
        let done = read_all(driver, stream, pair, &pieces(&[*place]), &mut take);
        let idle = wait(driver, stream).map_err(driver_says);
        done.and(idle)
    })
}

/// Lets the driver fill one buffer while `take` uses the other one.
fn read_all(
    driver: &Driver,
    stream: Handle,
    pair: &mut [Scratch; 2],
    all: &[Piece],
    take: &mut impl FnMut(&Piece, &mut [u8]) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let fetch = |index: usize, pair: &[Scratch; 2]| match all.get(index) {
        Some(piece) => driver.copy_to_host(pair[index % 2].handle(), piece.address, piece.len, stream),
        None => Ok(()),
    };
    fetch(0, pair).map_err(driver_says)?;
    for (index, piece) in all.iter().enumerate() {
        wait(driver, stream).and_then(|()| fetch(index + 1, pair)).map_err(driver_says)?;
        take(piece, pair[index % 2].bytes(piece.len))?;
    }
    Ok(())
}

/// Returns the nonce of a piece. It is unique, because each key seals one image, and each piece of an image has another
/// number.
fn nonce(piece: &Piece) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&(piece.number as u64).to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Runs `job` for each device, with a stream of the device, two buffers, and the device's pieces. Then waits for the
/// stream, also if `job` failed, before the buffers are freed. Stops at the first error.
fn copying(
    driver: &Driver,
    places: &[Place],
    mut job: impl FnMut(Handle, &mut [Scratch; 2], &[Piece]) -> Result<(), Failed>,
) -> Result<(), Failed> {
    pieces(places).chunk_by(|one, next| one.device == next.device).try_for_each(|here| {
        let device = here[0].device;
        let filler = places.iter().filter(|place| place.device == device).find_map(|place| place.filler);
        with_filler(driver, device, filler, |filler| {
            let mut pair = [Scratch::new(driver, PIECE)?, Scratch::new(driver, PIECE)?];
            let done = job(filler.stream, &mut pair, here);
            let idle = wait(driver, filler.stream);
            pair.into_iter().try_for_each(|scratch| scratch.free(driver))?;
            Ok(done.and(idle.map_err(driver_says)))
        })
        .unwrap_or_else(|code| Err(driver_says(code)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_numbered_in_the_order_in_which_devices_are_copied() {
        let place = |address, device| Place { address, size: PIECE as u64 + 1, device, filler: None };
        let all = pieces(&[place(1 << 40, 1), place(2 << 40, 0), place(3 << 40, 1)]);
        assert_eq!(all.iter().map(|piece| piece.device).collect::<Vec<_>>(), [0, 0, 1, 1, 1, 1]);
        assert!(all.iter().enumerate().all(|(at, piece)| piece.number == at));
        assert!(all.windows(2).all(|two| two[0].at + two[0].len as u64 == two[1].at));
    }
}
