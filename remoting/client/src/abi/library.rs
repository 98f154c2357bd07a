//! The entry points for libraries and kernels.

use crate::Code;
use crate::abi::module::{check_settable, parameter};
use crate::boundary::{inputs, refused, text, write, write_optional};
use crate::devices::{self, context};
use crate::exports;
use crate::module::{Image, JitOptions};
use crate::objects::library;
use driverapi::attributes::CU_LIBRARY_NUM_OPTIONS;
use driverapi::caller::{SEVERAL_RANKS, is_refused_image};
use driverapi::errors::*;
use driverapi::types::{CUdevice, CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUmodule};
use std::ffi::{OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::without_provenance_mut;

exports! {
    fn cuLibraryLoadData(
        library: *mut CUlibrary,
        code: *const c_void,
        jit_options: *mut c_uint,
        jit_values: *mut *mut c_void,
        jit_count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
        count: c_uint,
    ) {
        check_options(options, count)?;
        if is_refused_image(code.addr()) {
            return refused(SEVERAL_RANKS);
        }
        let jit = JitOptions::read(jit_count, jit_options, jit_values)?;
        load(library, Image::from_pointer(code)?, &jit)
    }

    fn cuLibraryLoadFromFile(
        library: *mut CUlibrary,
        path: *const c_char,
        jit_options: *mut c_uint,
        jit_values: *mut *mut c_void,
        jit_count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
        count: c_uint,
    ) {
        check_options(options, count)?;
        let jit = JitOptions::read(jit_count, jit_options, jit_values)?;
        let path = Path::new(OsStr::from_bytes(text(path)?.to_bytes()));
        load(library, Image::from_file(path)?, &jit)
    }

    fn cuLibraryUnload(library: CUlibrary) { library::unload(library) }

    fn cuLibraryGetKernel(kernel: *mut CUkernel, library: CUlibrary, name: *const c_char) {
        let library = library::get(library)?;
        let found = library.kernel_named(&text(name)?.to_string_lossy())?;
        write(kernel, without_provenance_mut(found.handle))
    }

    fn cuLibraryGetKernelCount(count: *mut c_uint, library: CUlibrary) {
        write(count, library::get(library)?.all_kernels()?.len() as c_uint)
    }

    fn cuLibraryEnumerateKernels(kernels: *mut CUkernel, count: c_uint, library: CUlibrary) {
        let library = library::get(library)?;
        if kernels.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for (index, kernel) in library.all_kernels()?.iter().take(count as usize).enumerate() {
            write(kernels.add(index), without_provenance_mut(kernel.handle))?;
        }
        Ok(())
    }

    fn cuLibraryGetModule(module: *mut CUmodule, library: CUlibrary) {
        let library = library::get(library)?;
        let found = library.module_in(&context::current()?)?;
        write(module, without_provenance_mut(found.handle))
    }

    fn cuLibraryGetGlobal(address: *mut CUdeviceptr, size: *mut usize, library: CUlibrary, name: *const c_char) {
        let library = library::get(library)?;
        let module = library.module_in(&context::current()?)?;
        let symbol = module.global(&text(name)?.to_string_lossy())?;
        write_optional(address, symbol.address);
        write_optional(size, symbol.size as usize);
        Ok(())
    }

    fn cuLibraryGetManaged(address: *mut CUdeviceptr, size: *mut usize, library: CUlibrary, name: *const c_char) {
        let library = library::get(library)?;
        // CUDA's runtime calls this before it has a context.
        let symbol = library.managed(&context::any()?, &text(name)?.to_string_lossy())?;
        write_optional(address, symbol.address);
        write_optional(size, symbol.size as usize);
        Ok(())
    }

    fn cuLibraryGetUnifiedFunction(function: *mut *mut c_void, library: CUlibrary, name: *const c_char) {
        library::get(library)?;
        text(name)?;
        Err(CUDA_ERROR_NOT_FOUND)
    }

    fn cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel) {
        let kernel = library::kernel(kernel)?;
        let found = kernel.function_in(&context::current()?)?;
        found.description()?;
        write(function, without_provenance_mut(found.handle))
    }

    fn cuKernelGetLibrary(library: *mut CUlibrary, kernel: CUkernel) {
        write(library, without_provenance_mut(library::kernel(kernel)?.library))
    }

    fn cuKernelGetAttribute(value: *mut c_int, attribute: c_uint, kernel: CUkernel, device: CUdevice) {
        let kernel = library::kernel(kernel)?;
        write(value, kernel.attribute(attribute, devices::get(device)?.ordinal)?)
    }

    fn cuKernelSetAttribute(attribute: c_uint, value: c_int, kernel: CUkernel, device: CUdevice) {
        let kernel = library::kernel(kernel)?;
        check_settable(attribute)?;
        kernel.set_attribute(attribute, value, devices::get(device)?.ordinal)
    }

    fn cuKernelSetCacheConfig(kernel: CUkernel, config: c_uint, device: CUdevice) {
        library::kernel(kernel)?;
        devices::get(device)?;
        // The driver may ignore this preference, and no call reports whether it did.
        if config > 3 { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    fn cuKernelGetName(name: *mut *const c_char, kernel: CUkernel) {
        write(name, library::kernel(kernel)?.c_name.as_ptr())
    }

    fn cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: *mut usize, size: *mut usize) {
        parameter(&library::kernel(kernel)?.any_function()?.description()?.info, index, offset, size)
    }

    fn cuKernelGetParamCount(kernel: CUkernel, count: *mut usize) {
        write(count, library::kernel(kernel)?.any_function()?.description()?.info.params.len())
    }
}

unsafe fn check_options(options: *mut c_uint, count: c_uint) -> Result<(), Code> {
    // SAFETY: as the caller of the exported function vouches.
    let names = unsafe { inputs(options, count as usize)? };
    // The options only concern the storage of the program's image, which is copied here.
    if names.iter().all(|name| *name < CU_LIBRARY_NUM_OPTIONS) { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

unsafe fn load(to: *mut CUlibrary, image: Image, options: &JitOptions) -> Result<(), Code> {
    if to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let library = library::load(image, options)?;
    // SAFETY: as the caller of the exported function vouches.
    unsafe { write(to, without_provenance_mut(library.handle)) }
}
