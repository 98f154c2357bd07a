//! The entry points that initialise NVML and find devices.

use super::entry::{N, USERS, card, initialised, nvml_entry_points, put, put_text};
use super::hardware;
use crate::driver;
use crate::ffi::{Out, Text};
use crate::process::config::parse_pci;
use driverapi::nvml::*;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

/// The software GPU's own version. Tools expect numbers in version strings.
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn start() -> N {
    USERS.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

fn find(out: Out<nvmlDevice_t>, wanted: impl Fn(&hardware::Card) -> bool) -> N {
    initialised()?;
    let card = hardware::cards().into_iter().find(wanted).ok_or(NVML_ERROR_NOT_FOUND)?;
    put(out, card.handle())
}

fn process_name(pid: c_uint) -> N<String> {
    let name = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NVML_ERROR_NOT_FOUND)?;
    let program = name.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(program).into_owned())
}

nvml_entry_points! {
    fn nvmlInit | nvmlInit_v2() {
        start()
    }

    fn nvmlInitWithFlags(_flags: c_uint) {
        start()
    }

    fn nvmlShutdown() {
        let less = |users: usize| users.checked_sub(1);
        let before = USERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        before.map(drop).map_err(|_| NVML_ERROR_UNINITIALIZED)
    }

    fn nvmlSystemGetDriverVersion(text: Out<c_char>, size: c_uint) {
        initialised()?;
        put_text(text, VERSION, size)
    }

    fn nvmlSystemGetNVMLVersion(text: Out<c_char>, size: c_uint) {
        initialised()?;
        put_text(text, VERSION, size)
    }

    /// Both names work before initialisation. In NVML, the first one does too.
    fn nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) {
        put(version, driver::config().driver_version)
    }

    fn nvmlSystemGetProcessName(pid: c_uint, text: Out<c_char>, size: c_uint) {
        initialised()?;
        let name = process_name(pid)?;
        text.set_text(&name, size as usize).map_err(|_| NVML_ERROR_INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetCount | nvmlDeviceGetCount_v2(count: Out<c_uint>) {
        initialised()?;
        put(count, hardware::cards().len() as c_uint)
    }

    fn nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: Out<nvmlDevice_t>) {
        find(out, |card| card.index == index as usize).map_err(|code| match code {
            NVML_ERROR_NOT_FOUND => NVML_ERROR_INVALID_ARGUMENT,
            other => other,
        })
    }

    fn nvmlDeviceGetHandleByUUID(uuid: Text, out: Out<nvmlDevice_t>) {
        let wanted = uuid.get().map_err(|_| NVML_ERROR_INVALID_ARGUMENT)?;
        find(out, |card| card.uuid() == wanted)
    }

    fn nvmlDeviceGetHandleByPciBusId | nvmlDeviceGetHandleByPciBusId_v2(bus_id: Text, out: Out<nvmlDevice_t>) {
        let wanted = parse_pci(bus_id.get().map_err(|_| NVML_ERROR_INVALID_ARGUMENT)?);
        find(out, |card| Some(card.pci) == wanted)
    }

    fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: Out<c_uint>) {
        put(index, card(device)?.index as c_uint)
    }
}

/// Returns the text of an error code. This is not an ordinary entry point, because it returns a pointer.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    error_string(code).as_ptr()
}
