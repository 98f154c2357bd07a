//! The entry points for managed memory, which the program and every device use at the same address. There are no pages
//! to migrate, so advice is only stored.

use super::default_stream::DefaultStream;
use super::entry::{entry_points, stream_entry_points};
use crate::driver::{current, driver};
use crate::ffi::{In, Out, R};
use crate::memory::allocations::{Allocation, Kind};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::managed::{Advised, check_advice, check_flags, check_location, location_of, spread};
use driverapi::types::*;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::ops::Range;
use std::sync::PoisonError;

/// A range of managed memory: address, length in bytes and preferred location.
type Placed = (CUdeviceptr, usize, CUmemLocation);

fn find(address: CUdeviceptr) -> R<Allocation> {
    driver()?.memory.find(address).filter(|a| a.kind == Kind::Managed).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Calls `body` with the stored advice for `count` bytes of managed memory.
fn advised<T>(address: CUdeviceptr, count: usize, body: impl FnOnce(&mut Advised, Range<u64>) -> R<T>) -> R<T> {
    let Allocation { base, len, id, .. } = find(address)?;
    let mut all = driver()?.advised.lock().unwrap_or_else(PoisonError::into_inner);
    let known = all.entry(id).or_insert_with(|| Advised::new(base..base + len));
    let range = known.range(address, count)?;
    body(known, range)
}

fn advise(address: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation) -> R {
    check_advice(advice, &location, driver()?.devices.len())?;
    advised(address, count, |known, range| known.advise(&range, advice, location))
}

/// Checks the stream of a call for managed memory. A stream that is being captured is refused.
fn check_stream(default: DefaultStream, stream: CUstream) -> R {
    let stream = default.resolve(stream)?;
    driver()?.graphs.ask(|captures| captures.check_stream(stream.for_capture()))
}

fn prefetch(default: DefaultStream, stream: CUstream, ranges: &[Placed]) -> R {
    check_stream(default, stream)?;
    for (address, count, location) in ranges {
        check_location(location, driver()?.devices.len())?;
        advised(*address, *count, |known, range| {
            known.prefetch(&range, *location);
            Ok(())
        })?;
    }
    Ok(())
}

fn batch(
    (addresses, sizes, count): (In<CUdeviceptr>, In<usize>, usize),
    (locations, firsts, location_count): (In<CUmemLocation>, In<usize>, usize),
) -> R<Vec<Placed>> {
    let ranges = addresses.list(count)?.into_iter().zip(sizes.list(count)?);
    let places = spread(&locations.list(location_count)?, &firsts.list(location_count)?, count)?;
    Ok(ranges.zip(places).map(|((address, size), place)| (address, size, place)).collect())
}

fn answer(data: Out<c_int>, size: usize, which: CUmem_range_attribute, address: CUdeviceptr, count: usize) -> R {
    let data = data.required()?;
    data.set_all(advised(address, count, |known, range| known.attribute(&range, which, size))?)
}

entry_points! {
    fn cuMemAllocManaged(address: Out<CUdeviceptr>, bytes: usize, flags: c_uint) {
        let context = current()?;
        check_flags(flags)?;
        let address = address.required()?;
        driver()?.graphs.check_call()?;
        let allocation = driver()?.memory.allocate(bytes as u64, Kind::Managed, context.device.ordinal, context.id)?;
        address.set(allocation.base)
    }

    fn cuMemAdvise(address: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice) {
        advise(address, count, advice, location_of(device))
    }

    fn cuMemAdvise_v2(address: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation) {
        advise(address, count, advice, location)
    }

    fn cuMemRangeGetAttribute(
        data: Out<c_int>, size: usize, which: CUmem_range_attribute, address: CUdeviceptr, count: usize,
    ) {
        answer(data, size, which, address, count)
    }

    fn cuMemRangeGetAttributes(
        data: In<Out<c_int>>, sizes: In<usize>, which: In<CUmem_range_attribute>, number: usize, address: CUdeviceptr,
        count: usize,
    ) {
        if number == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let places = data.list(number)?.into_iter().zip(sizes.list(number)?);
        for ((place, size), which) in places.zip(which.list(number)?) {
            answer(place, size, which, address, count)?;
        }
        Ok(())
    }
}

stream_entry_points! { default;
    fn cuMemPrefetchAsync / cuMemPrefetchAsync_ptsz(
        address: CUdeviceptr, count: usize, device: CUdevice, stream: CUstream,
    ) {
        prefetch(default, stream, &[(address, count, location_of(device))])
    }

    fn cuMemPrefetchAsync_v2 / cuMemPrefetchAsync_v2_ptsz(
        address: CUdeviceptr, count: usize, location: CUmemLocation, flags: c_uint, stream: CUstream,
    ) {
        super::handles::no_flags(flags.into())?;
        prefetch(default, stream, &[(address, count, location)])
    }

    fn cuMemPrefetchBatchAsync / cuMemPrefetchBatchAsync_ptsz(
        addresses: In<CUdeviceptr>, sizes: In<usize>, count: usize, locations: In<CUmemLocation>, firsts: In<usize>,
        location_count: usize, flags: c_ulonglong, stream: CUstream,
    ) {
        super::handles::no_flags(flags)?;
        prefetch(default, stream, &batch((addresses, sizes, count), (locations, firsts, location_count))?)
    }

    fn cuMemDiscardBatchAsync / cuMemDiscardBatchAsync_ptsz(
        addresses: In<CUdeviceptr>, sizes: In<usize>, count: usize, flags: c_ulonglong, stream: CUstream,
    ) {
        super::handles::no_flags(flags)?;
        // After this call the contents of the range are undefined, so the old contents are valid too.
        for (address, size) in addresses.list(count)?.into_iter().zip(sizes.list(count)?) {
            advised(address, size, |_, _| Ok(()))?;
        }
        check_stream(default, stream)
    }

    fn cuMemDiscardAndPrefetchBatchAsync / cuMemDiscardAndPrefetchBatchAsync_ptsz(
        addresses: In<CUdeviceptr>, sizes: In<usize>, count: usize, locations: In<CUmemLocation>, firsts: In<usize>,
        location_count: usize, flags: c_ulonglong, stream: CUstream,
    ) {
        super::handles::no_flags(flags)?;
        prefetch(default, stream, &batch((addresses, sizes, count), (locations, firsts, location_count))?)
    }

    fn cuStreamAttachMemAsync / cuStreamAttachMemAsync_ptsz(
        stream: CUstream, address: CUdeviceptr, length: usize, flags: c_uint,
    ) {
        check_stream(default, stream)?;
        let Allocation { base, len, .. } = find(address)?;
        let fits = address == base && (length == 0 || length as u64 == len);
        let known = matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST | CU_MEM_ATTACH_SINGLE);
        // All streams may use the memory. Limiting it to one stream only removes a guarantee, so nothing has to be
        // done.
        if fits && known { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
}
