//! Memory and events that processes of one lease give each other by handles of 64 bytes.
//!
//! <https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html>, `cuIpc*`.

use crate::Code;
use crate::boundary::write;
use crate::graph::GRAPHS;
use crate::log::{self, Level};
use crate::memory::{Place, find_allocation};
use crate::{context, devices, event, exports, peer, shared_event};
use driverapi::errors::*;
use driverapi::types::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle};
use std::ffi::c_uint;
use std::ptr::without_provenance_mut;

/// The one flag there is, and it must be given.
const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

const MAGIC: [u8; 8] = *b"rgpuipc1";
const EVENT_MAGIC: [u8; 8] = *b"rgpuevt1";

/// `place` on the device of this UUID.
fn encode(place: &Place, device: &[u8; 16]) -> CUipcMemHandle {
    let mut reserved = [0; 64];
    let numbers = [place.offset, place.size, place.slab_size].map(u64::to_le_bytes);
    let parts: [&[u8]; 6] = [&MAGIC, &place.token, device, &numbers[0], &numbers[1], &numbers[2]];
    for (to, byte) in reserved.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *byte;
    }
    CUipcMemHandle { reserved }
}

fn decode(handle: &CUipcMemHandle) -> Option<(Place, [u8; 16])> {
    let (magic, rest) = handle.reserved.split_first_chunk::<8>()?;
    let (token, rest) = rest.split_first_chunk()?;
    let (device, rest) = rest.split_first_chunk()?;
    let mut numbers = rest.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let (offset, size, slab_size) = (numbers.next()?, numbers.next()?, numbers.next()?);
    (*magic == MAGIC).then_some((Place { token: *token, slab_size, offset, size }, *device))
}

exports! {
    fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) {
        context::current()?;
        GRAPHS.check_call()?;
        if handle.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (device, _) = find_allocation(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        write(handle, encode(&device.memory.export(address)?, &device.info.uuid))
    }

    fn cuIpcOpenMemHandle(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) {
        write(address, open(address, &handle, flags)?)
    }

    fn cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) {
        write(address, open(address, &handle, flags)?)
    }

    fn cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent) {
        let event = event::get(event)?;
        GRAPHS.check_call()?;
        if handle.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut reserved = [0; 64];
        reserved[..8].copy_from_slice(&EVENT_MAGIC);
        reserved[8..24].copy_from_slice(&shared_event::export(&event)?);
        reserved[24..40].copy_from_slice(&event.live.device.info.uuid);
        write(handle, CUipcEventHandle { reserved })
    }

    fn cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle) {
        let live = context::current()?;
        GRAPHS.check_call()?;
        if event.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (magic, rest) = handle.reserved.split_at(8);
        let (token, rest) = rest.split_first_chunk().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if magic != EVENT_MAGIC || rest[..16] != live.device.info.uuid {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        write(event, without_provenance_mut(shared_event::import(*token)?.handle))
    }

    fn cuIpcCloseMemHandle(address: CUdeviceptr) {
        context::current()?;
        GRAPHS.check_call()?;
        let (device, piece) = find_allocation(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        peer::wait_until_read(piece.address, piece.address + piece.size);
        device.memory.close_imported(address)
    }
}

fn open(address: *mut CUdeviceptr, handle: &CUipcMemHandle, flags: c_uint) -> Result<CUdeviceptr, Code> {
    let live = context::current()?;
    GRAPHS.check_call()?;
    if address.is_null() || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let (place, uuid) = decode(handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    match devices::all()?.iter().find(|device| device.info.uuid == uuid) {
        Some(device) if std::ptr::eq(device, live.device) => live.device.memory.import(&live, &place),
        Some(device) => {
            let ordinals = (device.ordinal, live.device.ordinal);
            log::line(
                Level::Error,
                &format!(
                    "cuIpcOpenMemHandle: the memory lies on device {}, the current context is one of device {}, and remotegpu \
                     gives no GPU access to another one's memory: make device {} current first",
                    ordinals.0, ordinals.1, ordinals.0
                ),
            );
            Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
        }
        None => {
            log::line(
                Level::Error,
                "cuIpcOpenMemHandle: the memory lies on no GPU that this process sees: only processes of one share (one \
                 `remotegpu run`, or the pods of one claim) can give each other memory",
            );
            Err(CUDA_ERROR_INVALID_HANDLE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_names_its_place() {
        let place = Place { token: [7; 16], slab_size: 4 << 20, offset: 512, size: 100 };
        assert_eq!(decode(&encode(&place, &[9; 16])), Some((place, [9; 16])));
    }

    #[test]
    fn other_bytes_are_no_handle() {
        assert_eq!(decode(&CUipcMemHandle { reserved: [0; 64] }), None);
    }
}
