//! Device code that the appliance keeps for later sessions of the same tenant. The appliance reads an offered image
//! from a pipe into its own memory, so that it keeps no memory of this session. It passes a stored image to a worker in
//! a sealed file. The worker does not trust the file and checks the hash of the image.

use crate::code::images::Hash;
use crate::driver::Result;
use crate::session::commands::Session;
use protocol::{ImageChunk, ModuleLoad, SMALL_IMAGE};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::pipe::{PipeFlags, pipe_with};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

/// The seals of a file that can no longer be changed.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::SEAL);
/// Limit on images that are being sent to the appliance at the same time. Each of them occupies a helper thread.
const MOST_OFFERS: usize = 16;

/// Reads an image from a file. Returns `None` if the image does not have this hash or has more than `most` bytes.
fn read(file: OwnedFd, hash: &Hash, most: u64) -> Option<Vec<u8>> {
    let size = u64::try_from(fstat(&file).ok()?.st_size).ok()?;
    if size > most || !fcntl_get_seals(&file).ok()?.contains(SEALS) {
        return None;
    }
    // All processes that have the file open share its position, so this reads at explicit offsets.
    let mut image = vec![0; usize::try_from(size).ok()?];
    std::os::unix::fs::FileExt::read_exact_at(&File::from(file), &mut image, 0).ok()?;
    (Hash::from(Sha256::digest(&image)) == *hash).then_some(image)
}

impl Session {
    pub fn image_chunk(&mut self, c: &ImageChunk, piece: &[u8]) {
        let Some(image) = self.images.add(c.hash, c.offset, c.total, piece) else { return };
        let (size, hash) = (image.len() - 1, c.hash);
        if size <= SMALL_IMAGE || size as u64 > self.budgets.shared_code_bytes || self.offers >= MOST_OFFERS {
            return;
        }
        let Ok((theirs, ours)) = pipe_with(PipeFlags::CLOEXEC) else { return };
        self.requests.offer(&hash, size, theirs);
        self.offers += 1;
        self.helpers.start(
            // The appliance closes its end of the pipe if it does not want the image.
            move |_| File::from(ours).write_all(&image[..size]),
            |session: &mut Session, _| session.offers -= 1,
        );
    }

    /// Loads a module. If the session does not have the image, requests it from the appliance, which may keep it from
    /// an earlier session of the tenant.
    pub fn module_load(&mut self, seq: u64, c: &ModuleLoad) -> Result<()> {
        let is_asked = self.budgets.shared_code_bytes != 0
            && self.images.get(&c.hash).is_none()
            && self.requests.shared_code(seq, c.clone());
        if is_asked { Ok(()) } else { self.load_module(seq, c) }
    }

    /// Handles the appliance's answer to a request for an image: a file with the image, or `None`.
    pub fn shared_code(&mut self, id: u64, file: Option<OwnedFd>) {
        let Some((seq, load)) = self.requests.shared_code_asked(id) else { return };
        let (hash, most) = (load.hash, self.budgets.shared_code_bytes.min(self.images.budget));
        self.helpers.start(
            move |_| file.and_then(|file| read(file, &hash, most)),
            move |session: &mut Session, image| {
                if let Some(image) = image {
                    session.images.insert(hash, image);
                }
                if let Err(code) = session.load_module(seq, &load) {
                    session.reply_logged(seq, code, String::new());
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    fn hash(bytes: &[u8]) -> Hash {
        Sha256::digest(bytes).into()
    }

    fn file(image: &[u8], seals: SealFlags) -> OwnedFd {
        let mut file = File::from(memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all(image).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file.into()
    }

    #[test]
    fn what_was_sealed_is_read_by_everybody_and_changed_by_nobody() {
        let image = vec![7; 100_000];
        let file = file(&image, SEALS);
        for _ in 0..2 {
            assert_eq!(read(file.try_clone().unwrap(), &hash(&image), 100_000), Some(image.clone()));
        }
        assert!(ftruncate(&file, 0).is_err());
        assert!(File::from(file).write_all(&[1]).is_err());
    }

    #[test]
    fn what_is_not_the_image_is_none() {
        let image = vec![7; 1000];
        assert_eq!(read(file(&image, SEALS), &hash(&image), 999), None, "too large");
        assert_eq!(read(file(&image, SEALS), &hash(b"another"), 1000), None);
        let open = file(&image, SealFlags::empty());
        assert_eq!(read(open, &hash(&image), 1000), None, "it could be changed while it is read");
        let null = File::open("/dev/null").unwrap();
        assert_eq!(read(null.into(), &hash(&[]), 1000), None);
    }
}
