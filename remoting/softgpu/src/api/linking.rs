//! The entry points for the linker, `cuLink*`.

use super::entry::entry_points;
use super::handles::{handle, id};
use crate::driver::{current, driver};
use crate::engine::CompileError;
use crate::ffi::{self, In, Out, R, Text};
use crate::kernels::code::report_or_log;
use crate::kernels::jit::JitOptions;
use crate::kernels::link::Link;
use crate::kernels::source::Source;
use crate::process::handles;
use driverapi::attributes::*;
use driverapi::errors::*;
use driverapi::types::*;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, PoisonError};

fn link(which: CUlinkState) -> R<Arc<Link>> {
    driver()?.links.get(id(which)).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn fail(link: &Link, error: CompileError) -> u32 {
    report_or_log(&error, &link.options);
    error.code
}

fn add(which: CUlinkState, kind: CUjitInputType, bytes: &[u8]) -> R {
    let link = link(which)?;
    if kind >= CU_JIT_NUM_INPUT_TYPES {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let source = Source::from_bytes(bytes, driver()?.model())?;
    // Build tools often add libraries of device code such as cudadevrt. The engine provides the functions that programs
    // call from them.
    if kind == CU_JIT_INPUT_LIBRARY && source.is_empty() {
        return Ok(());
    }
    let units = source.into_units().map_err(|error| fail(&link, error))?;
    link.units.lock().unwrap_or_else(PoisonError::into_inner).extend(units);
    Ok(())
}

entry_points! {
    fn cuLinkCreate | cuLinkCreate_v2(
        count: c_uint, options: In<CUjit_option>, values: Out<usize>, out: Out<CUlinkState>,
    ) {
        let driver = driver()?;
        current()?;
        let out = out.required()?;
        let number = handles::mint();
        let link = Link::new(JitOptions::read(count, options, values)?);
        driver.links.insert(number, Arc::new(link));
        out.set(handle(number))
    }

    fn cuLinkAddData | cuLinkAddData_v2(
        which: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, _name: Text, _count: c_uint,
        _options: In<CUjit_option>, _values: Out<usize>,
    ) {
        add(which, kind, &ffi::bytes(data.cast_const().cast(), size)?)
    }

    fn cuLinkAddFile | cuLinkAddFile_v2(
        which: CUlinkState, kind: CUjitInputType, path: Text, _count: c_uint, _options: In<CUjit_option>,
        _values: Out<usize>,
    ) {
        add(which, kind, &std::fs::read(path.get()?).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?)
    }

    fn cuLinkComplete(which: CUlinkState, image: Out<*mut c_void>, size: Out<usize>) {
        let link = link(which)?;
        let bytes = link.complete().map_err(|error| fail(&link, error))?;
        link.options.write_nothing();
        size.set_if_wanted(bytes.len());
        image.set(bytes.as_ptr().cast_mut().cast())
    }

    fn cuLinkDestroy(which: CUlinkState) {
        driver()?.links.remove(id(which)).ok_or(CUDA_ERROR_INVALID_HANDLE).map(drop)
    }
}
