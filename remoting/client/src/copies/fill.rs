//! Fills (`cuMemset*`) of device memory, and of the program's page-locked memory, which unified addressing allows.
//!
//! CUDA's page "API synchronization behavior" (docs.nvidia.com/cuda/cuda-driver-api/api-sync-behavior.html) says which
//! fills are complete when the call returns: fills of page-locked memory without "Async" in their name, and no others.

use crate::Code;
use crate::copies::copy::{self, Shape, Side, Timing};
use crate::devices::context::Live;
use crate::memory::{host, mapped};
use crate::objects::stream::Target;
use crate::session::HostBox;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use driverapi::types::CUDA_MEMSET_NODE_PARAMS;
use protocol::{Writer, function};

/// The memory that a fill writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    Device,
    /// Page-locked memory with a mirror, which has this address on the device.
    Mirrored(u64),
    Host(HostBox),
}

/// Finds the memory that a fill writes.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for elements whose size is not 1, 2 or 4, for misaligned memory, and for memory of the
/// program that is not page-locked.
pub fn find(live: &Live, fill: &CUDA_MEMSET_NODE_PARAMS) -> Result<Found, Code> {
    let size = u64::from(fill.elementSize);
    if !matches!(size, 1 | 2 | 4) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let width = (fill.width as u64).checked_mul(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let shape = Shape { width, height: fill.height as u64, depth: 1 };
    let to = Side { address: fill.dst, pitch: fill.pitch as u64, slice: 0 };
    let found = find_box(live, to, shape)?;
    let aligned = to.address.is_multiple_of(size) && (shape.height < 2 || to.pitch.is_multiple_of(size));
    if aligned { Ok(found) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

fn find_box(live: &Live, to: Side, shape: Shape) -> Result<Found, Code> {
    if shape.is_empty() {
        return Ok(Found::Device);
    }
    if shape.height > 1 && to.pitch < shape.width {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let Some(range) = host::find(to.address as usize) else {
        let found =
            if mapped::is_alias(&live.session, to.address) { Found::Mirrored(to.address) } else { Found::Device };
        return copy::check_written(live, to, shape).map(|()| found);
    };
    let span = to.span(&shape).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if span > (range.start + range.size) as u64 - to.address {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mirror = mapped::device_span(&live.session, to.address, span);
    Ok(mirror.map_or_else(|| Found::Host(to.host(&shape)), Found::Mirrored))
}

/// Returns the number of the worker's function that fills several rows, and its arguments.
pub fn in_rows(fill: &CUDA_MEMSET_NODE_PARAMS) -> (u32, Writer) {
    let mut w = Writer::new();
    w.put(&fill.dst).put(&(fill.pitch as u64));
    let number = match fill.elementSize {
        1 => function::CU_MEMSET_D2D8_ASYNC,
        2 => function::CU_MEMSET_D2D16_ASYNC,
        _ => function::CU_MEMSET_D2D32_ASYNC,
    };
    put_element(&mut w, fill);
    w.put(&(fill.width as u64)).put(&(fill.height as u64));
    (number, w)
}

/// Like [`in_rows`], for a fill of one row.
fn in_a_row(fill: &CUDA_MEMSET_NODE_PARAMS) -> (u32, Writer) {
    let mut w = Writer::new();
    w.put(&fill.dst);
    let number = match fill.elementSize {
        1 => function::CU_MEMSET_D8_ASYNC,
        2 => function::CU_MEMSET_D16_ASYNC,
        _ => function::CU_MEMSET_D32_ASYNC,
    };
    put_element(&mut w, fill);
    w.put(&(fill.width as u64));
    (number, w)
}

fn put_element(w: &mut Writer, fill: &CUDA_MEMSET_NODE_PARAMS) {
    w.raw(&fill.value.to_le_bytes()[..fill.elementSize as usize]);
}

/// Fills in the order of a stream.
///
/// # Errors
/// Those of [`find`], the code of failed earlier work if the fill waits for it, or the session's sticky error.
pub fn run(target: &Target, fill: &CUDA_MEMSET_NODE_PARAMS, timing: Timing) -> Result<(), Code> {
    let session = &target.live.session;
    let found = find(&target.live, fill)?;
    let waits = found != Found::Device && timing == Timing::Synchronous;
    let dst = match found {
        Found::Device => fill.dst,
        Found::Mirrored(mirror) => mirror,
        Found::Host(memory) => {
            let element = fill.value.to_le_bytes()[..fill.elementSize as usize].to_vec();
            return on_host(target, memory, element, waits);
        }
    };
    let fill = CUDA_MEMSET_NODE_PARAMS { dst, ..*fill };
    let (number, arguments) = if fill.height == 1 { in_a_row(&fill) } else { in_rows(&fill) };
    let body = |w: &mut Writer| {
        w.raw(&arguments.bytes);
    };
    session.post_work(number, target.stream_id, body)?;
    if !waits {
        return Ok(());
    }
    session.synchronise_stream(target.stream_id)?;
    mapped::after_wait(session)
}

fn on_host(target: &Target, memory: HostBox, element: Vec<u8>, waits: bool) -> Result<(), Code> {
    let session = &target.live.session;
    if !waits {
        let write = move |code| {
            if code == 0 {
                memory.fill(&element);
            }
        };
        return session.post_callback(target.stream_id, Box::new(write));
    }
    session.synchronise_stream(target.stream_id)?;
    memory.fill(&element);
    mapped::after_wait(session)
}
