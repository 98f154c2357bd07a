//! The entry points that encode tensor maps. The encoded form is private to this driver.

use super::entry::entry_points;
use crate::driver::current;
use crate::ffi::{In, Out, R};
use crate::memory::tensor_map::{Form, Tensor, check, encode, replace_address};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use driverapi::types::CUtensorMap;
use std::ffi::{c_int, c_uint, c_void};

const MOST_DIMENSIONS: u32 = 5;
/// `CU_TENSOR_MAP_ALLOC_CLASS_SMALL`, the only class that has an effect. A device attribute reports this.
const SMALL: c_uint = 1;
const LARGE: c_uint = 2;

/// The argument lists that all forms of tensor maps have.
#[derive(Clone, Copy)]
struct Lists {
    sizes: In<u64>,
    strides: In<u64>,
    element_strides: In<u32>,
}

/// Returns `plain` with the sizes and strides that the program gave. Fails with `CUDA_ERROR_INVALID_VALUE` unless
/// `rank` is from `least` to the maximum number of dimensions.
fn read(rank: u32, least: u32, lists: Lists, plain: Tensor) -> R<Tensor> {
    if !(least..=MOST_DIMENSIONS).contains(&rank) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let rank = rank as usize;
    let (sizes, strides) = (lists.sizes.list(rank)?, lists.strides.list(rank - 1)?);
    Ok(Tensor { sizes, strides, element_strides: lists.element_strides.list(rank)?, ..plain })
}

fn plain(kind: c_uint, address: *mut c_void, interleave: c_uint, swizzle: c_uint, last: [c_uint; 2]) -> Tensor {
    let (sizes, strides, element_strides) = (Vec::new(), Vec::new(), Vec::new());
    let (address, [promotion, fill]) = (address.addr() as u64, last);
    Tensor { kind, address, sizes, strides, element_strides, interleave, swizzle, promotion, fill }
}

fn store(out: Out<CUtensorMap>, map: R<CUtensorMap>) -> R {
    if !out.is_aligned_to(64) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.set(map?)
}

entry_points! {
    fn cuTensorMapEncodeTiled(
        out: Out<CUtensorMap>, kind: c_uint, rank: u32, address: *mut c_void, sizes: In<u64>, strides: In<u64>,
        box_sizes: In<u32>, element_strides: In<u32>, interleave: c_uint, swizzle: c_uint, promotion: c_uint,
        fill: c_uint,
    ) {
        current()?;
        let lists = Lists { sizes, strides, element_strides };
        let tensor = read(rank, 1, lists, plain(kind, address, interleave, swizzle, [promotion, fill]))?;
        store(out, encode(&tensor, &Form::Tiled { sizes: box_sizes.list(rank as usize)? }))
    }

    fn cuTensorMapEncodeIm2col(
        out: Out<CUtensorMap>, kind: c_uint, rank: u32, address: *mut c_void, sizes: In<u64>, strides: In<u64>,
        lower: In<c_int>, upper: In<c_int>, channels: u32, pixels: u32, element_strides: In<u32>, interleave: c_uint,
        swizzle: c_uint, promotion: c_uint, fill: c_uint,
    ) {
        current()?;
        let lists = Lists { sizes, strides, element_strides };
        let tensor = read(rank, 3, lists, plain(kind, address, interleave, swizzle, [promotion, fill]))?;
        let corners = rank as usize - 2;
        let (lower, upper) = (lower.list(corners)?, upper.list(corners)?);
        store(out, encode(&tensor, &Form::Im2col { lower, upper, channels, pixels }))
    }

    fn cuTensorMapEncodeIm2colWide(
        out: Out<CUtensorMap>, kind: c_uint, rank: u32, address: *mut c_void, sizes: In<u64>, strides: In<u64>,
        lower: c_int, upper: c_int, channels: u32, pixels: u32, element_strides: In<u32>, interleave: c_uint,
        mode: c_uint, swizzle: c_uint, promotion: c_uint, fill: c_uint,
    ) {
        current()?;
        let lists = Lists { sizes, strides, element_strides };
        let tensor = read(rank, 3, lists, plain(kind, address, interleave, swizzle, [promotion, fill]))?;
        store(out, encode(&tensor, &Form::Im2colWide { lower, upper, channels, pixels, mode }))
    }

    fn cuTensorMapReplaceAddress(map: Out<CUtensorMap>, address: *mut c_void) {
        current()?;
        store(map, replace_address(&map.get()?, address.addr() as u64))
    }

    fn cuTensorMapSetAllocationClass(map: Out<CUtensorMap>, class: c_uint, effective: Out<c_uint>) {
        effective.set_if_wanted(SMALL);
        current()?;
        if class > LARGE {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        check(&map.get()?)
    }
}
