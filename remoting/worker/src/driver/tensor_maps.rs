//! Driver calls that encode and change tensor maps. They do not access the device.

use super::{Driver, Handle, Raw, Result};
use driverapi::errors::*;
use driverapi::types::CUtensorMap;
use protocol::{
    Tensor, TensorMap, TensorMapIm2col, TensorMapIm2colWide, TensorMapReplaceAddress, TensorMapSetClass, TensorMapTiled,
};

/// Limit on a tensor's dimensions: <https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html>.
const MOST_DIMENSIONS: usize = 5;
const EMPTY: CUtensorMap = CUtensorMap { opaque: [0; 16] };

/// Returns the number of dimensions. Fails if a list does not have the length that the driver expects.
fn rank(tensor: &Tensor) -> Result<u32> {
    let rank = tensor.sizes.len();
    let fits = (1..=MOST_DIMENSIONS).contains(&rank)
        && tensor.strides.len() == rank - 1
        && tensor.element_strides.len() == rank;
    if fits { Ok(rank as u32) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

fn pointer(address: u64) -> Raw {
    Handle(address as usize).raw()
}

fn encoded(map: &CUtensorMap) -> TensorMap {
    TensorMap { words: map.opaque, class: 0 }
}

impl Driver {
    pub fn encode_tiled(&self, c: &TensorMapTiled) -> Result<TensorMap> {
        let (t, rank, address) = (&c.tensor, rank(&c.tensor)?, pointer(c.tensor.address));
        if c.box_sizes.len() != t.sizes.len() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (sizes, strides, boxes) = (t.sizes.as_ptr(), t.strides.as_ptr(), c.box_sizes.as_ptr());
        let steps = t.element_strides.as_ptr();
        let map = get!(self.tensor_map_tiled(
            EMPTY,
            t.kind,
            rank,
            address,
            sizes,
            strides,
            boxes,
            steps,
            t.interleave,
            t.swizzle,
            t.promotion,
            t.fill
        ))?;
        Ok(encoded(&map))
    }

    pub fn encode_im2col(&self, c: &TensorMapIm2col) -> Result<TensorMap> {
        let (t, rank, address) = (&c.tensor, rank(&c.tensor)?, pointer(c.tensor.address));
        if rank < 3 || c.lower.len() != t.sizes.len() - 2 || c.upper.len() != c.lower.len() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (sizes, strides, steps) = (t.sizes.as_ptr(), t.strides.as_ptr(), t.element_strides.as_ptr());
        let (lower, upper) = (c.lower.as_ptr(), c.upper.as_ptr());
        let map = get!(self.tensor_map_im2col(
            EMPTY,
            t.kind,
            rank,
            address,
            sizes,
            strides,
            lower,
            upper,
            c.channels,
            c.pixels,
            steps,
            t.interleave,
            t.swizzle,
            t.promotion,
            t.fill
        ))?;
        Ok(encoded(&map))
    }

    pub fn encode_im2col_wide(&self, c: &TensorMapIm2colWide) -> Result<TensorMap> {
        let (t, rank, address) = (&c.tensor, rank(&c.tensor)?, pointer(c.tensor.address));
        let (sizes, strides, steps) = (t.sizes.as_ptr(), t.strides.as_ptr(), t.element_strides.as_ptr());
        let map = get!(self.tensor_map_im2col_wide(
            EMPTY,
            t.kind,
            rank,
            address,
            sizes,
            strides,
            c.lower,
            c.upper,
            c.channels,
            c.pixels,
            steps,
            t.interleave,
            c.mode,
            t.swizzle,
            t.promotion,
            t.fill
        ))?;
        Ok(encoded(&map))
    }

    pub fn replace_address(&self, c: &TensorMapReplaceAddress) -> Result<TensorMap> {
        let mut map = CUtensorMap { opaque: c.map };
        call!(self.tensor_map_address(&mut map, pointer(c.address)))?;
        Ok(encoded(&map))
    }

    pub fn set_class(&self, c: &TensorMapSetClass) -> Result<TensorMap> {
        let (mut map, mut class) = (CUtensorMap { opaque: c.map }, 0);
        call!(self.tensor_map_class(&mut map, c.class, &mut class))?;
        Ok(TensorMap { words: map.opaque, class })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_other_lengths_never_reach_the_driver() {
        let driver = Driver::from_table(super::super::Table::default());
        let tensor = |rank: usize, strides: usize, steps: usize| Tensor {
            sizes: vec![16; rank],
            strides: vec![64; strides],
            element_strides: vec![1; steps],
            ..Tensor::default()
        };
        let tiled = |tensor, boxes| {
            let encode = TensorMapTiled { context: 1, tensor, box_sizes: vec![4; boxes] };
            driver.encode_tiled(&encode).unwrap_err()
        };
        assert_eq!(tiled(tensor(3, 2, 3), 3), CUDA_ERROR_NOT_SUPPORTED, "this driver has no such function");
        for (tensor, boxes) in [
            (tensor(0, 0, 0), 0),
            (tensor(6, 5, 6), 6),
            (tensor(3, 1, 3), 3),
            (tensor(3, 2, 2), 3),
            (tensor(3, 2, 3), 2),
        ] {
            assert_eq!(tiled(tensor, boxes), CUDA_ERROR_INVALID_VALUE);
        }
        let im2col = |rank: usize, lower: usize, upper: usize| {
            let (lower, upper) = (vec![0; lower], vec![0; upper]);
            let tensor = tensor(rank, rank - 1, rank);
            let encode = TensorMapIm2col { context: 1, tensor, lower, upper, channels: 8, pixels: 8 };
            driver.encode_im2col(&encode).unwrap_err()
        };
        assert_eq!(im2col(4, 2, 2), CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!([im2col(2, 0, 0), im2col(4, 1, 2), im2col(4, 2, 3)], [CUDA_ERROR_INVALID_VALUE; 3]);
    }
}
