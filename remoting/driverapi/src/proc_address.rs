//! Chooses the symbol that `cuGetProcAddress` returns for a base name, a CUDA version and a kind of default stream.

use crate::constants::{
    CU_GET_PROC_ADDRESS_DEFAULT, CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
    CU_GET_PROC_ADDRESS_SUCCESS, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
    CUdriverProcAddressQueryResult,
};
use crate::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS};
use crate::types::CUresult;
use std::ffi::c_void;
use std::ptr;

pub use crate::proc_table_generated::PROC_TABLE;

/// One ABI version of a driver function: `base` is exported as `symbol` for programs built for CUDA `since` or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcEntry {
    pub base: &'static str,
    pub since: u32,
    pub symbol: &'static str,
    /// The symbol of the variant with a default stream for each host thread (`_ptds`, `_ptsz`), if there is one.
    pub per_thread: Option<&'static str>,
    /// The reason for which the function is not provided, or `None`.
    pub refused: Option<&'static str>,
}

/// A function that returns the address of an exported symbol, or null.
pub type Lookup<'a> = &'a dyn Fn(&str) -> *const c_void;

/// The result of a query: the call's result code, the address and the status of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub result: CUresult,
    pub address: *const c_void,
    pub status: CUdriverProcAddressQueryResult,
}

impl Answer {
    fn without_address(result: CUresult, status: CUdriverProcAddressQueryResult) -> Self {
        Self { result, address: ptr::null(), status }
    }

    /// Whether the driver does not have the name. Callers count and log such names.
    pub fn is_unknown(&self) -> bool {
        self.result == CUDA_SUCCESS && self.status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
    }
}

/// Implements `cuGetProcAddress` as its documentation describes it. `table` must be sorted by base, then by version.
pub fn resolve(
    table: &[ProcEntry],
    driver_version: u32,
    name: &str,
    version: u32,
    flags: u64,
    lookup: Lookup,
) -> Answer {
    let per_thread = match u32::try_from(flags) {
        Ok(CU_GET_PROC_ADDRESS_DEFAULT | CU_GET_PROC_ADDRESS_LEGACY_STREAM) => false,
        Ok(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) => true,
        _ => return Answer::without_address(CUDA_ERROR_INVALID_VALUE, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
    };
    if version > driver_version {
        return Answer::without_address(CUDA_ERROR_INVALID_VALUE, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    }
    let variants = variants_of(table, name);
    if variants.is_empty() {
        return Answer::without_address(CUDA_SUCCESS, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    }
    let Some(entry) = variants.iter().rev().find(|entry| entry.since <= version) else {
        return Answer::without_address(CUDA_SUCCESS, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    };
    let thread_variant = entry.per_thread.filter(|_| per_thread).map_or(ptr::null(), lookup);
    let address = if thread_variant.is_null() { lookup(entry.symbol) } else { thread_variant };
    let status = if address.is_null() { CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND } else { CU_GET_PROC_ADDRESS_SUCCESS };
    Answer { result: CUDA_SUCCESS, address, status }
}

fn variants_of<'a>(table: &'a [ProcEntry], name: &str) -> &'a [ProcEntry] {
    let start = table.partition_point(|entry| entry.base < name);
    let length = table[start..].iter().take_while(|entry| entry.base == name).count();
    &table[start..start + length]
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: u32 = 13_000;

    /// Returns the symbol's length as its address. The symbols in these tests have different lengths.
    fn everything(symbol: &str) -> *const c_void {
        ptr::without_provenance(symbol.len())
    }

    fn symbol_for(name: &str, version: u32, flags: u64) -> Option<&'static str> {
        let answer = resolve(PROC_TABLE, DRIVER, name, version, flags, &everything);
        let symbols = variants_of(PROC_TABLE, name).iter().flat_map(|entry| [Some(entry.symbol), entry.per_thread]);
        symbols.flatten().find(|symbol| everything(symbol) == answer.address)
    }

    #[test]
    fn table_is_sorted_by_name_and_version() {
        assert!(PROC_TABLE.windows(2).all(|pair| (pair[0].base, pair[0].since) < (pair[1].base, pair[1].since)));
    }

    #[test]
    fn newest_abi_up_to_the_asked_version() {
        assert_eq!(symbol_for("cuMemAlloc", 2000, 0), Some("cuMemAlloc"));
        assert_eq!(symbol_for("cuMemAlloc", 3010, 0), Some("cuMemAlloc"));
        assert_eq!(symbol_for("cuMemAlloc", 3020, 0), Some("cuMemAlloc_v2"));
        assert_eq!(symbol_for("cuMemAlloc", 13000, 0), Some("cuMemAlloc_v2"));
        assert_eq!(symbol_for("cuCtxSynchronize", 12090, 0), Some("cuCtxSynchronize"));
        assert_eq!(symbol_for("cuCtxSynchronize", 13000, 0), Some("cuCtxSynchronize_v2"));
        assert_eq!(symbol_for("cuDeviceGetUuid", 11040, 0), Some("cuDeviceGetUuid_v2"));
        assert_eq!(symbol_for("cuGetProcAddress", 11030, 0), Some("cuGetProcAddress"));
        assert_eq!(symbol_for("cuGetProcAddress", 12000, 0), Some("cuGetProcAddress_v2"));
    }

    #[test]
    fn per_thread_variants_only_on_request_and_where_they_exist() {
        assert_eq!(symbol_for("cuMemcpyHtoD", 7000, 1), Some("cuMemcpyHtoD_v2"));
        assert_eq!(symbol_for("cuMemcpyHtoD", 7000, 2), Some("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(symbol_for("cuLaunchKernel", 7000, 2), Some("cuLaunchKernel_ptsz"));
        assert_eq!(symbol_for("cuInit", 12000, 2), Some("cuInit"));
    }

    #[test]
    fn per_thread_variant_that_is_not_exported_falls_back_to_the_legacy_one() {
        let legacy_only = |symbol: &str| if symbol.ends_with("_ptsz") { ptr::null() } else { everything(symbol) };
        let answer = resolve(PROC_TABLE, DRIVER, "cuLaunchKernel", 7000, 2, &legacy_only);
        assert_eq!(answer.address, everything("cuLaunchKernel"));
    }

    #[test]
    fn unknown_and_too_old_are_told_apart() {
        let unknown = resolve(PROC_TABLE, DRIVER, "cuTimeTravel", 12000, 0, &everything);
        assert!(unknown.is_unknown() && unknown.address.is_null());
        let empty = resolve(PROC_TABLE, DRIVER, "", 12000, 0, &everything);
        assert!(empty.is_unknown());
        let old = resolve(PROC_TABLE, DRIVER, "cuGetProcAddress", 11020, 0, &everything);
        assert_eq!((old.result, old.status), (CUDA_SUCCESS, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT));
        let missing = resolve(PROC_TABLE, DRIVER, "cuInit", 12000, 0, &|_| ptr::null());
        assert!(missing.is_unknown());
    }

    #[test]
    fn bad_flags_and_versions_beyond_the_driver_are_invalid() {
        for flags in [3, u64::MAX] {
            let answer = resolve(PROC_TABLE, DRIVER, "cuInit", 12000, flags, &everything);
            assert_eq!((answer.result, answer.address), (CUDA_ERROR_INVALID_VALUE, ptr::null()));
        }
        let newer = resolve(PROC_TABLE, DRIVER, "cuInit", DRIVER + 10, 0, &everything);
        assert_eq!((newer.result, newer.address), (CUDA_ERROR_INVALID_VALUE, ptr::null()));
    }
}
