//! The entry points that look up functions, private tables and the names of errors.

use super::default_stream::DefaultStream;
use super::entry::entry_points;
use super::handles::handle;
use crate::driver::{self, config, driver};
use crate::ffi::{In, Out, R, Text};
use crate::process::signals::own_symbol;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::export_tables::{self, Host};
use driverapi::integrity::DeviceIdentity;
use driverapi::proc_address::{PROC_TABLE, resolve};
use driverapi::types::*;
use driverapi::{refusals, report};
use std::ffi::{c_char, c_int, c_void};

fn find(
    name: Text,
    out: Out<*const c_void>,
    version: c_int,
    flags: u64,
    status: Out<CUdriverProcAddressQueryResult>,
) -> R {
    let out = out.required()?;
    let version = u32::try_from(version).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    // A program that was built for a newer CUDA gets the newest function of this driver.
    let newest = config().driver_version.unsigned_abs();
    let name = name.get()?;
    let answer = resolve(PROC_TABLE, newest, name, version.min(newest), flags, &own_symbol);
    if answer.is_unknown() {
        report::unknown_function(name, version);
    }
    out.set(answer.address)?;
    status.set_if_wanted(answer.status);
    match answer.result {
        CUDA_SUCCESS if answer.address.is_null() && status.is_null() => Err(CUDA_ERROR_NOT_FOUND),
        CUDA_SUCCESS => Ok(()),
        code => Err(code),
    }
}

entry_points! {
    fn cuGetProcAddress(name: Text, out: Out<*const c_void>, version: c_int, flags: u64) {
        find(name, out, version, flags, Out::at(std::ptr::null_mut()))
    }

    fn cuGetProcAddress_v2(
        name: Text, out: Out<*const c_void>, version: c_int, flags: u64, status: Out<CUdriverProcAddressQueryResult>,
    ) {
        find(name, out, version, flags, status)
    }

    fn cuGetExportTable(out: Out<*const c_void>, table: In<CUuuid>) {
        let out = out.required()?;
        let uuid = table.get()?;
        let Some(found) = export_tables::find(&uuid, &SoftwareHost) else {
            report::unknown_table(&uuid);
            if let Some(line) = report::said_of_table(&uuid) {
                crate::ffi::say(line);
            }
            return Err(CUDA_ERROR_NOT_FOUND);
        };
        out.set(found)
    }

    fn cuGetErrorName(code: CUresult, text: Out<*const c_char>) {
        let name = error_name(code);
        text.set(name.map_or(std::ptr::null(), |name| name.as_ptr()))?;
        name.map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn cuGetErrorString(code: CUresult, text: Out<*const c_char>) {
        let sentence = error_string(code);
        text.set(sentence.map_or(std::ptr::null(), |sentence| sentence.as_ptr()))?;
        sentence.map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}

/// The callbacks through which the private tables use this driver.
struct SoftwareHost;

impl Host for SoftwareHost {
    fn driver_version(&self) -> u32 {
        config().driver_version.unsigned_abs()
    }

    fn devices(&self) -> Vec<DeviceIdentity> {
        let Ok(driver) = driver() else { return Vec::new() };
        let identity = |device: &std::sync::Arc<crate::process::device::Device>| DeviceIdentity {
            uuid: device.uuid,
            pci_domain: device.pci.domain,
            pci_bus: device.pci.bus,
            pci_device: device.pci.device,
        };
        driver.devices.iter().map(identity).collect()
    }

    fn primary_context(&self, device: CUdevice) -> R<CUcontext> {
        Ok(handle(driver()?.device(device)?.primary))
    }

    fn current_context(&self) -> CUcontext {
        handle(driver::current_id().unwrap_or(0))
    }

    fn context_id(&self, context: CUcontext) -> R<u64> {
        super::contexts::id_of(context)
    }

    fn stream_id(&self, stream: CUstream, per_thread: bool) -> R<u64> {
        let default = if per_thread { DefaultStream::PerThread } else { DefaultStream::Legacy };
        Ok(default.resolve(stream)?.number())
    }

    fn load_module(&self, image: *const c_void) -> R<CUmodule> {
        let mut module = std::ptr::null_mut();
        match super::modules::cuModuleLoadData(Out::at(&raw mut module), image) {
            CUDA_SUCCESS => Ok(module),
            code => Err(code),
        }
    }

    fn module_functions(&self, module: CUmodule) -> R<Vec<CUfunction>> {
        let module = super::modules::module(module)?;
        (0..module.program().kernels().len()).map(|index| Ok(handle(driver()?.function(&module, index)?.id))).collect()
    }

    fn missing_slot(&self, table: u32, slot: usize) {
        report::refused_slot(table, slot);
        if let Some(line) = refusals::said_of_slot(table, slot) {
            crate::ffi::say(&line);
        }
    }
}
