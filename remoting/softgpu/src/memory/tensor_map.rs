//! Tensor maps: CUDA's rules for their arguments, and an encoded form that is private to this driver. Kernels cannot
//! use tensor maps. PTX that does is refused, and the error names the instruction.
//!
//! Rules: <https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html>.

use crate::ffi::R;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use driverapi::types::CUtensorMap;

const MOST_DIMENSIONS: usize = 5;
const ALIGN8B_16U4: u32 = 13;
const ALIGN16B_16U4: u32 = 14;
const ALIGN16B_16U6: u32 = 15;
/// The number of bits in an element of each `CUtensorMapDataType`.
const BITS: [u64; 16] = [8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6];
const FLOATING: std::ops::RangeInclusive<u32> = 6..=12;

const INTERLEAVE_NONE: u32 = 0;
const INTERLEAVE_32B: u32 = 2;
const SWIZZLE_NONE: u32 = 0;
const SWIZZLE_32B: u32 = 1;
/// The number of bytes in each group that a `CUtensorMapSwizzle` permutes.
const SWIZZLE_SPAN: [u64; 7] = [u64::MAX, 32, 64, 128, 128, 128, 128];
const WIDE_MODE_W128: u32 = 1;

/// The description of a tensor, which all kinds of map have.
#[derive(Clone)]
pub struct Tensor {
    pub kind: u32,
    pub address: u64,
    pub sizes: Vec<u64>,
    pub strides: Vec<u64>,
    pub element_strides: Vec<u32>,
    pub interleave: u32,
    pub swizzle: u32,
    pub promotion: u32,
    pub fill: u32,
}

/// The part of a tensor that a kernel loads at a time.
#[derive(Clone)]
pub enum Form {
    Tiled { sizes: Vec<u32> },
    Im2col { lower: Vec<i32>, upper: Vec<i32>, channels: u32, pixels: u32 },
    Im2colWide { lower: i32, upper: i32, channels: u32, pixels: u32, mode: u32 },
}

fn require(holds: bool) -> R {
    if holds { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

fn is_packed_to_16(kind: u32) -> bool {
    matches!(kind, ALIGN16B_16U4 | ALIGN16B_16U6)
}

impl Tensor {
    /// Returns the alignment of addresses and strides in bytes.
    fn alignment(&self) -> u64 {
        if self.interleave == INTERLEAVE_32B || is_packed_to_16(self.kind) { 32 } else { 16 }
    }

    fn check(&self) -> R {
        let (rank, alignment) = (self.sizes.len(), self.alignment());
        require((self.kind as usize) < BITS.len() && self.interleave <= INTERLEAVE_32B)?;
        require((1..=MOST_DIMENSIONS).contains(&rank) && (self.interleave == INTERLEAVE_NONE || rank >= 3))?;
        require(self.address.is_multiple_of(alignment))?;
        require(self.sizes.iter().all(|size| (1..=1 << 31).contains(size)))?;
        require(self.sizes[0].is_multiple_of(match self.kind {
            ALIGN8B_16U4 => 2,
            kind if is_packed_to_16(kind) => 128,
            _ => 1,
        }))?;
        require(self.strides.iter().all(|stride| stride.is_multiple_of(alignment) && *stride < 1 << 40))?;
        let ignored = usize::from(self.interleave == INTERLEAVE_NONE);
        require(self.element_strides.iter().skip(ignored).all(|step| (1..=8).contains(step)))?;
        require((self.swizzle as usize) < SWIZZLE_SPAN.len() && self.promotion <= 3 && self.fill <= 1)?;
        require(self.interleave != INTERLEAVE_32B || self.swizzle == SWIZZLE_32B)?;
        require(self.kind != ALIGN16B_16U6 || self.interleave == INTERLEAVE_NONE)?;
        require(self.fill == 0 || FLOATING.contains(&self.kind))
    }

    /// Checks the innermost dimension of the loaded part, in elements. It must not be longer than the swizzle allows.
    fn check_inner(&self, elements: u32) -> R {
        let bits = u64::from(elements) * BITS[self.kind as usize];
        let swizzled = self.interleave == INTERLEAVE_NONE && self.swizzle != SWIZZLE_NONE;
        require(!swizzled || bits <= 8 * SWIZZLE_SPAN[self.swizzle as usize])
    }

    fn check_packed_swizzle(&self, of_u4: &[u32], of_u6: &[u32]) -> R {
        require(match self.kind {
            ALIGN16B_16U4 => of_u4.contains(&self.swizzle),
            ALIGN16B_16U6 => of_u6.contains(&self.swizzle),
            _ => true,
        })
    }

    fn check_tiled(&self, sizes: &[u32]) -> R {
        require(sizes.iter().all(|size| (1..=256).contains(size)))?;
        let bits = u64::from(sizes[0]) * BITS[self.kind as usize];
        require(self.interleave != INTERLEAVE_NONE || bits.is_multiple_of(8 * 16))?;
        require(!is_packed_to_16(self.kind) || sizes[0] == 128)?;
        self.check_packed_swizzle(&[0, 3, 4], &[0, 3, 4, 6])?;
        self.check_inner(sizes[0])
    }

    /// Checks an im2col map. `lower` and `upper` are offsets from the two ends of each spatial dimension.
    fn check_im2col(&self, lower: &[i32], upper: &[i32], channels: u32, pixels: u32) -> R {
        let offsets = match self.sizes.len() {
            3 => -32768..=32767,
            4 => -128..=127,
            5 => -16..=15,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        require(lower.iter().chain(upper).all(|offset| offsets.contains(offset)))?;
        // With more than one dimension, CUDA's documentation does not say which offset belongs to which dimension.
        if let ([lower], [upper]) = (lower, upper) {
            self.check_width(*lower, *upper)?;
        }
        self.check_channels(channels)?;
        require(pixels <= 1024)?;
        self.check_packed_swizzle(&[0, 3, 4], &[0, 3, 4, 6])
    }

    fn check_im2col_wide(&self, lower: i32, upper: i32, channels: u32, pixels: u32, mode: u32) -> R {
        require(self.sizes.len() >= 3 && [lower, upper].iter().all(|offset| i16::try_from(*offset).is_ok()))?;
        self.check_width(lower, upper)?;
        self.check_channels(channels)?;
        require(mode <= WIDE_MODE_W128 && (pixels <= 1024 || mode == WIDE_MODE_W128))?;
        require([2, 3, 4].contains(&self.swizzle))?;
        self.check_packed_swizzle(&[3, 4], &[2, 3, 4])
    }

    /// Checks that the box between the offsets is not empty.
    fn check_width(&self, lower: i32, upper: i32) -> R {
        require(self.sizes[1] as i64 + i64::from(upper) - i64::from(lower) > 0)
    }

    fn check_channels(&self, channels: u32) -> R {
        require(channels <= 256 && (!is_packed_to_16(self.kind) || channels == 128))?;
        self.check_inner(channels)
    }
}

/// The bytes that mark a map of this driver.
const MAGIC: [u8; 4] = *b"RGTM";
const FORM: usize = 4;
const ALIGNMENT: usize = 5;
const ADDRESS: std::ops::Range<usize> = 8..16;
const REST: usize = 16;

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the tensor or the form breaks one of CUDA's rules.
pub fn encode(tensor: &Tensor, form: &Form) -> R<CUtensorMap> {
    tensor.check()?;
    let mut fields = vec![tensor.sizes.len() as u8];
    for small in [tensor.kind, tensor.interleave, tensor.swizzle, tensor.promotion, tensor.fill] {
        fields.push(small as u8);
    }
    tensor.sizes.iter().for_each(|size| fields.extend((*size as u32).to_le_bytes()));
    tensor.strides.iter().for_each(|stride| fields.extend(&stride.to_le_bytes()[..5]));
    fields.extend(tensor.element_strides.iter().map(|step| *step as u8));
    let mut half = |number: i32| fields.extend((number as u16).to_le_bytes());
    let which = match form {
        Form::Tiled { sizes } => {
            tensor.check_tiled(sizes)?;
            sizes.iter().for_each(|size| half(*size as i32));
            1
        }
        Form::Im2col { lower, upper, channels, pixels } => {
            tensor.check_im2col(lower, upper, *channels, *pixels)?;
            lower.iter().chain(upper).for_each(|offset| half(*offset));
            [*channels, *pixels].iter().for_each(|number| half(*number as i32));
            2
        }
        Form::Im2colWide { lower, upper, channels, pixels, mode } => {
            tensor.check_im2col_wide(*lower, *upper, *channels, *pixels, *mode)?;
            let pixels = if *mode == WIDE_MODE_W128 { 0 } else { *pixels };
            [*lower, *upper, *channels as i32, pixels as i32, *mode as i32].iter().for_each(|number| half(*number));
            3
        }
    };
    let mut bytes = [0; size_of::<CUtensorMap>()];
    bytes[..FORM].copy_from_slice(&MAGIC);
    (bytes[FORM], bytes[ALIGNMENT]) = (which, tensor.alignment() as u8);
    bytes[ADDRESS].copy_from_slice(&tensor.address.to_le_bytes());
    bytes[REST..REST + fields.len()].copy_from_slice(&fields);
    Ok(of_bytes(&bytes))
}

fn of_bytes(bytes: &[u8; 128]) -> CUtensorMap {
    let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[8 * i + k]));
    CUtensorMap { opaque: std::array::from_fn(word) }
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the map is not one of this driver, or if the address is not aligned as the map needs.
pub fn replace_address(map: &CUtensorMap, address: u64) -> R<CUtensorMap> {
    check(map)?;
    let alignment = map.opaque[0].to_le_bytes()[ALIGNMENT];
    require(address.is_multiple_of(u64::from(alignment)))?;
    let mut changed = *map;
    changed.opaque[1] = address;
    Ok(changed)
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the map is not one of this driver.
pub fn check(map: &CUtensorMap) -> R {
    require(map.opaque[0].to_le_bytes()[..FORM] == MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a matrix of 64 rows of 256 bytes, and a box of 16 by 8 elements.
    fn matrix() -> (Tensor, Vec<u32>) {
        let tensor = Tensor {
            kind: 7,
            address: 0x1000,
            sizes: vec![64, 64],
            strides: vec![256],
            element_strides: vec![1, 1],
            interleave: 0,
            swizzle: 0,
            promotion: 0,
            fill: 0,
        };
        (tensor, vec![16, 8])
    }

    fn tiled(change: impl FnOnce(&mut Tensor, &mut Vec<u32>)) -> bool {
        let (mut tensor, mut sizes) = matrix();
        change(&mut tensor, &mut sizes);
        encode(&tensor, &Form::Tiled { sizes }).is_ok()
    }

    #[test]
    fn tiled_maps_are_held_to_the_documented_limits() {
        assert!(tiled(|_, _| ()));
        assert!(tiled(|t, _| t.strides[0] = (1 << 40) - 16) && !tiled(|t, _| t.strides[0] = 1 << 40));
        assert!(!tiled(|t, _| t.strides[0] = 264) && !tiled(|t, _| t.address = 0x1008));
        assert!(tiled(|t, _| t.sizes[1] = 1 << 31) && !tiled(|t, _| t.sizes[1] = (1 << 31) + 1));
        assert!(!tiled(|t, _| t.sizes[0] = 0) && !tiled(|t, _| t.kind = 16));
        assert!(tiled(|_, b| b[1] = 256) && !tiled(|_, b| b[1] = 257) && !tiled(|_, b| b[1] = 0));
        assert!(!tiled(|_, b| b[0] = 2), "8 bytes are no multiple of 16");
        assert!(tiled(|t, _| t.element_strides[1] = 8) && !tiled(|t, _| t.element_strides[1] = 9));
        assert!(tiled(|t, _| t.element_strides[0] = 0), "without interleaving it is ignored");
        assert!(tiled(|t, _| t.swizzle = 2) && !tiled(|t, _| t.swizzle = 1), "64 bytes in a row");
        assert!(!tiled(|t, _| t.swizzle = 7) && !tiled(|t, _| t.promotion = 4) && !tiled(|t, _| t.interleave = 3));
        assert!(tiled(|t, _| t.fill = 1) && !tiled(|t, _| (t.fill, t.kind) = (1, 2)) && !tiled(|t, _| t.fill = 2));
        assert!(!tiled(|t, _| t.interleave = 1), "two dimensions cannot be interleaved");
    }

    #[test]
    fn interleaved_and_packed_maps_have_rules_of_their_own() {
        let interleaved = |t: &mut Tensor, b: &mut Vec<u32>| {
            (t.sizes, t.strides, t.element_strides) = (vec![64; 3], vec![256, 16384], vec![1; 3]);
            (t.interleave, t.swizzle, *b) = (INTERLEAVE_32B, SWIZZLE_32B, vec![4, 2, 2]);
        };
        assert!(tiled(interleaved));
        assert!(!tiled(|t, b| {
            interleaved(t, b);
            t.swizzle = SWIZZLE_NONE;
        }));
        assert!(!tiled(|t, b| {
            interleaved(t, b);
            t.address = 0x1010;
        }));
        let packed = |t: &mut Tensor, b: &mut Vec<u32>| {
            (t.kind, t.sizes[0], b[0]) = (ALIGN16B_16U4, 256, 128);
        };
        assert!(tiled(packed));
        assert!(!tiled(|t, b| {
            packed(t, b);
            b[0] = 64;
        }));
        assert!(!tiled(|t, b| {
            packed(t, b);
            t.swizzle = 6;
        }));
    }

    fn im2col(rank: usize, lower: Vec<i32>, upper: Vec<i32>, channels: u32, pixels: u32) -> bool {
        let (tensor, _) = matrix();
        let (sizes, strides, element_strides) = (vec![64; rank], vec![256; rank - 1], vec![1; rank]);
        let tensor = Tensor { sizes, strides, element_strides, ..tensor };
        encode(&tensor, &Form::Im2col { lower, upper, channels, pixels }).is_ok()
    }

    #[test]
    fn offsets_of_im2col_are_the_smaller_the_more_there_are() {
        assert!(im2col(3, vec![-32768], vec![32767], 256, 1024));
        assert!(im2col(4, vec![-128; 2], vec![127; 2], 8, 8) && !im2col(4, vec![-129, 0], vec![0; 2], 8, 8));
        assert!(im2col(5, vec![-16; 3], vec![15; 3], 8, 8) && !im2col(5, vec![0; 3], vec![0, 0, 16], 8, 8));
        assert!(!im2col(3, vec![0], vec![-64], 8, 8), "no pixel is left");
        assert!(!im2col(3, vec![0], vec![0], 257, 8) && !im2col(3, vec![0], vec![0], 8, 1025));
        assert!(!im2col(2, vec![], vec![], 8, 8));
    }

    #[test]
    fn another_address_gives_the_map_that_it_would_have_given_at_once() {
        let (tensor, sizes) = matrix();
        let form = Form::Tiled { sizes };
        let map = encode(&tensor, &form).unwrap();
        let moved = replace_address(&map, 0x2000).unwrap();
        assert_eq!(moved.opaque, encode(&Tensor { address: 0x2000, ..tensor }, &form).unwrap().opaque);
        assert_ne!(moved.opaque, map.opaque);
        assert!(replace_address(&map, 0x2008).is_err());
        assert!(replace_address(&CUtensorMap { opaque: [0; 16] }, 0x2000).is_err());
    }
}
