//! The entry points for memory and events that several processes share, `cuIpc*`.

use super::entry::entry_points;
use super::handles::handle;
use super::streams;
use crate::driver::{current, driver};
use crate::ffi::{Out, R};
use crate::memory::process_handle::{Kind, ProcessHandle};
use crate::process::handles;
use crate::streams::shared_event::SharedEvent;
use crate::streams::stream::Event;
use driverapi::errors::*;
use driverapi::types::*;
use std::ffi::c_uint;
use std::sync::Arc;

/// The only flag of `cuIpcOpenMemHandle`. CUDA requires it.
const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

fn open(address: Out<CUdeviceptr>, reserved: &CUipcMemHandle, flags: c_uint) -> R {
    let context = current()?;
    let driver = driver()?;
    driver.graphs.check_call()?;
    let address = address.required()?;
    if flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let named = ProcessHandle::decode(Kind::Memory, &reserved.reserved)?;
    address.set(driver.import_memory(&context, &named)?)
}

entry_points! {
    fn cuIpcGetMemHandle(out: Out<CUipcMemHandle>, address: CUdeviceptr) {
        current()?;
        let driver = driver()?;
        driver.graphs.check_call()?;
        let out = out.required()?;
        out.set(CUipcMemHandle { reserved: driver.export_memory(address)?.encode() })
    }

    fn cuIpcOpenMemHandle | cuIpcOpenMemHandle_v2(address: Out<CUdeviceptr>, named: CUipcMemHandle, flags: c_uint) {
        open(address, &named, flags)
    }

    fn cuIpcCloseMemHandle(address: CUdeviceptr) {
        current()?;
        let driver = driver()?;
        driver.graphs.check_call()?;
        driver.close_imported(address)
    }

    fn cuIpcGetEventHandle(out: Out<CUipcEventHandle>, which: CUevent) {
        let event = streams::event(which)?;
        let driver = driver()?;
        driver.graphs.check_call()?;
        let out = out.required()?;
        let shared = event.shared.as_ref().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let context = driver.contexts.get(event.context).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        let named = ProcessHandle::of(Kind::Event, context.device.uuid, shared.file(), 0)?;
        out.set(CUipcEventHandle { reserved: named.encode() })
    }

    fn cuIpcOpenEventHandle(out: Out<CUevent>, named: CUipcEventHandle) {
        let context = current()?;
        let driver = driver()?;
        driver.graphs.check_call()?;
        let out = out.required()?;
        let named = ProcessHandle::decode(Kind::Event, &named.reserved)?;
        if named.device.bytes != context.device.uuid.bytes {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let shared = SharedEvent::import(named.open()?.into())?;
        let number = handles::mint();
        let event = Event::new(number, context.id, false, Some(Arc::new(shared)));
        driver.events.insert(number, Arc::new(event));
        out.set(handle(number))
    }
}
