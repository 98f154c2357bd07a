//! The entry points for copies. The host side of a box may have any distance between rows and slices.

use crate::Code;
use crate::boundary::DefaultStream;
use crate::boundary::input;
use crate::copies::copy::Timing::{Asynchronous, Synchronous};
use crate::copies::copy::{self, Copying, Place, Shape, Side, Timing};
use crate::graphs::graph::{self, Work};
use crate::objects::{arrays, stream};
use crate::stream_exports;
use driverapi::constants::{CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED};
use driverapi::errors::*;
use driverapi::types::{BoxEnd, CUDA_MEMCPY2D, CUDA_MEMCPY3D_PEER, CUarray, CUcontext, CUdeviceptr, CUstream};
use std::ffi::c_void;
use std::ptr::null_mut;

stream_exports! {
    fn cuMemcpy | cuMemcpy_ptds(to: CUdeviceptr, from: CUdeviceptr, len: usize) |default| {
        linear(null_mut(), default, UNIFIED, to, from, len, Synchronous)
    }

    fn cuMemcpyAsync | cuMemcpyAsync_ptsz(
        to: CUdeviceptr,
        from: CUdeviceptr,
        len: usize,
        stream: CUstream,
    ) |default| {
        anywhere(stream, default, to, from, len)
    }

    fn cuMemcpyPeer | cuMemcpyPeer_ptds(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        len: usize,
    ) |default| {
        crate::devices::context::get(to_context)?;
        crate::devices::context::get(from_context)?;
        linear(null_mut(), default, ON_DEVICE, to, from, len, Synchronous)
    }

    fn cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        len: usize,
        stream: CUstream,
    ) |default| {
        crate::devices::context::get(to_context)?;
        crate::devices::context::get(from_context)?;
        linear(stream, default, ON_DEVICE, to, from, len, Asynchronous)
    }

    fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds(to: CUdeviceptr, from: *const c_void, len: usize) |default| {
        linear(null_mut(), default, TO_DEVICE, to, from.expose_provenance() as u64, len, Synchronous)
    }

    fn cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz(
        to: CUdeviceptr,
        from: *const c_void,
        len: usize,
        stream: CUstream,
    ) |default| {
        linear(stream, default, TO_DEVICE, to, from.expose_provenance() as u64, len, Asynchronous)
    }

    fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: CUdeviceptr, len: usize) |default| {
        linear(null_mut(), default, TO_HOST, to.expose_provenance() as u64, from, len, Synchronous)
    }

    fn cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz(
        to: *mut c_void,
        from: CUdeviceptr,
        len: usize,
        stream: CUstream,
    ) |default| {
        linear(stream, default, TO_HOST, to.expose_provenance() as u64, from, len, Asynchronous)
    }

    fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds(to: CUdeviceptr, from: CUdeviceptr, len: usize) |default| {
        linear(null_mut(), default, ON_DEVICE, to, from, len, Synchronous)
    }

    fn cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz(
        to: CUdeviceptr,
        from: CUdeviceptr,
        len: usize,
        stream: CUstream,
    ) |default| {
        linear(stream, default, ON_DEVICE, to, from, len, Asynchronous)
    }

    fn cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds(
        to: CUarray,
        offset: usize,
        from: *const c_void,
        len: usize,
    ) |default| {
        let copying = into_array((to, offset), (from.expose_provenance() as u64, Place::Host), len)?;
        run(null_mut(), default, copying, Synchronous)
    }

    fn cuMemcpyHtoAAsync_v2 | cuMemcpyHtoAAsync_v2_ptsz(
        to: CUarray,
        offset: usize,
        from: *const c_void,
        len: usize,
        stream: CUstream,
    ) |default| {
        let copying = into_array((to, offset), (from.expose_provenance() as u64, Place::Host), len)?;
        run(stream, default, copying, Asynchronous)
    }

    fn cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds(to: *mut c_void, from: CUarray, offset: usize, len: usize) |default| {
        let copying = out_of_array((to.expose_provenance() as u64, Place::Host), (from, offset), len)?;
        run(null_mut(), default, copying, Synchronous)
    }

    fn cuMemcpyAtoHAsync_v2 | cuMemcpyAtoHAsync_v2_ptsz(
        to: *mut c_void,
        from: CUarray,
        offset: usize,
        len: usize,
        stream: CUstream,
    ) |default| {
        let copying = out_of_array((to.expose_provenance() as u64, Place::Host), (from, offset), len)?;
        run(stream, default, copying, Asynchronous)
    }

    fn cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds(to: CUarray, offset: usize, from: CUdeviceptr, len: usize) |default| {
        run(null_mut(), default, into_array((to, offset), (from, Place::Device), len)?, Synchronous)
    }

    fn cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds(to: CUdeviceptr, from: CUarray, offset: usize, len: usize) |default| {
        run(null_mut(), default, out_of_array((to, Place::Device), (from, offset), len)?, Synchronous)
    }

    fn cuMemcpyAtoA_v2 | cuMemcpyAtoA_v2_ptds(
        to: CUarray,
        to_offset: usize,
        from: CUarray,
        from_offset: usize,
        len: usize,
    ) |default| {
        let (to, shape) = stretch((to, to_offset), len)?;
        let (from, same) = stretch((from, from_offset), len)?;
        if shape != same {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        run(null_mut(), default, Copying { to: (to, Place::Device), from: (from, Place::Device), shape }, Synchronous)
    }

    fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds(copy: *const CUDA_MEMCPY2D) |default| {
        boxed(null_mut(), default, &of_2d(&input(copy)?), Synchronous)
    }

    fn cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds(copy: *const CUDA_MEMCPY2D) |default| {
        boxed(null_mut(), default, &of_2d(&input(copy)?), Synchronous)
    }

    fn cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz(copy: *const CUDA_MEMCPY2D, stream: CUstream) |default| {
        boxed(stream, default, &of_2d(&input(copy)?), Asynchronous)
    }

    fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds(copy: *const CUDA_MEMCPY3D_PEER) |default| {
        boxed(null_mut(), default, &of_3d(&input(copy)?)?, Synchronous)
    }

    fn cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz(copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream) |default| {
        boxed(stream, default, &of_3d(&input(copy)?)?, Asynchronous)
    }

    fn cuMemcpy3DPeer | cuMemcpy3DPeer_ptds(copy: *const CUDA_MEMCPY3D_PEER) |default| {
        boxed(null_mut(), default, &of_3d(&input(copy)?)?, Synchronous)
    }

    fn cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz(copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream) |default| {
        boxed(stream, default, &of_3d(&input(copy)?)?, Asynchronous)
    }
}

/// Copies between any two kinds of memory, in the stream's order.
pub fn anywhere(stream: CUstream, default: DefaultStream, to: u64, from: u64, len: usize) -> Result<(), Code> {
    linear(stream, default, UNIFIED, to, from, len, Asynchronous)
}

/// The kinds of destination and source that a function declares.
type Places = (Place, Place);

const TO_DEVICE: Places = (Place::Device, Place::Host);
const TO_HOST: Places = (Place::Host, Place::Device);
const ON_DEVICE: Places = (Place::Device, Place::Device);
const UNIFIED: Places = (Place::Unified, Place::Unified);

fn linear(
    stream: CUstream,
    default: DefaultStream,
    places: Places,
    to: u64,
    from: u64,
    len: usize,
    timing: Timing,
) -> Result<(), Code> {
    let (to, from) = (Side::linear(to, len as u64), Side::linear(from, len as u64));
    run(
        stream,
        default,
        Copying { to: (to, places.0), from: (from, places.1), shape: Shape::linear(len as u64) },
        timing,
    )
}

fn run(stream: CUstream, default: DefaultStream, copying: Copying, timing: Timing) -> Result<(), Code> {
    let target = stream::resolve(stream, default)?;
    if timing == Synchronous {
        graph::check_waiting_call(&target)?;
    } else if !copying.shape.is_empty() && graph::capture(&target, || Ok(Work::Copy(copying)))? {
        return Ok(());
    }
    copy::run_on(&target, &copying, timing)
}

/// A range of an array that starts at a byte offset.
type Stretch = (CUarray, usize);

fn stretch((array, offset): Stretch, len: usize) -> Result<(Side, Shape), Code> {
    arrays::get(array.addr())?.stretch(offset as u64, len as u64)
}

/// Returns a side without gaps, for memory that receives or supplies the bytes of a range of an array.
fn packed((address, place): (u64, Place), shape: &Shape) -> (Side, Place) {
    (Side { address, pitch: shape.width, slice: shape.width * shape.height }, place)
}

fn into_array(to: Stretch, from: (u64, Place), len: usize) -> Result<Copying, Code> {
    let (to, shape) = stretch(to, len)?;
    Ok(Copying { to: (to, Place::Device), from: packed(from, &shape), shape })
}

fn out_of_array(to: (u64, Place), from: Stretch, len: usize) -> Result<Copying, Code> {
    let (from, shape) = stretch(from, len)?;
    Ok(Copying { to: packed(to, &shape), from: (from, Place::Device), shape })
}

/// One side of a box copy as the program describes it.
struct End {
    kind: u32,
    array: CUarray,
    host: u64,
    device: u64,
    offset: [u64; 3],
    pitch: u64,
    height: u64,
}

struct BoxCopy {
    to: End,
    from: End,
    shape: Shape,
}

fn of_2d(copy: &CUDA_MEMCPY2D) -> BoxCopy {
    let end = |kind, array, host: *const c_void, device, x, y, pitch| End {
        kind,
        array,
        host: host.expose_provenance() as u64,
        device,
        offset: [x as u64, y as u64, 0],
        pitch: pitch as u64,
        height: copy.Height as u64,
    };
    let c = copy;
    BoxCopy {
        to: end(c.dstMemoryType, c.dstArray, c.dstHost.cast_const(), c.dstDevice, c.dstXInBytes, c.dstY, c.dstPitch),
        from: end(c.srcMemoryType, c.srcArray, c.srcHost, c.srcDevice, c.srcXInBytes, c.srcY, c.srcPitch),
        shape: Shape { width: c.WidthInBytes as u64, height: c.Height as u64, depth: 1 },
    }
}

fn of_3d(copy: &CUDA_MEMCPY3D_PEER) -> Result<BoxCopy, Code> {
    let c = copy;
    if c.srcLOD != 0 || c.dstLOD != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let shape = Shape { width: c.WidthInBytes as u64, height: c.Height as u64, depth: c.Depth as u64 };
    Ok(BoxCopy {
        to: End {
            kind: c.dstMemoryType,
            array: c.dstArray,
            host: c.dstHost.expose_provenance() as u64,
            device: c.dstDevice,
            offset: [c.dstXInBytes as u64, c.dstY as u64, c.dstZ as u64],
            pitch: c.dstPitch as u64,
            height: c.dstHeight as u64,
        },
        from: End {
            kind: c.srcMemoryType,
            array: c.srcArray,
            host: c.srcHost.expose_provenance() as u64,
            device: c.srcDevice,
            offset: [c.srcXInBytes as u64, c.srcY as u64, c.srcZ as u64],
            pitch: c.srcPitch as u64,
            height: c.srcHeight as u64,
        },
        shape,
    })
}

impl End {
    /// Returns the start of the box, and its distances between rows and slices. A distance of 0 means no gaps.
    fn side(&self, shape: &Shape) -> Result<Side, Code> {
        if self.kind == CU_MEMORYTYPE_ARRAY {
            return arrays::get(self.array.addr())?.side(self.offset, shape);
        }
        let pitch = if self.pitch == 0 { shape.width } else { self.pitch };
        let rows = if self.height == 0 { shape.height } else { self.height };
        let fits = |needed: u64, given: u64, count: u64| needed <= given || count <= 1;
        let [x, y, z] = self.offset;
        let end_x = x.checked_add(shape.width).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if !fits(end_x, pitch, shape.height.max(shape.depth)) || !fits(shape.height, rows, shape.depth) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let base = if self.kind == CU_MEMORYTYPE_HOST { self.host } else { self.device };
        let place = || {
            let slice = pitch.checked_mul(rows)?;
            let offset = x.checked_add(y.checked_mul(pitch)?)?.checked_add(z.checked_mul(slice)?)?;
            Some(Side { address: base.checked_add(offset)?, pitch, slice })
        };
        place().ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}

fn boxed(stream: CUstream, default: DefaultStream, copy: &BoxCopy, timing: Timing) -> Result<(), Code> {
    run(stream, default, copy.copying()?, timing)
}

/// Copies a box between any two kinds of memory, in the order of a stream.
///
/// # Errors
/// Those of [`describe_3d`], and of the copy.
pub fn box_anywhere(stream: CUstream, default: DefaultStream, copy: &CUDA_MEMCPY3D_PEER) -> Result<(), Code> {
    boxed(stream, default, &of_3d(copy)?, Asynchronous)
}

/// Converts CUDA's description of a box copy.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`, or `CUDA_ERROR_INVALID_HANDLE` if a handle is not that of an array.
pub fn describe_3d(copy: &CUDA_MEMCPY3D_PEER) -> Result<Copying, Code> {
    of_3d(copy)?.copying()
}

/// Converts a copy back to CUDA's description, the opposite of [`describe_3d`].
pub fn box_of(copying: &Copying) -> CUDA_MEMCPY3D_PEER {
    let end = |&(side, place): &(Side, Place)| BoxEnd {
        kind: match place {
            Place::Host => CU_MEMORYTYPE_HOST,
            Place::Device | Place::Mirror => CU_MEMORYTYPE_DEVICE,
            Place::Unified => CU_MEMORYTYPE_UNIFIED,
        },
        address: side.address,
        pitch: side.pitch,
        slice: side.slice,
    };
    let Shape { width, height, depth } = copying.shape;
    CUDA_MEMCPY3D_PEER::between(&end(&copying.to), &end(&copying.from), [width, height, depth])
}

impl BoxCopy {
    fn copying(&self) -> Result<Copying, Code> {
        const HOST: u32 = CU_MEMORYTYPE_HOST;
        const DEVICE: u32 = CU_MEMORYTYPE_DEVICE;
        const UNIFIED: u32 = CU_MEMORYTYPE_UNIFIED;
        let place = |kind| match kind {
            HOST => Ok(Place::Host),
            DEVICE | CU_MEMORYTYPE_ARRAY => Ok(Place::Device),
            UNIFIED => Ok(Place::Unified),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        };
        let end = |end: &End| Ok::<_, Code>((end.side(&self.shape)?, place(end.kind)?));
        Ok(Copying { to: end(&self.to)?, from: end(&self.from)?, shape: self.shape })
    }
}
