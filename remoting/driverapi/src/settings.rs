//! CUDA's own environment variables, with the same meaning for the client and the software GPU. Variables that only
//! tune the driver (`CUDA_DEVICE_MAX_CONNECTIONS`) do not change a program's results and are ignored.

use crate::constants::{CU_MODULE_EAGER_LOADING, CU_MODULE_LAZY_LOADING, CUmoduleLoadingMode};
use std::env;
use std::sync::OnceLock;

/// Whether a launch blocks until its kernel ends (`CUDA_LAUNCH_BLOCKING`). The variable is read once, because every
/// launch calls this function.
pub fn launch_blocking() -> bool {
    static BLOCKING: OnceLock<bool> = OnceLock::new();
    *BLOCKING.get_or_init(|| env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|value| is_on(&value)))
}

/// Whether the value is a number other than 0.
fn is_on(value: &str) -> bool {
    value.trim().parse::<i64>().is_ok_and(|number| number != 0)
}

/// Returns the result of `cuModuleGetLoadingMode`.
pub fn module_loading() -> CUmoduleLoadingMode {
    match env::var("CUDA_MODULE_LOADING").as_deref() {
        Ok("EAGER") => CU_MODULE_EAGER_LOADING,
        _ => CU_MODULE_LAZY_LOADING,
    }
}

/// Whether kernels are loaded with their module.
pub fn loads_eagerly() -> bool {
    module_loading() == CU_MODULE_EAGER_LOADING
}

pub const DEVICE_ORDER: &str = "CUDA_DEVICE_ORDER";

/// Sorts devices by their PCI addresses if `order`, the value of `DEVICE_ORDER`, requires it. NVML uses the same order
/// as CUDA.
pub fn put_in_order<T, Address: Ord>(order: Option<&str>, devices: &mut [T], address: impl FnMut(&T) -> Address) {
    if order == Some("PCI_BUS_ID") {
        devices.sort_by_key(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_other_than_0_switch_on() {
        let on = ["1", " 2", "-1", "0", "", "yes"].map(is_on);
        assert_eq!(on, [true, true, true, false, false, false]);
    }
}
