//! Images of device code. They come from the program's pointer or a file, and workers identify them by their hash.

use super::JitOptions;
use crate::Code;
use crate::devices::Device;
use crate::devices::context::Live;
use crate::program::log;
use crate::session::Reply;
use driverapi::attributes::*;
use driverapi::device_bytes::device_bytes;
use driverapi::errors::*;
use driverapi::fatbin::{Executes, for_device};
use driverapi::image::{ImageError, images};
use protocol::{BULK_CHUNK, ImageChunk, Message, NEED_IMAGE, SMALL_IMAGE, bundle_images, bundled_images};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::ffi::c_void;
use std::path::Path;

/// The maximum number of times an image is sent. Images of other threads may evict it from the worker's store before it
/// is loaded.
const ATTEMPTS: usize = 3;

/// An image in the form in which the program passed it.
pub struct Image {
    bytes: Vec<u8>,
}

/// The part of an image that is sent to a worker.
pub struct Upload<'a> {
    bytes: Cow<'a, [u8]>,
    pub hash: [u8; 32],
}

impl Image {
    pub fn new(bytes: Vec<u8>) -> Self {
        Image { bytes }
    }

    /// Copies the image that the program's pointer refers to.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a null pointer, `CUDA_ERROR_INVALID_IMAGE` if there is no image.
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

    /// Reads an image from a file of the program, because the appliance cannot read this file.
    ///
    /// # Errors
    /// `CUDA_ERROR_FILE_NOT_FOUND`, `CUDA_ERROR_INVALID_IMAGE`.
    pub fn from_file(path: &Path) -> Result<Self, Code> {
        let bytes = std::fs::read(path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
        if bytes.is_empty() { Err(CUDA_ERROR_INVALID_IMAGE) } else { Ok(Image::new(bytes)) }
    }

    pub fn whole(&self) -> Upload<'_> {
        Upload::new(Cow::Borrowed(&self.bytes))
    }

    /// Returns the image without the code for other devices, unless the program's options select the code.
    pub fn for_device(&self, device: &Device, options: &JitOptions) -> Upload<'_> {
        let chosen = |(option, _): &(u32, u64)| matches!(*option, CU_JIT_TARGET | CU_JIT_FALLBACK_STRATEGY);
        if options.values.iter().any(chosen) {
            return self.whole();
        }
        let number = |attribute| u32::try_from(device.attribute(attribute)).unwrap_or(0);
        let capability = 10 * number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
            + number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        let executes = if number(PTX_ONLY) != 0 { Executes::PtxOnly } else { Executes::MachineCode };
        // An image that is not a container is sent unchanged. The driver refuses a damaged one.
        match for_device(&self.bytes, capability, executes) {
            Ok(Some(trimmed)) => Upload::new(Cow::Owned(trimmed)),
            Ok(None) | Err(_) => self.whole(),
        }
    }
}

impl<'a> Upload<'a> {
    fn new(bytes: Cow<'a, [u8]>) -> Self {
        let hash = Sha256::digest(&bytes).into();
        Upload { bytes, hash }
    }

    /// Returns the number of bytes of device memory that the loaded image takes.
    pub fn device_bytes(&self) -> u64 {
        device_bytes(bundled_images(&self.bytes).as_deref().unwrap_or(&[&self.bytes]))
    }

    fn send(&self, live: &Live) -> Result<(), Code> {
        let total = self.bytes.len() as u64;
        for (index, piece) in self.bytes.chunks(BULK_CHUNK).enumerate() {
            let chunk = ImageChunk { hash: self.hash, offset: (index * BULK_CHUNK) as u64, total };
            live.session.post_tail(0, &chunk, piece)?;
        }
        Ok(())
    }
}

/// Sends a command that names images by hash. Also sends the images if the worker does not have them.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` with a logged message if the images exceed the worker's store, or the session's sticky
/// error.
pub fn call_with_images<M: Message>(live: &Live, message: &M, uploads: &[Upload]) -> Result<Reply, Code> {
    let (bytes, budget) = (uploads.iter().map(|u| u.bytes.len() as u64).sum::<u64>(), live.session.image_bytes());
    if bytes > budget {
        return Err(too_large(bytes, budget));
    }
    let send = || uploads.iter().try_for_each(|upload| upload.send(live));
    if uploads.iter().all(|upload| upload.bytes.len() <= SMALL_IMAGE) {
        send()?;
    }
    for _ in 0..ATTEMPTS {
        let reply = live.session.call(0, message)?;
        if reply.code != NEED_IMAGE {
            return Ok(reply);
        }
        send()?;
    }
    let reply = live.session.call(0, message)?;
    if reply.code == NEED_IMAGE { Err(too_large(bytes, budget)) } else { Ok(reply) }
}

fn too_large(bytes: u64, budget: u64) -> Code {
    log::error_unless_repeated(&format!(
        "cannot load {} MiB of device code: the appliance keeps {} MiB of it for a process at a time; start it with a \
         larger --image-memory",
        bytes.div_ceil(1 << 20),
        budget >> 20
    ));
    CUDA_ERROR_OUT_OF_MEMORY
}
