//! The entry points for sharing memory and events between processes of a lease. Processes exchange handles of 64 bytes.
//!
//! <https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html>, `cuIpc*`.

use crate::Code;
use crate::boundary::write;
use crate::copies::peer;
use crate::devices::Device;
use crate::devices::memory::{Place, find_allocation};
use crate::devices::ticket::{Kind, Ticket};
use crate::devices::{self, context};
use crate::exports;
use crate::graphs::graph::GRAPHS;
use crate::objects::{event, shared_event};
use crate::program::log;
use driverapi::errors::*;
use driverapi::types::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle};
use std::ffi::c_uint;
use std::ptr::without_provenance_mut;

/// The only flag that CUDA defines. It is mandatory.
const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

fn ticket_of(place: &Place, device: &Device) -> Ticket {
    let Place { token, slab_size, offset, size } = *place;
    Ticket { kind: Kind::Allocation, token, device: device.info.uuid, numbers: [offset, size, slab_size] }
}

exports! {
    fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) {
        context::current()?;
        GRAPHS.check_call()?;
        if handle.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (device, _) = find_allocation(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let reserved = ticket_of(&device.memory.export(address)?, device).encode();
        write(handle, CUipcMemHandle { reserved })
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
        let (token, device) = (shared_event::export(&event)?, event.live.device.info.uuid);
        let reserved = Ticket { kind: Kind::Event, token, device, numbers: [0; 3] }.encode();
        write(handle, CUipcEventHandle { reserved })
    }

    fn cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle) {
        let live = context::current()?;
        GRAPHS.check_call()?;
        if event.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let ticket = Ticket::decode(Kind::Event, &handle.reserved);
        let ticket = ticket.filter(|ticket| ticket.device == live.device.info.uuid).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        write(event, without_provenance_mut(shared_event::import(ticket.token)?.handle))
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
    let ticket = Ticket::decode(Kind::Allocation, &handle.reserved).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    let [offset, size, slab_size] = ticket.numbers;
    let place = Place { token: ticket.token, slab_size, offset, size };
    match devices::all()?.iter().find(|device| device.info.uuid == ticket.device) {
        Some(device) => device.memory.import(&live, device, &place),
        None => {
            log::error(
                "cuIpcOpenMemHandle: the memory lies on no GPU that this process sees: only processes of one share (one \
                 `remotegpu run`, or the pods of one claim) can give each other memory",
            );
            Err(CUDA_ERROR_INVALID_HANDLE)
        }
    }
}
