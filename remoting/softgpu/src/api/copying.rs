//! The entry points for copies, `cuMemcpy*`.

use super::default_stream::DefaultStream;
use super::entry::stream_entry_points;
use super::handles::id;
use crate::driver::Mode;
use crate::driver::driver;
use crate::ffi::{In, Out, R};
use crate::memory::copy::{Copy, End, Extent, Place};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use std::ffi::{c_ulonglong, c_void};

fn line(dst: End, src: End, bytes: usize) -> Copy {
    Copy { dst, src, extent: Extent::line(bytes as u64) }
}

fn sync(default: DefaultStream, copy: Copy) -> R {
    driver()?.copy(copy, Mode::Sync, &default.stream()?)
}

fn queued(default: DefaultStream, copy: Copy, stream: CUstream) -> R {
    driver()?.copy(copy, Mode::Async, &default.resolve(stream)?)
}

fn host(address: *const c_void) -> End {
    End::line(Place::Host, address as u64)
}

fn device(address: CUdeviceptr) -> End {
    End::line(Place::Device, address)
}

fn unified(address: CUdeviceptr) -> End {
    End::line(Place::Unified, address)
}

/// Returns a copy between a range of an array and plain memory.
fn stretch(array: CUarray, offset: usize, bytes: usize, other: End, into_array: bool) -> R<Copy> {
    let (end, extent) = driver()?.array(id(array))?.stretch(offset as u64, bytes as u64)?;
    let other = End { pitch: extent.width, slice: extent.width * extent.height, ..other };
    Ok(match into_array {
        true => Copy { dst: end, src: other, extent },
        false => Copy { dst: other, src: end, extent },
    })
}

/// Checks that the contexts of a peer copy are alive. All device memory is in one address space, so nothing else is
/// needed.
fn check_contexts(contexts: [CUcontext; 2]) -> R {
    let driver = driver()?;
    let alive = |context: &CUcontext| driver.contexts.get(id(*context)).is_some();
    if contexts.iter().all(alive) { Ok(()) } else { Err(CUDA_ERROR_INVALID_CONTEXT) }
}

/// Waits until all work of both contexts has finished. A synchronous peer copy does this.
fn settle_contexts(contexts: [CUcontext; 2]) -> R {
    check_contexts(contexts)?;
    let driver = driver()?;
    contexts
        .iter()
        .filter_map(|context| driver.contexts.get(id(*context)))
        .try_for_each(|context| context.synchronise())
}

/// The source or the destination of a two- or three-dimensional copy, with the fields of CUDA's descriptor.
struct Side {
    kind: CUmemorytype,
    host: *const c_void,
    device: CUdeviceptr,
    array: CUarray,
    x: usize,
    y: usize,
    z: usize,
    pitch: usize,
    height: usize,
}

impl Side {
    /// Converts the descriptor's fields. `extent` is the size of the copy. A `pitch` or `height` of 0 means that there
    /// is no gap between rows or slices.
    fn end(self, extent: Extent) -> R<End> {
        let (width, rows) = (extent.width as usize, extent.height as usize);
        let (place, base) = match self.kind {
            CU_MEMORYTYPE_HOST => (Place::Host, self.host as u64),
            CU_MEMORYTYPE_DEVICE => (Place::Device, self.device),
            CU_MEMORYTYPE_UNIFIED => (Place::Unified, self.device),
            CU_MEMORYTYPE_ARRAY => {
                let at = [self.x, self.y, self.z].map(|n| n as u64);
                return driver()?.array(id(self.array))?.end(at, extent);
            }
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        let pitch = if self.pitch == 0 { self.x + width } else { self.pitch } as u64;
        let height = if self.height == 0 { self.y + rows } else { self.height } as u64;
        let offset = |n: usize, unit: u64| (n as u64).checked_mul(unit);
        let slice = pitch.checked_mul(height).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let skipped = offset(self.z, slice)
            .and_then(|sum| sum.checked_add(offset(self.y, pitch)?))
            .and_then(|sum| sum.checked_add(self.x as u64));
        let address = skipped.and_then(|n| base.checked_add(n)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok(End { place, address, pitch, slice })
    }
}

fn plane(copy: In<CUDA_MEMCPY2D>) -> R<Copy> {
    let c = copy.get()?;
    let (width, rows) = (c.WidthInBytes, c.Height);
    let dst = Side {
        kind: c.dstMemoryType,
        host: c.dstHost,
        device: c.dstDevice,
        array: c.dstArray,
        x: c.dstXInBytes,
        y: c.dstY,
        z: 0,
        pitch: c.dstPitch,
        height: 0,
    };
    let src = Side {
        kind: c.srcMemoryType,
        host: c.srcHost,
        device: c.srcDevice,
        array: c.srcArray,
        x: c.srcXInBytes,
        y: c.srcY,
        z: 0,
        pitch: c.srcPitch,
        height: 0,
    };
    let extent = Extent { width: width as u64, height: rows as u64, depth: 1 };
    Ok(Copy { dst: dst.end(extent)?, src: src.end(extent)?, extent })
}

pub fn volume(c: CUDA_MEMCPY3D) -> R<Copy> {
    let (width, rows) = (c.WidthInBytes, c.Height);
    let dst = Side {
        kind: c.dstMemoryType,
        host: c.dstHost,
        device: c.dstDevice,
        array: c.dstArray,
        x: c.dstXInBytes,
        y: c.dstY,
        z: c.dstZ,
        pitch: c.dstPitch,
        height: c.dstHeight,
    };
    let src = Side {
        kind: c.srcMemoryType,
        host: c.srcHost,
        device: c.srcDevice,
        array: c.srcArray,
        x: c.srcXInBytes,
        y: c.srcY,
        z: c.srcZ,
        pitch: c.srcPitch,
        height: c.srcHeight,
    };
    let extent = Extent { width: width as u64, height: rows as u64, depth: c.Depth as u64 };
    Ok(Copy { dst: dst.end(extent)?, src: src.end(extent)?, extent })
}

/// Converts a copy to CUDA's descriptor, the inverse of [`volume`].
pub fn box_of(copy: &Copy) -> CUDA_MEMCPY3D {
    let end = |end: &End| BoxEnd {
        kind: match end.place {
            Place::Host => CU_MEMORYTYPE_HOST,
            Place::Device => CU_MEMORYTYPE_DEVICE,
            Place::Unified => CU_MEMORYTYPE_UNIFIED,
        },
        address: end.address,
        pitch: end.pitch,
        slice: end.slice,
    };
    let Extent { width, height, depth } = copy.extent;
    CUDA_MEMCPY3D::between(&end(&copy.dst), &end(&copy.src), [width, height, depth])
}

stream_entry_points! { default;
    fn cuMemcpy / cuMemcpy_ptds(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) {
        sync(default, line(unified(dst), unified(src), bytes))
    }

    fn cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds(dst: CUdeviceptr, src: *const c_void, bytes: usize) {
        sync(default, line(device(dst), host(src), bytes))
    }

    fn cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds(dst: *mut c_void, src: CUdeviceptr, bytes: usize) {
        sync(default, line(host(dst), device(src), bytes))
    }

    fn cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) {
        sync(default, line(device(dst), device(src), bytes))
    }

    fn cuMemcpyHtoA_v2 / cuMemcpyHtoA_v2_ptds(array: CUarray, offset: usize, src: *const c_void, bytes: usize) {
        sync(default, stretch(array, offset, bytes, host(src), true)?)
    }

    fn cuMemcpyAtoH_v2 / cuMemcpyAtoH_v2_ptds(dst: *mut c_void, array: CUarray, offset: usize, bytes: usize) {
        sync(default, stretch(array, offset, bytes, host(dst), false)?)
    }

    fn cuMemcpyDtoA_v2 / cuMemcpyDtoA_v2_ptds(array: CUarray, offset: usize, src: CUdeviceptr, bytes: usize) {
        sync(default, stretch(array, offset, bytes, device(src), true)?)
    }

    fn cuMemcpyAtoD_v2 / cuMemcpyAtoD_v2_ptds(dst: CUdeviceptr, array: CUarray, offset: usize, bytes: usize) {
        sync(default, stretch(array, offset, bytes, device(dst), false)?)
    }

    fn cuMemcpyAtoA_v2 / cuMemcpyAtoA_v2_ptds(
        dst: CUarray, dst_offset: usize, src: CUarray, src_offset: usize, bytes: usize,
    ) {
        let driver = driver()?;
        let (dst, extent) = driver.array(id(dst))?.stretch(dst_offset as u64, bytes as u64)?;
        let (src, same) = driver.array(id(src))?.stretch(src_offset as u64, bytes as u64)?;
        if (extent.width, extent.height) != (same.width, same.height) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        sync(default, Copy { dst, src, extent })
    }

    fn cuMemcpyHtoAAsync_v2 / cuMemcpyHtoAAsync_v2_ptsz(
        array: CUarray, offset: usize, src: *const c_void, bytes: usize, stream: CUstream,
    ) {
        queued(default, stretch(array, offset, bytes, host(src), true)?, stream)
    }

    fn cuMemcpyAtoHAsync_v2 / cuMemcpyAtoHAsync_v2_ptsz(
        dst: *mut c_void, array: CUarray, offset: usize, bytes: usize, stream: CUstream,
    ) {
        queued(default, stretch(array, offset, bytes, host(dst), false)?, stream)
    }

    fn cuMemcpyPeer / cuMemcpyPeer_ptds(
        dst: CUdeviceptr, dst_context: CUcontext, src: CUdeviceptr, src_context: CUcontext, bytes: usize,
    ) {
        settle_contexts([dst_context, src_context])?;
        sync(default, line(device(dst), device(src), bytes))
    }

    fn cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds(copy: In<CUDA_MEMCPY2D>) {
        sync(default, plane(copy)?)
    }

    fn cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds(copy: In<CUDA_MEMCPY2D>) {
        sync(default, plane(copy)?)
    }

    fn cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds(copy: In<CUDA_MEMCPY3D>) {
        sync(default, volume(copy.get()?)?)
    }

    fn cuMemcpy3DPeer / cuMemcpy3DPeer_ptds(copy: In<CUDA_MEMCPY3D_PEER>) {
        let contexts = copy.get()?;
        settle_contexts([contexts.dstContext, contexts.srcContext])?;
        sync(default, volume(copy.get()?)?)
    }

    fn cuMemcpyAsync / cuMemcpyAsync_ptsz(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) {
        queued(default, line(unified(dst), unified(src), bytes), stream)
    }

    fn cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz(
        dst: CUdeviceptr, src: *const c_void, bytes: usize, stream: CUstream,
    ) {
        queued(default, line(device(dst), host(src), bytes), stream)
    }

    fn cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz(
        dst: *mut c_void, src: CUdeviceptr, bytes: usize, stream: CUstream,
    ) {
        queued(default, line(host(dst), device(src), bytes), stream)
    }

    fn cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream,
    ) {
        queued(default, line(device(dst), device(src), bytes), stream)
    }

    fn cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz(
        dst: CUdeviceptr, dst_context: CUcontext, src: CUdeviceptr, src_context: CUcontext, bytes: usize,
        stream: CUstream,
    ) {
        check_contexts([dst_context, src_context])?;
        queued(default, line(device(dst), device(src), bytes), stream)
    }

    fn cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz(copy: In<CUDA_MEMCPY2D>, stream: CUstream) {
        queued(default, plane(copy)?, stream)
    }

    fn cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz(copy: In<CUDA_MEMCPY3D>, stream: CUstream) {
        queued(default, volume(copy.get()?)?, stream)
    }

    fn cuMemcpy3DPeerAsync / cuMemcpy3DPeerAsync_ptsz(copy: In<CUDA_MEMCPY3D_PEER>, stream: CUstream) {
        let contexts = copy.get()?;
        check_contexts([contexts.dstContext, contexts.srcContext])?;
        queued(default, volume(copy.get()?)?, stream)
    }
}

/// The value of `failIdx` when the error does not belong to one copy of the batch.
const NO_COPY: usize = usize::MAX;

/// Copies a batch of ranges. Default streams are refused, as CUDA documents. If a copy fails, its index is stored.
fn batch(
    default: DefaultStream,
    dsts: In<CUdeviceptr>,
    srcs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    stream: CUstream,
) -> Result<(), (usize, CUresult)> {
    let of_all = |code| (NO_COPY, code);
    if count == 0 || default.resolve(stream).map_err(of_all)?.is_default() {
        return Err(of_all(CUDA_ERROR_INVALID_VALUE));
    }
    let lists = dsts.list(count).and_then(|dsts| Ok((dsts, srcs.list(count)?, sizes.list(count)?)));
    let (dsts, srcs, sizes) = lists.map_err(of_all)?;
    for (index, ((dst, src), bytes)) in dsts.into_iter().zip(srcs).zip(sizes).enumerate() {
        queued(default, line(unified(dst), unified(src), bytes), stream).map_err(|code| (index, code))?;
    }
    Ok(())
}

/// Copies a batch of boxes. Streams and errors are treated as in [`batch`].
fn batch_of_boxes(
    default: DefaultStream,
    count: usize,
    boxes: In<CUDA_MEMCPY3D_BATCH_OP>,
    flags: c_ulonglong,
    stream: CUstream,
) -> Result<(), (usize, CUresult)> {
    let of_all = |code| (NO_COPY, code);
    if count == 0 || flags != 0 || default.resolve(stream).map_err(of_all)?.is_default() {
        return Err(of_all(CUDA_ERROR_INVALID_VALUE));
    }
    for (index, each) in boxes.list(count).map_err(of_all)?.iter().enumerate() {
        each.as_box().and_then(|copy| queued(default, volume(copy)?, stream)).map_err(|code| (index, code))?;
    }
    Ok(())
}

// The attributes are hints about when and where the source is read. It is always valid to read during the call, or in
// stream order.
stream_entry_points! { default;
    fn cuMemcpyBatchAsync / cuMemcpyBatchAsync_ptsz(
        dsts: In<CUdeviceptr>, srcs: In<CUdeviceptr>, sizes: In<usize>, count: usize, _attributes: In<CUmemcpyAttributes>,
        _indices: In<usize>, _attribute_count: usize, failed: Out<usize>, stream: CUstream,
    ) {
        batch(default, dsts, srcs, sizes, count, stream).map_err(|(index, code)| {
            failed.set_if_wanted(index);
            code
        })
    }

    fn cuMemcpyBatchAsync_v2 / cuMemcpyBatchAsync_v2_ptsz(
        dsts: In<CUdeviceptr>, srcs: In<CUdeviceptr>, sizes: In<usize>, count: usize, _attributes: In<CUmemcpyAttributes>,
        _indices: In<usize>, _attribute_count: usize, stream: CUstream,
    ) {
        batch(default, dsts, srcs, sizes, count, stream).map_err(|(_, code)| code)
    }

    fn cuMemcpyWithAttributesAsync / cuMemcpyWithAttributesAsync_ptsz(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, attributes: In<CUmemcpyAttributes>, stream: CUstream,
    ) {
        attributes.get()?;
        queued(default, line(unified(dst), unified(src), bytes), stream)
    }

    fn cuMemcpy3DBatchAsync / cuMemcpy3DBatchAsync_ptsz(
        count: usize, boxes: In<CUDA_MEMCPY3D_BATCH_OP>, failed: Out<usize>, flags: c_ulonglong, stream: CUstream,
    ) {
        batch_of_boxes(default, count, boxes, flags, stream).map_err(|(index, code)| {
            failed.set_if_wanted(index);
            code
        })
    }

    fn cuMemcpy3DBatchAsync_v2 / cuMemcpy3DBatchAsync_v2_ptsz(
        count: usize, boxes: In<CUDA_MEMCPY3D_BATCH_OP>, flags: c_ulonglong, stream: CUstream,
    ) {
        batch_of_boxes(default, count, boxes, flags, stream).map_err(|(_, code)| code)
    }

    fn cuMemcpy3DWithAttributesAsync / cuMemcpy3DWithAttributesAsync_ptsz(
        copy: In<CUDA_MEMCPY3D_BATCH_OP>, flags: c_ulonglong, stream: CUstream,
    ) {
        super::handles::no_flags(flags)?;
        queued(default, volume(copy.get()?.as_box()?)?, stream)
    }
}
