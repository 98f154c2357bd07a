//! The entry points for attributes of kernels and functions.

use super::entry::entry_points;
use super::handles::{handle, id};
use super::libraries::kernel;
use crate::driver::{current, driver};
use crate::engine::{Kernel, Program, Space};
use crate::ffi::{Out, R};
use crate::kernels::code::{Function, Settings};
use crate::kernels::launch::{max_dynamic_shared, max_threads};
use driverapi::attributes::*;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns a function of the current context. `which` may be the handle of a kernel, and then
/// means the kernel's function in that context.
pub fn function(which: CUfunction) -> R<Arc<Function>> {
    driver()?.function_or_kernel(id(which), &*current()?)
}

fn attribute(which: CUfunction_attribute, program: &Program, kernel: &Kernel, settings: &Settings) -> R<c_int> {
    let constants = || program.globals().iter().filter(|g| g.space == Space::Const).map(|g| g.size).sum::<u64>();
    Ok(match which {
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => max_threads(kernel) as c_int,
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => kernel.static_shared as c_int,
        CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES => constants() as c_int,
        CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => kernel.local_bytes as c_int,
        CU_FUNC_ATTRIBUTE_NUM_REGS => settings.registers(kernel) as c_int,
        // Both are the architecture of the kernel's own PTX. Units that are linked with the kernel may have another
        // architecture, such as the library for dynamic parallelism. CUB compares the value with the architectures that
        // the program was compiled for.
        CU_FUNC_ATTRIBUTE_PTX_VERSION | CU_FUNC_ATTRIBUTE_BINARY_VERSION => kernel.architecture as c_int,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => max_dynamic_shared(kernel, settings) as c_int,
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => settings.carveout.load(Ordering::Relaxed),
        CU_FUNC_ATTRIBUTE_CACHE_MODE_CA => 0,
        CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET => kernel.required_cluster.is_some().into(),
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH..=CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH => {
            let axis = (which - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH) as usize;
            let set = settings.cluster.required[axis].load(Ordering::Relaxed);
            kernel.required_cluster.map_or(set, |required| required[axis] as c_int)
        }
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => settings.cluster.non_portable.load(Ordering::Relaxed),
        CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => settings.cluster.scheduling.load(Ordering::Relaxed),
        LAUNCH_REQUIRED_BLOCK_WIDTH..=LAUNCH_REQUIRED_BLOCK_DEPTH => {
            let required = kernel.reqntid.ok_or(CUDA_ERROR_INVALID_VALUE)?;
            required[(which - LAUNCH_REQUIRED_BLOCK_WIDTH) as usize] as c_int
        }
        LAUNCH_LARGEST_CLUSTER => kernel.max_cluster.ok_or(CUDA_ERROR_INVALID_VALUE)? as c_int,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

fn set_attribute(which: CUfunction_attribute, value: c_int, kernel: &Kernel, settings: &Settings) -> R {
    let model = driver()?.model();
    let most = model.shared_per_block_optin.saturating_sub(kernel.static_shared) as c_int;
    let clusters = model.portable_cluster > 1;
    match which {
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES if (0..=most).contains(&value) => {
            settings.dynamic_shared.store(value, Ordering::Relaxed);
        }
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => {
            settings.carveout.store(value, Ordering::Relaxed);
        }
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH..=CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH
            if clusters && kernel.required_cluster.is_some() =>
        {
            return Err(CUDA_ERROR_NOT_PERMITTED);
        }
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH..=CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH
            if clusters && (0..=model.largest_cluster as c_int).contains(&value) =>
        {
            let axis = (which - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH) as usize;
            settings.cluster.required[axis].store(value, Ordering::Relaxed);
        }
        // CUDA's flag is accepted even without clusters. cuTENSOR expects a newer GPU and fails if this call fails.
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED if (0..=1).contains(&value) => {
            settings.cluster.non_portable.store(value, Ordering::Relaxed);
        }
        // The values mean default, spread and load balancing.
        CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE if (0..=2).contains(&value) => {
            settings.cluster.scheduling.store(value, Ordering::Relaxed);
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

fn set_cache_config(config: CUfunc_cache, settings: &Settings) -> R {
    if config > CU_FUNC_CACHE_PREFER_EQUAL {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    settings.cache_config.store(config, Ordering::Relaxed);
    Ok(())
}

fn param_info(kernel: &Kernel, index: usize, offset: Out<usize>, size: Out<usize>) -> R {
    let param = kernel.params.get(index).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    size.set_if_wanted(param.size as usize);
    offset.set(param.offset as usize)
}

/// Returns a name as a C string that is never freed, because programs keep the pointer while the library is loaded.
fn lasting_name(name: &str) -> R<*const c_char> {
    static NAMES: Mutex<Vec<CString>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.iter().find(|known| known.as_bytes() == name.as_bytes()) {
        return Ok(known.as_ptr());
    }
    let new = CString::new(name).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let address = new.as_ptr();
    names.push(new);
    Ok(address)
}

entry_points! {
    fn cuFuncGetAttribute(value: Out<c_int>, which: CUfunction_attribute, of: CUfunction) {
        let function = function(of)?;
        value.set(attribute(which, function.module.program(), function.kernel(), &function.settings)?)
    }

    fn cuFuncSetAttribute(of: CUfunction, which: CUfunction_attribute, value: c_int) {
        let function = function(of)?;
        set_attribute(which, value, function.kernel(), &function.settings)
    }

    fn cuFuncSetCacheConfig(of: CUfunction, config: CUfunc_cache) {
        set_cache_config(config, &function(of)?.settings)
    }

    fn cuFuncSetSharedMemConfig(of: CUfunction, config: CUsharedconfig) {
        function(of)?;
        if config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    fn cuFuncGetModule(module: Out<CUmodule>, of: CUfunction) {
        module.set(handle(function(of)?.module.id))
    }

    fn cuFuncGetName(name: Out<*const c_char>, of: CUfunction) {
        name.set(lasting_name(&function(of)?.kernel().name)?)
    }

    fn cuFuncGetParamInfo(of: CUfunction, index: usize, offset: Out<usize>, size: Out<usize>) {
        param_info(function(of)?.kernel(), index, offset, size)
    }

    fn cuFuncGetParamCount(of: CUfunction, count: Out<usize>) {
        count.set(function(of)?.kernel().params.len())
    }

    fn cuFuncIsLoaded(state: Out<CUfunctionLoadingState>, of: CUfunction) {
        let loaded = function(of)?.is_loaded();
        state.set(if loaded { CU_FUNCTION_LOADING_STATE_LOADED } else { CU_FUNCTION_LOADING_STATE_UNLOADED })
    }

    fn cuFuncLoad(of: CUfunction) {
        function(of)?.load(&*current()?)
    }

    fn cuKernelGetFunction(out: Out<CUfunction>, of: CUkernel) {
        let driver = driver()?;
        let context = current()?;
        let kernel = kernel(of)?;
        let function = driver.function_or_kernel(kernel.id, &context)?;
        function.load(&context)?;
        out.set(handle(function.id))
    }

    fn cuKernelGetLibrary(out: Out<CUlibrary>, of: CUkernel) {
        out.set(handle(kernel(of)?.library.id))
    }

    fn cuKernelGetAttribute(value: Out<c_int>, which: CUfunction_attribute, of: CUkernel, device: CUdevice) {
        driver()?.device(device)?;
        let kernel = kernel(of)?;
        value.set(attribute(which, kernel.library.program()?, kernel.kernel()?, kernel.settings()?)?)
    }

    fn cuKernelSetAttribute(which: CUfunction_attribute, value: c_int, of: CUkernel, device: CUdevice) {
        driver()?.device(device)?;
        let kernel = kernel(of)?;
        set_attribute(which, value, kernel.kernel()?, kernel.settings()?)
    }

    fn cuKernelSetCacheConfig(of: CUkernel, config: CUfunc_cache, device: CUdevice) {
        driver()?.device(device)?;
        set_cache_config(config, kernel(of)?.settings()?)
    }

    fn cuKernelGetName(name: Out<*const c_char>, of: CUkernel) {
        name.set(lasting_name(&kernel(of)?.kernel()?.name)?)
    }

    fn cuKernelGetParamInfo(of: CUkernel, index: usize, offset: Out<usize>, size: Out<usize>) {
        param_info(kernel(of)?.kernel()?, index, offset, size)
    }

    fn cuKernelGetParamCount(of: CUkernel, count: Out<usize>) {
        count.set(kernel(of)?.kernel()?.params.len())
    }
}
