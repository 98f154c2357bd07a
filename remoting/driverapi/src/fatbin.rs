//! Fat binaries: containers of device images (PTX and machine code) for several architectures, mostly compressed.
//!
//! The layout was measured on files of CUDA 12.9 to 13.5. It agrees with n-eiling/cuda-fatbin-decompression and ZLUDA's
//! `cuda_types/src/dark_api.rs`, which both lack concatenated groups (kind 256).
//!
//! A container is a 16-byte header and entries. An entry is a header of 64 bytes or more (strings follow it) and a
//! padded payload. In a group, smaller entry headers follow the 64 bytes and all payloads are compressed as one.

use crate::image::ImageError;
use std::borrow::Cow;
use std::io::Read;

pub const MAGIC: u32 = 0xba55_ed50;
const CONTAINER_HEADER: usize = 16;
const ENTRY_HEADER: usize = 64;
/// The size of the fields before a group's entry headers: the number of headers and their size in bytes.
const GROUP_HEADER: usize = 8;
const GROUP: u16 = 256;

const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
const FLAG_ARCHITECTURE_SPECIFIC: u64 = 0x10_0000;
const FLAG_FAMILY_SPECIFIC: u64 = 0x20_0000;

/// The limit for an image's size. The largest known image has 25 MB; a larger size means a damaged or hostile header.
pub const MAX_IMAGE: usize = 1 << 30;
/// The highest compression ratio of LZ4.
const MAX_LZ4_RATIO: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ptx,
    /// Machine code for one architecture (a cubin).
    Elf,
    LtoIr,
    Other(u16),
}

/// The suffix of architecture names like `sm_90a` and `sm_120f`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suffix {
    None,
    /// `a`: for this architecture only.
    Architecture,
    /// `f`: for this and later members of its family.
    Family,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Lz4,
    Zstd,
}

/// The bytes of an image or group as they are stored, and their size after decompression.
#[derive(Clone, Copy, Debug)]
struct Stored<'a> {
    bytes: &'a [u8],
    compression: Compression,
    size: usize,
}

/// One image of a fat binary.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub kind: Kind,
    /// The compute capability: 75, 90, 120, ...
    pub arch: u32,
    pub suffix: Suffix,
    /// The version of the PTX language, or of the cubin format.
    pub version: (u16, u16),
    stored: Stored<'a>,
    /// The offset of the image in the decompressed bytes.
    offset: usize,
    size: usize,
}

impl<'a> Entry<'a> {
    /// Returns the image, decompressed if necessary. PTX is returned without trailing NULs.
    pub fn data(&self) -> Result<Cow<'a, [u8]>, ImageError> {
        let end = self.offset.checked_add(self.size).ok_or(ImageError::Truncated)?;
        let mut image = match self.stored.decompress()? {
            Cow::Borrowed(bytes) => Cow::Borrowed(bytes.get(self.offset..end).ok_or(ImageError::Truncated)?),
            Cow::Owned(bytes) if end > bytes.len() => return Err(ImageError::Truncated),
            Cow::Owned(bytes) if end - self.offset == bytes.len() => Cow::Owned(bytes),
            Cow::Owned(bytes) => Cow::Owned(bytes[self.offset..end].to_vec()),
        };
        if self.kind == Kind::Ptx {
            let length = image.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            match &mut image {
                Cow::Borrowed(bytes) => *bytes = &bytes[..length],
                Cow::Owned(bytes) => bytes.truncate(length),
            }
        }
        Ok(image)
    }

    /// Whether a device of this compute capability (90 for 9.0) may use the entry.
    pub fn runs_on(&self, capability: u32) -> bool {
        let same_major = self.arch / 10 == capability / 10;
        match (self.suffix, self.kind) {
            (Suffix::Architecture, _) => self.arch == capability,
            (Suffix::Family, _) | (Suffix::None, Kind::Elf) => same_major && self.arch <= capability,
            (Suffix::None, _) => self.arch <= capability,
        }
    }
}

/// The kind of code that a driver executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executes {
    /// A real GPU: its driver compiles PTX if no machine code fits.
    MachineCode,
    /// The software GPU.
    PtxOnly,
}

/// Returns a container with only the images that a device's driver would use (`capability` is 90 for 9.0): all images
/// of the newest architecture whose machine code fits, or else the PTX. `None` if the driver would use all images, or
/// none.
///
/// # Errors
/// The errors of [`entries`].
pub fn for_device(container: &[u8], capability: u32, executes: Executes) -> Result<Option<Vec<u8>>, ImageError> {
    let records = records(container)?;
    let all = || records.iter().flat_map(|record| &record.entries);
    let machine_code = |entry: &&Entry| entry.kind == Kind::Elf && entry.runs_on(capability);
    let newest = match executes {
        Executes::MachineCode => all().filter(machine_code).map(|entry| entry.arch).max(),
        Executes::PtxOnly => None,
    };
    let used = |entry: &Entry| match newest {
        Some(arch) => entry.arch == arch && machine_code(&entry),
        None => entry.kind == Kind::Ptx,
    };
    let kept = || records.iter().filter(|record| record.entries.iter().any(used));
    let (bytes, count) = (kept().map(|record| record.bytes.len()).sum::<usize>(), kept().count());
    if count == 0 || count == records.len() {
        return Ok(None);
    }
    let mut trimmed = container.get(..u16_at(container, 6)? as usize).ok_or(ImageError::Truncated)?.to_vec();
    trimmed[8..CONTAINER_HEADER].copy_from_slice(&(bytes as u64).to_le_bytes());
    kept().for_each(|record| trimmed.extend_from_slice(record.bytes));
    Ok(Some(trimmed))
}

/// Returns the length of the container that starts with these 16 bytes.
pub(crate) fn container_length(header: &[u8; CONTAINER_HEADER]) -> Result<usize, ImageError> {
    let header_size = u16_at(header, 6)? as usize;
    let entries = size_at(header, 8)?;
    if header_size < CONTAINER_HEADER || entries > MAX_IMAGE {
        return Err(ImageError::Corrupt);
    }
    Ok(header_size + entries)
}

/// A part of a container that is stored as a unit: an image, or a group of images that are compressed together.
struct Record<'a> {
    bytes: &'a [u8],
    entries: Vec<Entry<'a>>,
}

/// Lists the images of a container, without decompressing them.
pub fn entries(container: &[u8]) -> Result<Vec<Entry<'_>>, ImageError> {
    Ok(records(container)?.into_iter().flat_map(|record| record.entries).collect())
}

fn records(container: &[u8]) -> Result<Vec<Record<'_>>, ImageError> {
    let header = container.first_chunk().ok_or(ImageError::Truncated)?;
    if u32_at(header, 0)? != MAGIC {
        return Err(ImageError::NotAnImage);
    }
    let end = container_length(header)?;
    let mut rest = container.get(u16_at(header, 6)? as usize..end).ok_or(ImageError::Truncated)?;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let header_size = u32_at(rest, 4)? as usize;
        let padded = size_at(rest, 8)?;
        let next = header_size.checked_add(padded).ok_or(ImageError::Corrupt)?;
        if header_size < ENTRY_HEADER || next > rest.len() {
            return Err(ImageError::Truncated);
        }
        let (bytes, tail) = rest.split_at(next);
        let (header, payload) = bytes.split_at(header_size);
        let stored = Stored::new(header, payload)?;
        let mut entries = Vec::new();
        if u16_at(header, 0)? == GROUP {
            read_group(header, stored, &mut entries)?;
        } else {
            entries.push(Entry::new(header, stored, 0, stored.size)?);
        }
        found.push(Record { bytes, entries });
        rest = tail;
    }
    Ok(found)
}

impl<'a> Stored<'a> {
    fn new(header: &[u8], payload: &'a [u8]) -> Result<Self, ImageError> {
        let compression = match u64_at(header, 40)? & (FLAG_LZ4 | FLAG_ZSTD) {
            0 => Compression::None,
            FLAG_LZ4 => Compression::Lz4,
            FLAG_ZSTD => Compression::Zstd,
            _ => return Err(ImageError::Corrupt),
        };
        if compression == Compression::None {
            return Ok(Self { bytes: payload, compression, size: payload.len() });
        }
        let bytes = payload.get(..u32_at(header, 16)? as usize).ok_or(ImageError::Truncated)?;
        Ok(Self { bytes, compression, size: size_at(header, 56)? })
    }

    fn decompress(&self) -> Result<Cow<'a, [u8]>, ImageError> {
        if self.size > MAX_IMAGE {
            return Err(ImageError::TooLarge);
        }
        match self.compression {
            Compression::None => Ok(Cow::Borrowed(self.bytes)),
            Compression::Lz4 => {
                // This check precedes the allocation, so that a small file cannot allocate much memory.
                if self.size / MAX_LZ4_RATIO > self.bytes.len() {
                    return Err(ImageError::Corrupt);
                }
                let mut image = vec![0; self.size];
                let length = lz4_flex::block::decompress_into(self.bytes, &mut image);
                if length.is_ok_and(|length| length == self.size) { Ok(image.into()) } else { Err(ImageError::Corrupt) }
            }
            Compression::Zstd => {
                let decoder = ruzstd::decoding::StreamingDecoder::new(self.bytes).map_err(|_| ImageError::Corrupt)?;
                let mut image = Vec::new();
                // Read one byte more than the size, to detect a payload that is too long.
                let read = decoder.take(self.size as u64 + 1).read_to_end(&mut image);
                if read.is_ok_and(|length| length == self.size) { Ok(image.into()) } else { Err(ImageError::Corrupt) }
            }
        }
    }
}

impl<'a> Entry<'a> {
    fn new(header: &[u8], stored: Stored<'a>, offset: usize, size: usize) -> Result<Self, ImageError> {
        let flags = u64_at(header, 40)?;
        Ok(Self {
            kind: match u16_at(header, 0)? {
                1 => Kind::Ptx,
                2 => Kind::Elf,
                8 => Kind::LtoIr,
                other => Kind::Other(other),
            },
            arch: u32_at(header, 28)?,
            suffix: match flags & (FLAG_ARCHITECTURE_SPECIFIC | FLAG_FAMILY_SPECIFIC) {
                0 => Suffix::None,
                FLAG_FAMILY_SPECIFIC => Suffix::Family,
                _ => Suffix::Architecture,
            },
            version: (u16_at(header, 26)?, u16_at(header, 24)?),
            stored,
            offset,
            size,
        })
    }
}

/// Reads the entries of a group. Their headers have the image's offset in the place of the header's size.
fn read_group<'a>(header: &[u8], stored: Stored<'a>, found: &mut Vec<Entry<'a>>) -> Result<(), ImageError> {
    let count = u32_at(header, ENTRY_HEADER)? as usize;
    let mut rest = header.get(ENTRY_HEADER + GROUP_HEADER..).ok_or(ImageError::Truncated)?;
    for _ in 0..count {
        let length = group_entry_length(rest)?;
        let entry = rest.get(..length).ok_or(ImageError::Truncated)?;
        found.push(Entry::new(entry, stored, u32_at(entry, 4)? as usize, size_at(entry, 8)?)?);
        rest = &rest[length..];
    }
    Ok(())
}

/// Returns the length of an entry header in a group. It ends with its strings, each with a NUL: a name, then the
/// compiler's options.
fn group_entry_length(header: &[u8]) -> Result<usize, ImageError> {
    let options = u32_at(header, 20)? as usize;
    let record = if options == 0 { 32 } else { options };
    let (text, length) = (u32_at(header, record)? as usize, u32_at(header, record.saturating_add(4))? as usize);
    if text == 0 {
        return Ok(ENTRY_HEADER);
    }
    let end = (text + length + 1).next_multiple_of(8);
    if end < ENTRY_HEADER { Err(ImageError::Corrupt) } else { Ok(end) }
}

fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], ImageError> {
    let found = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or(ImageError::Truncated)
}

fn u16_at(bytes: &[u8], offset: usize) -> Result<u16, ImageError> {
    bytes_at(bytes, offset).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], offset: usize) -> Result<u32, ImageError> {
    bytes_at(bytes, offset).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], offset: usize) -> Result<u64, ImageError> {
    bytes_at(bytes, offset).map(u64::from_le_bytes)
}

/// Reads a size and refuses one above `MAX_IMAGE`.
fn size_at(bytes: &[u8], offset: usize) -> Result<usize, ImageError> {
    usize::try_from(u64_at(bytes, offset)?).ok().filter(|&size| size <= MAX_IMAGE).ok_or(ImageError::TooLarge)
}
