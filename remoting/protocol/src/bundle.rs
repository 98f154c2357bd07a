//! A bundle of several images that are loaded as one: the parts of a wrapper that the linker did not merge.
//!
//! The format is `RGPUIMGS`, a `u64` count, a `u64` length for each image, then the images, each at a multiple of 16
//! bytes.

use crate::wire::Reader;

const MAGIC: &[u8; 8] = b"RGPUIMGS";
const ALIGN: usize = 16;

/// Returns a bundle of the images. The first one is the image that was linked.
pub fn bundle_images(images: &[&[u8]]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend((images.len() as u64).to_le_bytes());
    images.iter().for_each(|image| out.extend((image.len() as u64).to_le_bytes()));
    for image in images {
        out.resize(out.len().next_multiple_of(ALIGN), 0);
        out.extend_from_slice(image);
    }
    out
}

/// Returns the images of a bundle, or `None` if the bytes are not a bundle or are truncated.
pub fn bundled_images(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut head = Reader::new(bytes.strip_prefix(MAGIC)?);
    let count = head.get::<u64>().ok()?;
    if count.checked_mul(8)? > head.remaining() as u64 {
        return None;
    }
    let mut at = MAGIC.len() + 8 + 8 * count as usize;
    let take = |_| {
        let len = usize::try_from(head.get::<u64>().ok()?).ok()?;
        let start = at.checked_next_multiple_of(ALIGN)?;
        at = start.checked_add(len)?;
        bytes.get(start..at)
    };
    (0..count).map(take).collect()
}
