//! The store of images that the client sent. The key of an image is the hash of its bytes.

use crate::guard::defences::{Defence, stands};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

pub type Hash = [u8; 32];

struct Arriving {
    bytes: Vec<u8>,
    total: u64,
    hasher: Sha256,
}

/// A complete image. A zero byte follows the bytes of the image, because PTX is a C string. This byte is not part of
/// the image.
struct Kept {
    bytes: Arc<Vec<u8>>,
    /// The value of `ImageStore::uses` at the last use of the image.
    used: u64,
}

/// A cache that holds at most `budget` bytes of complete and incomplete images. It evicts the least recently used
/// image, which the client then sends again.
pub struct ImageStore {
    images: HashMap<Hash, Kept>,
    arriving: HashMap<Hash, Arriving>,
    bytes: u64,
    pub budget: u64,
    uses: u64,
}

impl ImageStore {
    pub fn new(budget: u64) -> Self {
        ImageStore { images: HashMap::new(), arriving: HashMap::new(), bytes: 0, budget, uses: 0 }
    }

    /// Adds a piece of an image. Returns the image if this was its last piece. Pieces must arrive in order. A piece
    /// that does not fit drops the image; loading the image then fails because the image is missing.
    pub fn add(&mut self, hash: Hash, offset: u64, total: u64, piece: &[u8]) -> Option<Arc<Vec<u8>>> {
        if self.images.contains_key(&hash) {
            return None;
        }
        if offset == 0 {
            self.drop_arriving(&hash);
            self.arriving.insert(hash, Arriving { bytes: Vec::new(), total, hasher: Sha256::new() });
        }
        let (have, expected) = self.arriving.get(&hash).map(|image| (image.bytes.len() as u64, image.total))?;
        let more = piece.len() as u64;
        if have != offset
            || expected != total
            || have + more > total
            || !self.make_room(more) && stands(Defence::ImageBudget)
        {
            self.drop_arriving(&hash);
            return None;
        }
        let image = self.arriving.get_mut(&hash)?;
        image.bytes.extend_from_slice(piece);
        image.hasher.update(piece);
        self.bytes += more;
        if have + more < total {
            return None;
        }
        let image = self.arriving.remove(&hash)?;
        self.bytes -= total;
        if Hash::from(image.hasher.finalize()) == hash { self.insert(hash, image.bytes) } else { None }
    }

    /// Adds a complete image whose hash is `hash`. Returns `None` if there is no room for it.
    pub fn insert(&mut self, hash: Hash, mut bytes: Vec<u8>) -> Option<Arc<Vec<u8>>> {
        let more = bytes.len() as u64;
        if !self.images.contains_key(&hash) {
            if !self.make_room(more) && stands(Defence::ImageBudget) {
                return None;
            }
            bytes.push(0);
            self.bytes += more;
            self.images.insert(hash, Kept { bytes: Arc::new(bytes), used: 0 });
        }
        self.get(&hash)
    }

    /// Evicts images until there is room for `more` bytes. Returns false if evicting all images is not enough.
    fn make_room(&mut self, more: u64) -> bool {
        while self.bytes + more > self.budget {
            let Some(oldest) = self.images.iter().min_by_key(|(_, kept)| kept.used).map(|(hash, _)| *hash) else {
                return false;
            };
            if let Some(kept) = self.images.remove(&oldest) {
                self.bytes -= kept.bytes.len() as u64 - 1;
            }
        }
        true
    }

    fn drop_arriving(&mut self, hash: &Hash) {
        if let Some(image) = self.arriving.remove(hash) {
            self.bytes -= image.bytes.len() as u64;
        }
    }

    pub fn get(&mut self, hash: &Hash) -> Option<Arc<Vec<u8>>> {
        self.uses += 1;
        let kept = self.images.get_mut(hash)?;
        kept.used = self.uses;
        Some(Arc::clone(&kept.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(bytes: &[u8]) -> Hash {
        Sha256::digest(bytes).into()
    }

    #[test]
    fn images_are_found_under_their_hash_only() {
        let (mut store, image) = (ImageStore::new(1 << 20), vec![7; 1000]);
        store.add(hash(&image), 0, 1000, &image[..400]);
        assert!(store.get(&hash(&image)).is_none());
        store.add(hash(&image), 400, 1000, &image[400..]);
        assert_eq!(store.get(&hash(&image)).unwrap()[..], [&image[..], &[0]].concat());
        store.add([1; 32], 0, 1000, &image);
        assert!(store.get(&[1; 32]).is_none());
        assert_eq!(store.bytes, 1000);
    }

    #[test]
    fn wrong_pieces_are_dropped() {
        let (mut store, image) = (ImageStore::new(1 << 20), vec![7; 1000]);
        let name = hash(&image);
        store.add(name, 400, 1000, &image[400..]);
        store.add(name, 0, 1000, &image[..400]);
        store.add(name, 300, 1000, &image[300..]);
        store.add(name, 0, u64::MAX, &image);
        store.add(name, 1000, 2000, &image);
        assert_eq!((store.bytes, store.images.len()), (0, 0));
        store.add(name, 0, 1000, &image);
        assert!(store.get(&name).is_some());
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let mut store = ImageStore::new(2500);
        let images: Vec<Vec<u8>> = (0..3).map(|i| vec![i; 1000]).collect();
        let add = |store: &mut ImageStore, i: usize| store.add(hash(&images[i]), 0, 1000, &images[i]);
        add(&mut store, 0);
        add(&mut store, 1);
        assert!(store.get(&hash(&images[0])).is_some());
        add(&mut store, 2);
        let there: Vec<bool> = images.iter().map(|image| store.get(&hash(image)).is_some()).collect();
        assert_eq!((there, store.bytes), (vec![true, false, true], 2000));
    }

    #[test]
    fn an_image_beyond_the_budget_is_not_taken() {
        let mut store = ImageStore::new(999);
        store.add(hash(&[7; 1000]), 0, 1000, &[7; 1000]);
        assert!(store.get(&hash(&[7; 1000])).is_none());
        assert_eq!(store.bytes, 0);
    }
}
