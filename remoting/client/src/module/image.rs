//! Images of device code: found behind the program's pointer or read from its files, known to workers by their hash.

use crate::call::Code;
use crate::context::Live;
use crate::session::Reply;
use driverapi::errors::*;
use driverapi::image::{ImageError, images};
use protocol::{BULK_CHUNK, ImageChunk, Message, NEED_IMAGE, bundle_images};
use sha2::{Digest, Sha256};
use std::ffi::c_void;
use std::path::Path;

/// Images up to this size are sent along unasked: that costs less than a second round trip.
const SENT_UNASKED: usize = 32 << 10;

pub struct Image {
    pub bytes: Vec<u8>,
    pub hash: [u8; 32],
}

impl Image {
    pub fn new(bytes: Vec<u8>) -> Self {
        let hash = Sha256::digest(&bytes).into();
        Image { bytes, hash }
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a null pointer, `CUDA_ERROR_INVALID_IMAGE` for what is no image.
    ///
    /// # Safety
    /// `pointer` is null or points to an image.
    pub unsafe fn from_pointer(pointer: *const c_void) -> Result<Self, Code> {
        if pointer.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: as the caller vouches.
        let found = unsafe { images(pointer) }.map_err(ImageError::code)?;
        Ok(Image::new(match found[..] {
            [only] => only.to_vec(),
            _ => bundle_images(&found),
        }))
    }

    /// Reads a file of the program: the appliance does not see its files.
    ///
    /// # Errors
    /// `CUDA_ERROR_FILE_NOT_FOUND`, `CUDA_ERROR_INVALID_IMAGE`.
    pub fn from_file(path: &Path) -> Result<Self, Code> {
        let bytes = std::fs::read(path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
        if bytes.is_empty() { Err(CUDA_ERROR_INVALID_IMAGE) } else { Ok(Image::new(bytes)) }
    }

    pub fn send(&self, live: &Live) -> Result<(), Code> {
        let total = self.bytes.len() as u64;
        for (index, piece) in self.bytes.chunks(BULK_CHUNK).enumerate() {
            let chunk = ImageChunk { hash: self.hash, offset: (index * BULK_CHUNK) as u64, total };
            live.session.post_tail(0, &chunk, piece)?;
        }
        Ok(())
    }
}

/// Sends a command that names images by hash, and the images if the worker has not got them.
///
/// # Errors
/// The session's sticky error.
pub fn call_with_images<'a, M: Message>(
    live: &Live,
    message: &M,
    images: impl Iterator<Item = &'a Image> + Clone,
) -> Result<Reply, Code> {
    let unasked = images.clone().all(|image| image.bytes.len() <= SENT_UNASKED);
    if unasked {
        images.clone().try_for_each(|image| image.send(live))?;
    }
    let reply = live.session.call(0, message)?;
    if reply.code != NEED_IMAGE {
        return Ok(reply);
    }
    images.clone().try_for_each(|image| image.send(live))?;
    let reply = live.session.call(0, message)?;
    Ok(Reply { code: if reply.code == NEED_IMAGE { CUDA_ERROR_UNKNOWN } else { reply.code }, ..reply })
}
