//! The entry points for modules and their functions.

use super::entry::entry_points;
use super::handles::{handle, id};
use crate::driver::{current, driver};
use crate::ffi::{In, Out, R, Text};
use crate::kernels::code::{Module, find_kernel, report_or_log};
use crate::kernels::jit::JitOptions;
use crate::kernels::source::Source;
use driverapi::attributes::*;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::settings;
use driverapi::types::*;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

fn load(out: Out<CUmodule>, source: R<Source>, options: &JitOptions) -> R {
    let context = current()?;
    let out = out.required()?;
    let module = driver()?.load_module(&context, &source?, options.max_registers).map_err(|error| {
        report_or_log(&error, options);
        error.code
    })?;
    options.write_nothing();
    out.set(handle(module.id))
}

pub fn module(which: CUmodule) -> R<Arc<Module>> {
    driver()?.modules.get(id(which)).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

entry_points! {
    fn cuModuleLoad(out: Out<CUmodule>, path: Text) {
        current()?;
        load(out, Source::read_file(path.get()?, driver()?.model()), &JitOptions::default())
    }

    fn cuModuleLoadData | cuModuleLoadFatBinary(out: Out<CUmodule>, image: *const c_void) {
        current()?;
        load(out, Source::read(image, driver()?.model()), &JitOptions::default())
    }

    fn cuModuleLoadDataEx(
        out: Out<CUmodule>, image: *const c_void, count: c_uint, options: In<CUjit_option>, values: Out<usize>,
    ) {
        current()?;
        load(out, Source::read(image, driver()?.model()), &JitOptions::read(count, options, values)?)
    }

    fn cuModuleUnload(which: CUmodule) {
        current()?;
        driver()?.unload(&*module(which)?);
        Ok(())
    }

    /// Returns the loading mode from the settings. Images of libraries are compiled when something in them is first
    /// used.
    fn cuModuleGetLoadingMode(mode: Out<CUmoduleLoadingMode>) {
        driver()?;
        mode.set(settings::module_loading())
    }

    fn cuModuleGetFunction(out: Out<CUfunction>, which: CUmodule, name: Text) {
        let driver = driver()?;
        let context = current()?;
        let module = module(which)?;
        let function = driver.function(&module, find_kernel(module.program(), name.get()?)?)?;
        function.load(&context)?;
        out.set(handle(function.id))
    }

    fn cuModuleGetFunctionCount(count: Out<c_uint>, which: CUmodule) {
        count.set(module(which)?.program().kernels().len() as c_uint)
    }

    fn cuModuleEnumerateFunctions(out: Out<CUfunction>, count: c_uint, which: CUmodule) {
        let driver = driver()?;
        let module = module(which)?;
        let wanted = module.program().kernels().len().min(count as usize);
        let functions: R<Vec<CUfunction>> =
            (0..wanted).map(|index| Ok(handle(driver.function(&module, index)?.id))).collect();
        out.set_all(functions?)
    }

    fn cuModuleGetGlobal_v2(address: Out<CUdeviceptr>, bytes: Out<usize>, which: CUmodule, name: Text) {
        current()?;
        let (at, size) = module(which)?.global(name.get()?)?;
        address.set_if_wanted(at);
        bytes.set_if_wanted(size as usize);
        Ok(())
    }
}
