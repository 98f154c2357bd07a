//! The entry points for the driver itself: start, version, error texts, addresses of its functions, private tables.

use crate::Code;
use crate::boundary::{LEGACY, PER_THREAD, input, text, write, write_optional};
use crate::devices::{self, context};
use crate::objects::stream;
use crate::program::log::{self, Level};
use crate::program::{process, sys};
use crate::{early_exports, module};
use driverapi::constants::CUDA_VERSION;
use driverapi::errors::*;
use driverapi::export_tables::{self, Host};
use driverapi::integrity::DeviceIdentity;
use driverapi::proc_address::{self, PROC_TABLE};
use driverapi::types::{CUcontext, CUdevice, CUfunction, CUmodule, CUstream, CUuuid};
use driverapi::{refusals, report};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::without_provenance_mut;

early_exports! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        process::check_alive()?;
        report::started();
        devices::initialise()
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        if version.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        write(version, devices::driver_version()?)
    }

    fn cuGetErrorString(error: Code, string: *mut *const c_char) {
        write_name(string, error_string(error))
    }

    fn cuGetErrorName(error: Code, string: *mut *const c_char) {
        write_name(string, error_name(error))
    }

    fn cuGetProcAddress(name: *const c_char, address: *mut *mut c_void, version: c_int, flags: u64) {
        find_function(name, address, version, flags, std::ptr::null_mut())
    }

    fn cuGetProcAddress_v2(
        name: *const c_char,
        address: *mut *mut c_void,
        version: c_int,
        flags: u64,
        status: *mut c_uint,
    ) {
        find_function(name, address, version, flags, status)
    }

    fn cuGetExportTable(table: *mut *const c_void, uuid: *const CUuuid) {
        let uuid = input(uuid)?;
        match export_tables::find(&uuid, &Tables) {
            Some(found) => write(table, found),
            None => {
                report::unknown_table(&uuid);
                if let Some(line) = report::said_of_table(&uuid) {
                    log::error(line);
                }
                write_optional(table, std::ptr::null());
                Err(CUDA_ERROR_NOT_FOUND)
            }
        }
    }
}

/// Stores the name of an error code. An unknown code has no name, so null is stored.
unsafe fn write_name(to: *mut *const c_char, name: Option<&'static CStr>) -> Result<(), Code> {
    // SAFETY: as the caller of the exported function vouches.
    unsafe {
        write(to, name.map_or(std::ptr::null(), CStr::as_ptr))?;
    }
    name.map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
}

unsafe fn find_function(
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_uint,
) -> Result<(), Code> {
    // SAFETY: as the caller of the exported function vouches.
    unsafe {
        let name = text(name)?.to_str().map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let version = u32::try_from(version).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        // The version is the newest that this library supports, because programs call this before any appliance is
        // reached.
        let answer = proc_address::resolve(PROC_TABLE, CUDA_VERSION, name, version, flags, &sys::own_function);
        if answer.is_unknown() {
            log::line(Level::Debug, &format!("cuGetProcAddress: there is no {name} for CUDA {version}"));
            report::unknown_function(name, version);
        }
        write(address, answer.address.cast_mut())?;
        write_optional(status, answer.status);
        match answer.result {
            // If the program passes no pointer for the status, a missing function is an error.
            0 if answer.address.is_null() && status.is_null() => Err(CUDA_ERROR_NOT_FOUND),
            0 => Ok(()),
            code => Err(code),
        }
    }
}

/// The services that NVIDIA's libraries call through the private tables.
struct Tables;

impl Host for Tables {
    fn driver_version(&self) -> u32 {
        devices::driver_version().unwrap_or(0) as u32
    }

    fn devices(&self) -> Vec<DeviceIdentity> {
        let identity = |device: &devices::Device| {
            let [pci_domain, pci_bus, pci_device] = device.info.pci;
            DeviceIdentity { uuid: CUuuid { bytes: device.info.uuid }, pci_domain, pci_bus, pci_device }
        };
        devices::all().map(|all| all.iter().map(identity).collect()).unwrap_or_default()
    }

    fn primary_context(&self, device: CUdevice) -> Result<CUcontext, Code> {
        Ok(without_provenance_mut(devices::get(device)?.primary.handle))
    }

    fn current_context(&self) -> CUcontext {
        without_provenance_mut(context::current_handle())
    }

    fn context_id(&self, context: CUcontext) -> Result<u64, Code> {
        super::context::id_of(context)
    }

    fn stream_id(&self, handle: CUstream, per_thread: bool) -> Result<u64, Code> {
        Ok(stream::find(handle, if per_thread { PER_THREAD } else { LEGACY })?.stream_id)
    }

    fn load_module(&self, image: *const c_void) -> Result<CUmodule, Code> {
        let mut module = without_provenance_mut(0);
        // SAFETY: the pointer is to a variable of this function; the caller vouches for the image.
        match unsafe { super::module::cuModuleLoadData(&raw mut module, image) } {
            CUDA_SUCCESS => Ok(module),
            code => Err(code),
        }
    }

    fn module_functions(&self, handle: CUmodule) -> Result<Vec<CUfunction>, Code> {
        let module = module::get(handle)?;
        let function = |index| Ok(without_provenance_mut(module.function(index)?.handle));
        (0..module.kernels().len() as u32).map(function).collect()
    }

    fn missing_slot(&self, table: u32, slot: usize) {
        report::refused_slot(table, slot);
        if let Some(line) = refusals::said_of_slot(table, slot) {
            log::error(&line);
        }
    }
}
