//! Parses the image argument of a load call: a pointer without a length to PTX text, a fat binary, its wrapper or a
//! cubin. The unsafe part only finds the end of an image; all other code works on its bytes.

use crate::errors::CUDA_ERROR_INVALID_IMAGE;
use crate::fatbin::{self, Entry, MAX_IMAGE};
use crate::types::CUresult;
use std::ffi::{CStr, c_char, c_void};
use std::slice;

/// The first word of the structure that compilers put around a fat binary.
const WRAPPER_MAGIC: u32 = 0x4662_43b1;
const ELF_MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");
const ARCHIVE_MAGIC: &[u8] = b"!<arch>\n";
/// The ELF machine number of NVIDIA's device code.
const ELF_MACHINE_CUDA: u16 = 190;
const ELF_HEADER: usize = 64;
const ELF_SEGMENT: usize = 56;
const ELF_SECTION: usize = 64;
const ELF_NO_BITS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageError {
    /// The bytes have no known format.
    NotAnImage,
    Truncated,
    /// A size above `MAX_IMAGE`.
    TooLarge,
    Corrupt,
}

impl ImageError {
    pub fn code(self) -> CUresult {
        CUDA_ERROR_INVALID_IMAGE
    }
}

impl std::fmt::Display for ImageError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::NotAnImage => "neither PTX, nor a fat binary, nor a cubin",
            Self::Truncated => "the image ends too early",
            Self::TooLarge => "the image claims an impossible size",
            Self::Corrupt => "the image is damaged",
        })
    }
}

impl std::error::Error for ImageError {}

/// An image with a known length.
#[derive(Clone, Debug)]
pub enum Image<'a> {
    /// PTX text without trailing NULs.
    Ptx(&'a [u8]),
    /// Machine code for one architecture.
    Cubin(&'a [u8]),
    Fatbin(Vec<Entry<'a>>),
    /// A library of device code for the linker.
    Archive(&'a [u8]),
}

/// Determines the format of an image, and lists the entries of a fat binary.
pub fn parse(bytes: &[u8]) -> Result<Image<'_>, ImageError> {
    let Some(magic) = bytes.first_chunk().map(|word| u32::from_le_bytes(*word)) else {
        return Err(ImageError::Truncated);
    };
    match magic {
        fatbin::MAGIC => fatbin::entries(bytes).map(Image::Fatbin),
        ELF_MAGIC if bytes.get(18..20) == Some(&ELF_MACHINE_CUDA.to_le_bytes()) => Ok(Image::Cubin(bytes)),
        _ if bytes.starts_with(ARCHIVE_MAGIC) => Ok(Image::Archive(bytes)),
        _ if starts_like_text(bytes[0]) => {
            let length = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            Ok(Image::Ptx(&bytes[..length]))
        }
        _ => Err(ImageError::NotAnImage),
    }
}

/// Whether a byte may begin PTX: white space, a comment or a directive.
fn starts_like_text(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == b'/' || byte == b'.'
}

/// The structure around a fat binary in a program's data section.
#[repr(C)]
#[derive(Clone, Copy)]
struct Wrapper {
    magic: u32,
    version: u32,
    container: *const c_void,
    /// In version 2 a null-terminated list of containers that were linked earlier. It may include `container`.
    linked: *const *const c_void,
}

/// Returns the images behind a pointer that a program passed: one, or several for code that was linked earlier. Each
/// slice is a complete image; that of PTX includes its NUL.
///
/// # Safety
/// `image` is null or points to an image that stays valid for `'a`.
pub unsafe fn images<'a>(image: *const c_void) -> Result<Vec<&'a [u8]>, ImageError> {
    // SAFETY: the caller guarantees the image; the pointers in a wrapper are as valid as the wrapper.
    unsafe {
        if first_word(image) != Some(WRAPPER_MAGIC) {
            return Ok(vec![image_bytes(image)?]);
        }
        let wrapper = image.cast::<Wrapper>().read_unaligned();
        let mut containers = vec![wrapper.container];
        if wrapper.version == 2 && !wrapper.linked.is_null() {
            let mut list = wrapper.linked;
            while !list.read_unaligned().is_null() {
                let next = list.read_unaligned();
                if !containers.contains(&next) {
                    containers.push(next);
                }
                list = list.add(1);
            }
        }
        containers.into_iter().map(|container| image_bytes(container)).collect()
    }
}

/// Returns the bytes of an image that is not a wrapper.
///
/// # Safety
/// The same as for `images`.
unsafe fn image_bytes<'a>(image: *const c_void) -> Result<&'a [u8], ImageError> {
    // SAFETY: the caller guarantees the image, and the length is the image's.
    unsafe { Ok(slice::from_raw_parts(image.cast(), image_length(image)?)) }
}

/// Returns the length of an image that is not a wrapper. The length of PTX includes its NUL.
///
/// # Safety
/// `image` is null or points to an image.
pub unsafe fn image_length(image: *const c_void) -> Result<usize, ImageError> {
    // SAFETY: each header is read only after its magic number matched, and text ends with NUL.
    unsafe {
        match first_word(image) {
            Some(fatbin::MAGIC) => fatbin::container_length(&image.cast::<[u8; 16]>().read_unaligned()),
            Some(ELF_MAGIC) => {
                elf_length(|offset, length| slice::from_raw_parts(image.cast::<u8>().add(offset), length))
            }
            _ if !image.is_null() && starts_like_text(*image.cast()) => {
                Ok(CStr::from_ptr(image.cast::<c_char>()).count_bytes() + 1)
            }
            _ => Err(ImageError::NotAnImage),
        }
    }
}

/// Returns the first four bytes, or `None` if one of them is NUL. A short text may end early; no magic number contains
/// a NUL.
///
/// # Safety
/// `image` is null or points to an image.
unsafe fn first_word(image: *const c_void) -> Option<u32> {
    if image.is_null() {
        return None;
    }
    let mut word = [0; 4];
    for (index, byte) in word.iter_mut().enumerate() {
        // SAFETY: none of the earlier bytes was a NUL, so the text has not ended.
        *byte = unsafe { *image.cast::<u8>().add(index) };
        if *byte == 0 {
            return None;
        }
    }
    Some(u32::from_le_bytes(word))
}

/// Returns the length of a 64-bit ELF file: the end of its header tables and of all parts that they list. `read`
/// returns bytes of the file by offset and length; it is called only for the header and the tables.
fn elf_length<'a>(read: impl Fn(usize, usize) -> &'a [u8]) -> Result<usize, ImageError> {
    let word = |bytes: &[u8], at: usize| bytes[at..at + 8].iter().rev().fold(0, |sum, &byte| sum << 8 | byte as usize);
    let half = |bytes: &[u8], at: usize| usize::from(bytes[at]) | usize::from(bytes[at + 1]) << 8;
    let header = read(0, ELF_HEADER);
    let (segments, sections) = (word(header, 0x20), word(header, 0x28));
    let (segment_count, mut section_count) = (half(header, 0x38), half(header, 0x3c));
    if segments.max(sections) > MAX_IMAGE {
        return Err(ImageError::TooLarge);
    }
    if sections != 0 && section_count == 0 {
        // The count does not fit in the header: the first section has it.
        section_count = word(read(sections, ELF_SECTION), 0x20);
    }
    if section_count > MAX_IMAGE / ELF_SECTION {
        return Err(ImageError::TooLarge);
    }
    let tables = [segments + segment_count * ELF_SEGMENT, sections + section_count * ELF_SECTION];
    let segment_ends = (0..segment_count).map(|index| {
        let segment = read(segments + index * ELF_SEGMENT, ELF_SEGMENT);
        word(segment, 0x08).saturating_add(word(segment, 0x20))
    });
    let section_ends = (0..section_count).map(|index| {
        let section = read(sections + index * ELF_SECTION, ELF_SECTION);
        let in_file = half(section, 0x04) != ELF_NO_BITS && index != 0;
        if in_file { word(section, 0x18).saturating_add(word(section, 0x20)) } else { 0 }
    });
    let end = tables.into_iter().chain(segment_ends).chain(section_ends).fold(ELF_HEADER, usize::max);
    if end > MAX_IMAGE { Err(ImageError::TooLarge) } else { Ok(end) }
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
