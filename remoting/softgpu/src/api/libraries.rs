//! The entry points for libraries. A library is an image that is loaded once for all contexts.

use super::entry::entry_points;
use super::handles::{handle, id};
use crate::driver::{current, driver};
use crate::ffi::{In, Out, R, Text};
use crate::kernels::code::{KernelHandle, Library, find_kernel, report_or_log};
use crate::kernels::jit::JitOptions;
use crate::kernels::source::Source;
use crate::process::handles;
use driverapi::attributes::*;
use driverapi::caller::is_refused_image;
use driverapi::errors::*;
use driverapi::types::*;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

fn load(out: Out<CUlibrary>, source: R<Source>, options: &JitOptions) -> R {
    let driver = driver()?;
    let out = out.required()?;
    let source = source?;
    let (number, at_once) = (handles::mint(), source.is_text());
    let library = Library::new(number, source, options.max_registers);
    // PTX text comes from a compiler that has just run, and its caller may read the log, so compile it now. Fat
    // binaries are registered by the hundred, and an image that is never used may have no code for this device. So
    // loading a fat binary must not fail.
    if at_once {
        library.compile().map_err(|error| {
            report_or_log(&error, options);
            error.code
        })?;
    }
    options.write_nothing();
    driver.libraries.insert(number, Arc::new(library));
    out.set(handle(number))
}

fn library(which: CUlibrary) -> R<Arc<Library>> {
    driver()?.libraries.get(id(which)).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

pub fn kernel(which: CUkernel) -> R<Arc<KernelHandle>> {
    driver()?.kernels.get(id(which)).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

entry_points! {
    fn cuLibraryLoadData(
        out: Out<CUlibrary>, image: *const c_void, jit_options: In<CUjit_option>, jit_values: Out<usize>,
        jit_count: c_uint, _options: In<CUlibraryOption>, _values: In<usize>, _count: c_uint,
    ) {
        driver()?;
        if is_refused_image(image.addr()) {
            return super::refused::nccl();
        }
        load(out, Source::read(image, driver()?.model()), &JitOptions::read(jit_count, jit_options, jit_values)?)
    }

    fn cuLibraryLoadFromFile(
        out: Out<CUlibrary>, path: Text, jit_options: In<CUjit_option>, jit_values: Out<usize>, jit_count: c_uint,
        _options: In<CUlibraryOption>, _values: In<usize>, _count: c_uint,
    ) {
        driver()?;
        load(out, Source::read_file(path.get()?, driver()?.model()), &JitOptions::read(jit_count, jit_options, jit_values)?)
    }

    fn cuLibraryUnload(which: CUlibrary) {
        driver()?.unload_library(&*library(which)?);
        Ok(())
    }

    fn cuLibraryGetKernel(out: Out<CUkernel>, which: CUlibrary, name: Text) {
        let driver = driver()?;
        let library = library(which)?;
        let index = find_kernel(library.program()?, name.get()?)?;
        out.set(handle(library.kernel_handle(driver, index)))
    }

    fn cuLibraryGetKernelCount(count: Out<c_uint>, which: CUlibrary) {
        count.set(library(which)?.program()?.kernels().len() as c_uint)
    }

    fn cuLibraryEnumerateKernels(out: Out<CUkernel>, count: c_uint, which: CUlibrary) {
        let driver = driver()?;
        let library = library(which)?;
        let wanted = library.program()?.kernels().len().min(count as usize);
        out.set_all((0..wanted).map(|index| handle(library.kernel_handle(driver, index))))
    }

    fn cuLibraryGetModule(out: Out<CUmodule>, which: CUlibrary) {
        let context = current()?;
        out.set(handle(library(which)?.module(driver()?, &context)?.id))
    }

    fn cuLibraryGetGlobal(address: Out<CUdeviceptr>, bytes: Out<usize>, which: CUlibrary, name: Text) {
        let context = current()?;
        let (at, size) = library(which)?.module(driver()?, &context)?.global(name.get()?)?;
        address.set_if_wanted(at);
        bytes.set_if_wanted(size as usize);
        Ok(())
    }

    fn cuLibraryGetManaged(address: Out<CUdeviceptr>, bytes: Out<usize>, which: CUlibrary, name: Text) {
        let driver = driver()?;
        // CUDA's runtime calls this before it has a context.
        let context = current().or_else(|_| driver.any_context())?;
        let (at, size) = library(which)?.module(driver, &context)?.managed(name.get()?)?;
        address.set_if_wanted(at);
        bytes.set_if_wanted(size as usize);
        Ok(())
    }

    fn cuLibraryGetUnifiedFunction(_function: Out<*mut c_void>, which: CUlibrary, name: Text) {
        library(which)?;
        name.get()?;
        Err(CUDA_ERROR_NOT_FOUND)
    }
}
