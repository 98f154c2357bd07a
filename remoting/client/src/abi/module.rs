//! The entry points for modules and functions.

use crate::Code;
use crate::boundary::{text, write, write_optional};
use crate::devices::context;
use crate::exports;
use crate::module::{self, Image, JitOptions, Module};
use crate::objects::library;
use driverapi::attributes::*;
use driverapi::constants::{CU_FUNCTION_LOADING_STATE_LOADED, CU_FUNCTION_LOADING_STATE_UNLOADED};
use driverapi::errors::*;
use driverapi::types::{CUdeviceptr, CUfunction, CUmodule};
use protocol::KernelInfo;
use std::ffi::{OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::without_provenance_mut;

exports! {
    fn cuModuleLoad(module: *mut CUmodule, path: *const c_char) {
        context::current()?;
        let path = Path::new(OsStr::from_bytes(text(path)?.to_bytes()));
        load(module, &Image::from_file(path)?, &JitOptions::default())
    }

    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) {
        context::current()?;
        load(module, &Image::from_pointer(image)?, &JitOptions::default())
    }

    fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
    ) {
        context::current()?;
        load(module, &Image::from_pointer(image)?, &JitOptions::read(count, options, values)?)
    }

    fn cuModuleLoadFatBinary(module: *mut CUmodule, image: *const c_void) {
        context::current()?;
        load(module, &Image::from_pointer(image)?, &JitOptions::default())
    }

    fn cuModuleUnload(module: CUmodule) { module::get(module)?.unload() }

    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) {
        let module = module::get(module)?;
        let found = module.function_named(&text(name)?.to_string_lossy())?;
        found.description()?;
        write(function, without_provenance_mut(found.handle))
    }

    fn cuModuleGetFunctionCount(count: *mut c_uint, module: CUmodule) {
        write(count, module::get(module)?.kernels().len() as c_uint)
    }

    fn cuModuleEnumerateFunctions(functions: *mut CUfunction, count: c_uint, module: CUmodule) {
        let module = module::get(module)?;
        if functions.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for index in 0..count.min(module.kernels().len() as c_uint) {
            let handle = without_provenance_mut(module.function(index)?.handle);
            write(functions.add(index as usize), handle)?;
        }
        Ok(())
    }

    fn cuModuleGetGlobal_v2(address: *mut CUdeviceptr, size: *mut usize, module: CUmodule, name: *const c_char) {
        let module = module::get(module)?;
        let symbol = module.global(&text(name)?.to_string_lossy())?;
        write_optional(address, symbol.address);
        write_optional(size, symbol.size as usize);
        Ok(())
    }

    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: CUfunction) {
        if value.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        write(value, library::function_or_kernel(function)?.attribute(attribute)?)
    }

    fn cuFuncSetAttribute(function: CUfunction, attribute: c_uint, value: c_int) {
        let function = library::function_or_kernel(function)?;
        check_settable(attribute)?;
        function.set_attribute(attribute, value)
    }

    fn cuFuncGetModule(module: *mut CUmodule, function: CUfunction) {
        write(module, without_provenance_mut(module::function(function)?.module.handle))
    }

    fn cuFuncGetName(name: *mut *const c_char, function: CUfunction) {
        write(name, library::function_or_kernel(function)?.c_name.as_ptr())
    }

    fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: *mut usize, size: *mut usize) {
        parameter(&library::function_or_kernel(function)?.description()?.info, index, offset, size)
    }

    fn cuFuncGetParamCount(function: CUfunction, count: *mut usize) {
        write(count, library::function_or_kernel(function)?.description()?.info.params.len())
    }

    fn cuFuncIsLoaded(state: *mut c_uint, function: CUfunction) {
        let loaded = library::function_or_kernel(function)?.is_loaded();
        write(state, if loaded { CU_FUNCTION_LOADING_STATE_LOADED } else { CU_FUNCTION_LOADING_STATE_UNLOADED })
    }

    fn cuFuncLoad(function: CUfunction) {
        library::function_or_kernel(function)?.description()?;
        Ok(())
    }
}

unsafe fn load(to: *mut CUmodule, image: &Image, options: &JitOptions) -> Result<(), Code> {
    if to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let module = Module::load(&context::current()?, image, options)?;
    // SAFETY: as the caller of the exported function vouches.
    unsafe { write(to, without_provenance_mut(module.handle)) }
}

/// Stores the offset and size of a parameter. `size` may be null.
///
/// # Safety
/// Same as for the exported functions that use this.
pub unsafe fn parameter(kernel: &KernelInfo, index: usize, offset: *mut usize, size: *mut usize) -> Result<(), Code> {
    let param = kernel.params.get(index).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: as the caller vouches.
    unsafe {
        write(offset, param.offset as usize)?;
        write_optional(size, param.size as usize);
    }
    Ok(())
}

/// Checks that an attribute can be set. The others only report decisions of the compiler.
pub fn check_settable(attribute: u32) -> Result<(), Code> {
    let settable = matches!(
        attribute,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            | CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            | CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
            | CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT
            | CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH
            | CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            | CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
    );
    if settable { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}
