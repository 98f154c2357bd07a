//! The entry points for tensor maps. The client checks only the conditions for reading the arguments; the driver checks
//! the rest.
//!
//! Requirements: <https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html>.

use crate::Code;
use crate::boundary::{input, inputs, write, write_optional};
use crate::devices::context;
use crate::exports;
use crate::objects::tensor_map;
use driverapi::errors::*;
use driverapi::types::CUtensorMap;
use protocol::{
    Message, Tensor, TensorMapIm2col, TensorMapIm2colWide, TensorMapReplaceAddress, TensorMapSetClass, TensorMapTiled,
};
use std::ffi::{c_int, c_uint, c_void};

const MOST_DIMENSIONS: u32 = 5;
const ALIGNMENT: usize = 64;
/// The allocation class that the program gets if the request fails: `CU_TENSOR_MAP_ALLOC_CLASS_SMALL`.
const SMALL: c_uint = 1;

/// The lists that all encodings have.
struct Lists {
    sizes: *const u64,
    strides: *const u64,
    element_strides: *const u32,
}

exports! {
    fn cuTensorMapEncodeTiled(
        map: *mut CUtensorMap,
        kind: c_uint,
        rank: u32,
        address: *mut c_void,
        sizes: *const u64,
        strides: *const u64,
        box_sizes: *const u32,
        element_strides: *const u32,
        interleave: c_uint,
        swizzle: c_uint,
        promotion: c_uint,
        fill: c_uint,
    ) {
        let context = context::current()?.id;
        let plain = Tensor { kind, address: address.addr() as u64, interleave, swizzle, promotion, fill, ..Tensor::default() };
        let tensor = read(plain, rank, 1, &Lists { sizes, strides, element_strides })?;
        encode(map, &TensorMapTiled { context, tensor, box_sizes: inputs(box_sizes, rank as usize)? })
    }

    fn cuTensorMapEncodeIm2col(
        map: *mut CUtensorMap,
        kind: c_uint,
        rank: u32,
        address: *mut c_void,
        sizes: *const u64,
        strides: *const u64,
        lower: *const c_int,
        upper: *const c_int,
        channels: u32,
        pixels: u32,
        element_strides: *const u32,
        interleave: c_uint,
        swizzle: c_uint,
        promotion: c_uint,
        fill: c_uint,
    ) {
        let context = context::current()?.id;
        let plain = Tensor { kind, address: address.addr() as u64, interleave, swizzle, promotion, fill, ..Tensor::default() };
        let tensor = read(plain, rank, 3, &Lists { sizes, strides, element_strides })?;
        let corners = rank as usize - 2;
        let (lower, upper) = (inputs(lower, corners)?, inputs(upper, corners)?);
        encode(map, &TensorMapIm2col { context, tensor, lower, upper, channels, pixels })
    }

    fn cuTensorMapEncodeIm2colWide(
        map: *mut CUtensorMap,
        kind: c_uint,
        rank: u32,
        address: *mut c_void,
        sizes: *const u64,
        strides: *const u64,
        lower: c_int,
        upper: c_int,
        channels: u32,
        pixels: u32,
        element_strides: *const u32,
        interleave: c_uint,
        mode: c_uint,
        swizzle: c_uint,
        promotion: c_uint,
        fill: c_uint,
    ) {
        let context = context::current()?.id;
        let plain = Tensor { kind, address: address.addr() as u64, interleave, swizzle, promotion, fill, ..Tensor::default() };
        let tensor = read(plain, rank, 3, &Lists { sizes, strides, element_strides })?;
        encode(map, &TensorMapIm2colWide { context, tensor, lower, upper, channels, pixels, mode })
    }

    fn cuTensorMapReplaceAddress(map: *mut CUtensorMap, address: *mut c_void) {
        let context = context::current()?.id;
        let old = input(map)?.opaque;
        encode(map, &TensorMapReplaceAddress { context, map: old, address: address.addr() as u64 })
    }

    fn cuTensorMapSetAllocationClass(map: *mut CUtensorMap, class: c_uint, effective: *mut c_uint) {
        write_optional(effective, SMALL);
        let live = context::current()?;
        let old = input(map)?.opaque;
        let changed = tensor_map::ask(&live, &TensorMapSetClass { context: live.id, map: old, class })?;
        write_optional(effective, changed.class);
        write(map, CUtensorMap { opaque: changed.words })
    }
}

/// Returns `plain` with the sizes and strides that the program gave. Fails with `CUDA_ERROR_INVALID_VALUE` if `rank` is
/// not from `least` to `MOST_DIMENSIONS`.
unsafe fn read(plain: Tensor, rank: u32, least: u32, lists: &Lists) -> Result<Tensor, Code> {
    if !(least..=MOST_DIMENSIONS).contains(&rank) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let rank = rank as usize;
    // SAFETY: as the caller of the exported function vouches.
    unsafe {
        let (sizes, strides) = (inputs(lists.sizes, rank)?, inputs(lists.strides, rank - 1)?);
        Ok(Tensor { sizes, strides, element_strides: inputs(lists.element_strides, rank)?, ..plain })
    }
}

unsafe fn encode<M: Message>(map: *mut CUtensorMap, message: &M) -> Result<(), Code> {
    if map.is_null() || !map.addr().is_multiple_of(ALIGNMENT) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let words = tensor_map::ask(&*context::current()?, message)?.words;
    // SAFETY: as the caller of the exported function vouches.
    unsafe { write(map, CUtensorMap { opaque: words }) }
}
