//! Descriptions of arrays, textures and surfaces. Formats and limits follow the manual of the driver API
//! (<https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html>, `cuArray3DCreate`, and
//! `group__CUDA__TEXOBJECT`).

#![allow(non_snake_case)]

use crate::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use crate::types::{CUDA_ARRAY3D_DESCRIPTOR, CUresult};

pub const CUDA_ARRAY3D_LAYERED: u32 = 1;
pub const CUDA_ARRAY3D_SURFACE_LDST: u32 = 2;
pub const CUDA_ARRAY3D_CUBEMAP: u32 = 4;
pub const CUDA_ARRAY3D_TEXTURE_GATHER: u32 = 8;

pub const CU_RESOURCE_TYPE_ARRAY: u32 = 0;
pub const CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: u32 = 1;
pub const CU_RESOURCE_TYPE_LINEAR: u32 = 2;
pub const CU_RESOURCE_TYPE_PITCH2D: u32 = 3;

pub const CU_TRSF_READ_AS_INTEGER: u32 = 1;
pub const CU_TRSF_NORMALIZED_COORDINATES: u32 = 2;
pub const CU_TRSF_SRGB: u32 = 0x10;

/// The format of a texel's channel (`CUarray_format`). The number is the size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Unsigned(u32),
    /// A signed integer.
    Signed(u32),
    Half,
    Float,
}

impl Format {
    pub fn read(number: u32) -> Option<Format> {
        Some(match number {
            0x01 => Format::Unsigned(1),
            0x02 => Format::Unsigned(2),
            0x03 => Format::Unsigned(4),
            0x08 => Format::Signed(1),
            0x09 => Format::Signed(2),
            0x0a => Format::Signed(4),
            0x10 => Format::Half,
            0x20 => Format::Float,
            _ => return None,
        })
    }

    /// Returns the size of one channel in bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Format::Unsigned(bytes) | Format::Signed(bytes) => bytes,
            Format::Half => 2,
            Format::Float => 4,
        }
    }
}

/// The checked format and number of channels of a texel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Texel {
    pub format: Format,
    pub channels: u32,
}

impl Texel {
    /// Checks a format and a number of channels.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a number of channels other than 1, 2 and 4; `CUDA_ERROR_NOT_SUPPORTED` for
    /// graphics and video formats.
    pub fn read(format: u32, channels: u32) -> Result<Texel, CUresult> {
        if !matches!(channels, 1 | 2 | 4) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(Texel { format: Format::read(format).ok_or(CUDA_ERROR_NOT_SUPPORTED)?, channels })
    }

    pub fn bytes(self) -> u64 {
        u64::from(self.format.bytes() * self.channels)
    }
}

/// The extents of an array, in texels, each at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub texel: Texel,
    pub width: u64,
    pub height: u64,
    /// The number of slices, or of layers.
    pub depth: u64,
    pub layered: bool,
}

/// The limit for each side of an array in texels. No GPU supports larger arrays.
const MOST: usize = 1 << 20;

impl Shape {
    /// Checks the description of an array: its extents, flags and texel format.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for invalid extents. `CUDA_ERROR_NOT_SUPPORTED` for cubemaps, for sparse and deferred
    /// arrays, and for graphics and video formats.
    pub fn read(asked: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<Shape, CUresult> {
        let CUDA_ARRAY3D_DESCRIPTOR { Width: width, Height: height, Depth: depth, Flags: flags, .. } = *asked;
        let layered = flags & CUDA_ARRAY3D_LAYERED != 0;
        if flags & !(CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_TEXTURE_GATHER) != 0 {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let texel = Texel::read(asked.Format, asked.NumChannels)?;
        let flat = !layered && height == 0 && depth > 0;
        if width == 0 || layered && depth == 0 || flat || [width, height, depth].iter().any(|side| *side > MOST) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let [height, depth] = [height, depth].map(|side| side.max(1) as u64);
        Ok(Shape { texel, width: width as u64, height, depth, layered })
    }

    /// Returns the bytes of a row, without padding.
    pub fn row_bytes(&self) -> u64 {
        self.width * self.texel.bytes()
    }

    /// Checks that a box lies in the array. `at` and `extent` count bytes, rows and slices.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if a part of the box is outside.
    pub fn check_box(&self, at: [u64; 3], extent: [u64; 3]) -> Result<(), CUresult> {
        let sides = [self.row_bytes(), self.height, self.depth];
        let inside = |((at, wanted), side): ((&u64, u64), u64)| at.checked_add(wanted).is_some_and(|end| end <= side);
        if at.iter().zip(extent).zip(sides).all(inside) { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    /// Returns the start and the extent of `bytes` bytes from `offset`: a part of one row, or whole rows of one slice.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for other ranges of bytes.
    pub fn stretch(&self, offset: u64, bytes: u64) -> Result<([u64; 3], [u64; 3]), CUresult> {
        let row = self.row_bytes();
        let (first, x) = (offset / row, offset % row);
        let at = [x, first % self.height, first / self.height];
        let extent = match bytes % row {
            _ if bytes <= row - x => [bytes, 1, 1],
            0 if x == 0 => [row, bytes / row, 1],
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        self.check_box(at, extent).map(|()| (at, extent))
    }

    /// Returns an upper bound for the device memory of the array. A driver stores texels in blocks of 64 bytes by 8
    /// rows, up to several blocks high and deep, and allocates memory in pieces of 64 KiB. This is an estimate from the
    /// format, not a measurement.
    pub fn device_bytes(&self) -> u64 {
        let row = self.row_bytes().next_multiple_of(64);
        let rows = self.height.next_multiple_of(self.height.next_power_of_two().clamp(8, 128));
        let slices = match self.layered {
            true => self.depth,
            false => self.depth.next_multiple_of(self.depth.next_power_of_two().min(32)),
        };
        (row * rows * slices).next_multiple_of(64 << 10)
    }

    /// Returns the layout that copies use to address texels. Rows and slices have padding, so that no two rows form one
    /// contiguous range.
    pub fn steps(&self) -> Steps {
        let pitch = (self.row_bytes() + 1).next_multiple_of(64);
        let slice = pitch * (self.height + 1);
        Steps { pitch, slice, span: slice * self.depth }
    }
}

/// The layout of an array in memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    pub pitch: u64,
    pub slice: u64,
    pub span: u64,
}

impl Steps {
    /// Returns the byte in the row, the row and the slice of an offset.
    pub fn place(&self, offset: u64) -> [u64; 3] {
        [offset % self.slice % self.pitch, offset % self.slice / self.pitch, offset / self.slice]
    }

    pub fn offset(&self, [x, y, z]: [u64; 3]) -> u64 {
        z * self.slice + y * self.pitch + x
    }
}

/// `CUDA_RESOURCE_DESC`. The words are the C union.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_RESOURCE_DESC {
    pub resType: u32,
    pub words: [u64; 16],
    pub flags: u32,
}

/// The memory behind a texture or surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The handle of an array.
    Array(u64),
    Linear {
        address: u64,
        texel: Texel,
        bytes: u64,
    },
    Pitched {
        address: u64,
        texel: Texel,
        width: u64,
        height: u64,
        pitch: u64,
    },
}

/// The number of words of the union that are used.
pub const RESOURCE_WORDS: usize = 5;

impl CUDA_RESOURCE_DESC {
    pub fn new(kind: u32, used: [u64; RESOURCE_WORDS]) -> Self {
        let mut words = [0; 16];
        words.iter_mut().zip(used).for_each(|(to, word)| *to = word);
        CUDA_RESOURCE_DESC { resType: kind, words, flags: 0 }
    }

    pub fn used_words(&self) -> [u64; RESOURCE_WORDS] {
        std::array::from_fn(|index| self.words[index])
    }

    /// Checks the description and returns the resource.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_SUPPORTED` for mipmaps; `CUDA_ERROR_INVALID_VALUE` for an unknown resource.
    pub fn read(&self) -> Result<Resource, CUresult> {
        let [address, kind, a, b, c, ..] = self.words;
        if self.flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let texel = || Texel::read(kind as u32, (kind >> 32) as u32);
        match self.resType {
            CU_RESOURCE_TYPE_ARRAY => Ok(Resource::Array(address)),
            CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => Err(CUDA_ERROR_NOT_SUPPORTED),
            CU_RESOURCE_TYPE_LINEAR => Ok(Resource::Linear { address, texel: texel()?, bytes: a }),
            CU_RESOURCE_TYPE_PITCH2D => {
                Ok(Resource::Pitched { address, texel: texel()?, width: a, height: b, pitch: c })
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}

/// The C structure `CUDA_TEXTURE_DESC`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_TEXTURE_DESC {
    pub addressMode: [u32; 3],
    pub filterMode: u32,
    pub flags: u32,
    pub maxAnisotropy: u32,
    pub mipmapFilterMode: u32,
    pub mipmapLevelBias: f32,
    pub minMipmapLevelClamp: f32,
    pub maxMipmapLevelClamp: f32,
    pub borderColor: [f32; 4],
    pub reserved: [i32; 12],
}

/// `CUDA_TEXTURE_DESC` as words, without its reserved words.
pub type SamplingWords = [u32; 14];

impl CUDA_TEXTURE_DESC {
    pub fn to_words(&self) -> SamplingWords {
        let [x, y, z] = self.addressMode;
        let [red, green, blue, alpha] = self.borderColor.map(f32::to_bits);
        let levels = [self.mipmapLevelBias, self.minMipmapLevelClamp, self.maxMipmapLevelClamp].map(f32::to_bits);
        let [bias, least, most] = levels;
        let (filter, anisotropy, mipmap) = (self.filterMode, self.maxAnisotropy, self.mipmapFilterMode);
        [x, y, z, filter, self.flags, anisotropy, mipmap, bias, least, most, red, green, blue, alpha]
    }

    pub fn from_words(words: &SamplingWords) -> Self {
        let [x, y, z, filter, flags, anisotropy, mipmap, bias, least, most, red, green, blue, alpha] = *words;
        CUDA_TEXTURE_DESC {
            addressMode: [x, y, z],
            filterMode: filter,
            flags,
            maxAnisotropy: anisotropy,
            mipmapFilterMode: mipmap,
            mipmapLevelBias: f32::from_bits(bias),
            minMipmapLevelClamp: f32::from_bits(least),
            maxMipmapLevelClamp: f32::from_bits(most),
            borderColor: [red, green, blue, alpha].map(f32::from_bits),
            reserved: [0; 12],
        }
    }
}

/// The C structure `CUDA_RESOURCE_VIEW_DESC`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_RESOURCE_VIEW_DESC {
    pub format: u32,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub firstMipmapLevel: u32,
    pub lastMipmapLevel: u32,
    pub firstLayer: u32,
    pub lastLayer: u32,
    pub reserved: [u32; 16],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(sides: [usize; 3], flags: u32) -> Result<Shape, CUresult> {
        let [width, height, depth] = sides;
        let asked = CUDA_ARRAY3D_DESCRIPTOR {
            Width: width,
            Height: height,
            Depth: depth,
            Format: 0x20,
            NumChannels: 2,
            Flags: flags,
        };
        Shape::read(&asked)
    }

    #[test]
    fn shapes_as_the_manual_lists_them() {
        let read = |sides, flags| shape(sides, flags).map(|shape| [shape.width, shape.height, shape.depth]);
        assert_eq!(read([5, 0, 0], 0), Ok([5, 1, 1]));
        assert_eq!(read([5, 6, 0], 0), Ok([5, 6, 1]));
        assert_eq!(read([5, 6, 7], 0), Ok([5, 6, 7]));
        assert_eq!(read([5, 0, 7], CUDA_ARRAY3D_LAYERED), Ok([5, 1, 7]));
        assert_eq!(read([5, 6, 7], CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST), Ok([5, 6, 7]));
        assert_eq!(read([0, 6, 7], 0), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(read([5, 0, 7], 0), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(read([5, 6, 0], CUDA_ARRAY3D_LAYERED), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(read([6, 6, 6], CUDA_ARRAY3D_CUBEMAP), Err(CUDA_ERROR_NOT_SUPPORTED));
    }

    #[test]
    fn bytes_of_an_array_are_a_part_of_a_row_or_whole_rows() {
        // Rows have 40 bytes.
        let shape = shape([5, 6, 7], 0).expect("a shape");
        assert_eq!(shape.stretch(41, 39), Ok(([1, 1, 0], [39, 1, 1])));
        assert_eq!(shape.stretch(40 * 7, 80), Ok(([0, 1, 1], [40, 2, 1])));
        assert_eq!(shape.stretch(41, 40), Err(CUDA_ERROR_INVALID_VALUE), "it crosses the end of a row");
        assert_eq!(shape.stretch(40 * 5, 80), Err(CUDA_ERROR_INVALID_VALUE), "it crosses the end of a slice");
        assert_eq!(shape.stretch(40 * 42, 40), Err(CUDA_ERROR_INVALID_VALUE), "it begins behind the array");
        assert_eq!(shape.check_box([8, 5, 6], [32, 1, 1]), Ok(()));
        assert_eq!(shape.check_box([u64::MAX, 0, 0], [2, 1, 1]), Err(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn texels_are_as_large_as_their_channels() {
        assert_eq!(Texel::read(0x10, 4).map(Texel::bytes), Ok(8));
        assert_eq!(Texel::read(0x01, 3), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(Texel::read(0xb0, 1), Err(CUDA_ERROR_NOT_SUPPORTED));
    }
}
