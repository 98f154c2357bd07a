//! The entry points for managed memory. Advice and prefetches have no effect on transfers: all managed memory is
//! transferred at launches and waits.

use crate::boundary::{DefaultStream, inputs, write};
use crate::devices::{self, context};
use crate::graphs::graph::{self, GRAPHS};
use crate::memory::managed;
use crate::objects::stream;
use crate::{Code, exports, stream_exports};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::managed::{check_advice, check_flags, check_location, location_of, spread};
use driverapi::types::{CUdevice, CUdeviceptr, CUmemLocation, CUstream};
use std::ffi::{c_uint, c_ulonglong, c_void};

/// A range of memory: its address, its size in bytes, and the requested location.
type Placed = (CUdeviceptr, usize, CUmemLocation);

exports! {
    fn cuMemAllocManaged(address: *mut CUdeviceptr, size: usize, flags: c_uint) {
        let live = context::current()?;
        check_flags(flags)?;
        if address.is_null() || size == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        GRAPHS.check_call()?;
        write(address, managed::allocate(&live, size, flags)? as u64)
    }

    fn cuMemAdvise(address: CUdeviceptr, count: usize, advice: c_uint, device: CUdevice) {
        advise(address, count, advice, location_of(device))
    }

    fn cuMemAdvise_v2(address: CUdeviceptr, count: usize, advice: c_uint, location: CUmemLocation) {
        advise(address, count, advice, location)
    }

    fn cuMemRangeGetAttribute(
        data: *mut c_void,
        size: usize,
        attribute: c_uint,
        address: CUdeviceptr,
        count: usize,
    ) {
        devices::all()?;
        answer(data, size, attribute, address, count)
    }

    fn cuMemRangeGetAttributes(
        data: *mut *mut c_void,
        sizes: *mut usize,
        attributes: *mut c_uint,
        number: usize,
        address: CUdeviceptr,
        count: usize,
    ) {
        devices::all()?;
        if number == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let places = inputs(data, number)?.into_iter().zip(inputs(sizes, number)?);
        for ((place, size), attribute) in places.zip(inputs(attributes, number)?) {
            answer(place, size, attribute, address, count)?;
        }
        Ok(())
    }
}

stream_exports! {
    fn cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz(
        address: CUdeviceptr,
        count: usize,
        device: CUdevice,
        stream: CUstream,
    ) |default| {
        prefetch(&[(address, count, location_of(device))], stream, default)
    }

    fn cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz(
        address: CUdeviceptr,
        count: usize,
        location: CUmemLocation,
        flags: c_uint,
        stream: CUstream,
    ) |default| {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        prefetch(&[(address, count, location)], stream, default)
    }

    fn cuMemPrefetchBatchAsync | cuMemPrefetchBatchAsync_ptsz(
        addresses: *mut CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        locations: *mut CUmemLocation,
        first_ranges: *mut usize,
        location_count: usize,
        flags: c_ulonglong,
        stream: CUstream,
    ) |default| {
        let batch = batch(addresses, sizes, count, locations, first_ranges, location_count)?;
        if flags != 0 { Err(CUDA_ERROR_INVALID_VALUE) } else { prefetch(&batch, stream, default) }
    }

    fn cuMemDiscardBatchAsync | cuMemDiscardBatchAsync_ptsz(
        addresses: *mut CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        flags: c_ulonglong,
        stream: CUstream,
    ) |default| {
        let ranges = inputs(addresses, count)?.into_iter().zip(inputs(sizes, count)?);
        // A discard allows any content, so the present content may stay.
        for (address, size) in ranges {
            managed::advised(address, size, |_, _| Ok(()))?;
        }
        if flags != 0 { Err(CUDA_ERROR_INVALID_VALUE) } else { prefetch(&[], stream, default) }
    }

    fn cuMemDiscardAndPrefetchBatchAsync | cuMemDiscardAndPrefetchBatchAsync_ptsz(
        addresses: *mut CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        locations: *mut CUmemLocation,
        first_ranges: *mut usize,
        location_count: usize,
        flags: c_ulonglong,
        stream: CUstream,
    ) |default| {
        let batch = batch(addresses, sizes, count, locations, first_ranges, location_count)?;
        if flags != 0 { Err(CUDA_ERROR_INVALID_VALUE) } else { prefetch(&batch, stream, default) }
    }

    fn cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz(
        stream: CUstream,
        address: CUdeviceptr,
        length: usize,
        flags: c_uint,
    ) |default| {
        let target = stream::resolve(stream, default)?;
        graph::check_stream(&target)?;
        let whole = managed::advised(address, 1, |known, _| Ok(known.addresses()))?;
        let fits = address == whole.start && (length == 0 || length as u64 == whole.end - whole.start);
        let known = matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST | CU_MEM_ATTACH_SINGLE);
        // All streams see the memory in stream order. Attaching it to one stream only weakens a guarantee that always
        // holds.
        if fits && known { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
}

fn advise(address: CUdeviceptr, count: usize, advice: c_uint, location: CUmemLocation) -> Result<(), Code> {
    check_advice(advice, &location, devices::all()?.len())?;
    managed::advised(address, count, |known, range| known.advise(&range, advice, location))
}

fn prefetch(ranges: &[Placed], stream: CUstream, default: DefaultStream) -> Result<(), Code> {
    let target = stream::resolve(stream, default)?;
    graph::check_stream(&target)?;
    let devices = devices::all()?.len();
    for (address, count, location) in ranges {
        check_location(location, devices)?;
        managed::advised(*address, *count, |known, range| {
            known.prefetch(&range, *location);
            Ok(())
        })?;
    }
    Ok(())
}

/// Reads the ranges of a batch with their locations. Location `i` applies from range `first_ranges[i]` on.
unsafe fn batch(
    addresses: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    locations: *const CUmemLocation,
    first_ranges: *const usize,
    location_count: usize,
) -> Result<Vec<Placed>, Code> {
    // SAFETY: as the caller of the exported function vouches.
    let (ranges, locations, firsts) = unsafe {
        let ranges = inputs(addresses, count)?.into_iter().zip(inputs(sizes, count)?);
        (ranges, inputs(locations, location_count)?, inputs(first_ranges, location_count)?)
    };
    Ok(ranges.zip(spread(&locations, &firsts, count)?).map(|((address, size), place)| (address, size, place)).collect())
}

unsafe fn answer(
    data: *mut c_void,
    size: usize,
    attribute: c_uint,
    address: CUdeviceptr,
    count: usize,
) -> Result<(), Code> {
    if data.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let words = managed::advised(address, count, |known, range| known.attribute(&range, attribute, size))?;
    for (place, word) in words.into_iter().enumerate() {
        // SAFETY: as the caller of the exported function vouches; the buffer has as many words as the program said.
        unsafe { write(data.cast::<i32>().add(place), word)? };
    }
    Ok(())
}
