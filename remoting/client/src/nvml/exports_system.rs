//! The entry points `nvmlInit`, `nvmlShutdown` and `nvmlSystem*`.

use std::ffi::{c_char, c_int, c_uint};

use driverapi::nvml::*;

use super::guard::{nvml_exports, write, write_text};
use super::library;

nvml_exports! {
    fn nvmlInit() { library::init() }
    fn nvmlInit_v2() { library::init() }
    // The flags suppress two errors, missing GPUs and a failed attach. Neither is an error here.
    fn nvmlInitWithFlags(_flags: c_uint) { library::init() }
    fn nvmlShutdown() { library::shutdown() }

    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) {
        write_text(version, length, &library::current()?.driver_release)
    }
    fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) {
        let library = library::current()?;
        write_text(version, length, &format!("{}.{}", library.driver_version / 1000, library.driver_release))
    }
    fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) { write(version, library::current()?.driver_version) }
    fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) { write(version, library::current()?.driver_version) }
    fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) {
        let found = library::current()?.process_name(pid)?;
        let room = (length as usize).saturating_sub(1);
        let fits = found.char_indices().map(|(i, c)| i + c.len_utf8()).take_while(|end| *end <= room).last();
        write_text(name, length, &found[..fits.unwrap_or(0)])
    }
}

/// Returns the text for a code.
///
/// # Safety
/// This function has no conditions. It is only exported to C.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    error_string(result).as_ptr()
}
