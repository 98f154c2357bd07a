//! Result codes of the CUDA driver interface, each with its name and a description.
//!
//! `cuGetErrorName` must return exactly these names. The descriptions are our own.

use crate::types::CUresult;
use std::ffi::CStr;

macro_rules! results {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(pub const $name: CUresult = $code;)*

        /// All known codes with name and short description, sorted by code.
        pub const RESULTS: &[(CUresult, &CStr, &CStr)] = &[
            $(($code, const_name(concat!(stringify!($name), "\0")), const_name(concat!($text, "\0")))),*
        ];
    };
}

const fn const_name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends with its only NUL"),
    }
}

fn find(code: CUresult) -> Option<&'static (CUresult, &'static CStr, &'static CStr)> {
    let index = RESULTS.binary_search_by_key(&code, |entry| entry.0).ok()?;
    RESULTS.get(index)
}

/// Returns the result of `cuGetErrorName`. For `None` that function returns CUDA_ERROR_INVALID_VALUE.
pub fn error_name(code: CUresult) -> Option<&'static CStr> {
    find(code).map(|entry| entry.1)
}

/// Returns the result of `cuGetErrorString`. For `None` that function returns CUDA_ERROR_INVALID_VALUE.
pub fn error_string(code: CUresult) -> Option<&'static CStr> {
    find(code).map(|entry| entry.2)
}

/// Whether an error destroys the context in which it happens. Every later call in that context returns the same code.
pub fn is_sticky(code: CUresult) -> bool {
    matches!(
        code,
        CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_CONTAINED
            | CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_TENSOR_MEMORY_LEAK
            | CUDA_ERROR_EXTERNAL_DEVICE
    )
}

results! {
    CUDA_SUCCESS = 0, "no error";
    CUDA_ERROR_INVALID_VALUE = 1, "invalid argument";
    CUDA_ERROR_OUT_OF_MEMORY = 2, "out of memory";
    CUDA_ERROR_NOT_INITIALIZED = 3, "the driver is not initialized; call cuInit first";
    CUDA_ERROR_DEINITIALIZED = 4, "the driver is shutting down";
    CUDA_ERROR_PROFILER_DISABLED = 5, "the profiler is disabled";
    CUDA_ERROR_PROFILER_NOT_INITIALIZED = 6, "the profiler is not initialized";
    CUDA_ERROR_PROFILER_ALREADY_STARTED = 7, "the profiler was already started";
    CUDA_ERROR_PROFILER_ALREADY_STOPPED = 8, "the profiler was already stopped";
    CUDA_ERROR_STUB_LIBRARY = 34, "the driver library in use is only a stub for linking";
    CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER = 36, "the call needs a newer driver";
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46, "the device is busy or unavailable";
    CUDA_ERROR_MULTICAST_RESOURCE_FULL = 47, "no multicast resources are left for the given devices";
    CUDA_ERROR_NO_DEVICE = 100, "no CUDA device is available";
    CUDA_ERROR_INVALID_DEVICE = 101, "invalid device ordinal";
    CUDA_ERROR_DEVICE_NOT_LICENSED = 102, "the device has no valid licence";
    CUDA_ERROR_INVALID_IMAGE = 200, "the device image is invalid";
    CUDA_ERROR_INVALID_CONTEXT = 201, "invalid device context";
    CUDA_ERROR_CONTEXT_ALREADY_CURRENT = 202, "the context is already current";
    CUDA_ERROR_MAP_FAILED = 205, "mapping failed";
    CUDA_ERROR_UNMAP_FAILED = 206, "unmapping failed";
    CUDA_ERROR_ARRAY_IS_MAPPED = 207, "the array is mapped";
    CUDA_ERROR_ALREADY_MAPPED = 208, "the resource is already mapped";
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209, "no kernel image in the module fits this device";
    CUDA_ERROR_ALREADY_ACQUIRED = 210, "the resource is already acquired";
    CUDA_ERROR_NOT_MAPPED = 211, "the resource is not mapped";
    CUDA_ERROR_NOT_MAPPED_AS_ARRAY = 212, "the resource is not mapped as an array";
    CUDA_ERROR_NOT_MAPPED_AS_POINTER = 213, "the resource is not mapped as a pointer";
    CUDA_ERROR_ECC_UNCORRECTABLE = 214, "an uncorrectable memory error occurred";
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215, "the device does not support this limit";
    CUDA_ERROR_CONTEXT_ALREADY_IN_USE = 216, "the context is in use by another thread";
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217, "peer access between these two devices is not supported";
    CUDA_ERROR_INVALID_PTX = 218, "the PTX does not compile";
    CUDA_ERROR_INVALID_GRAPHICS_CONTEXT = 219, "invalid graphics context";
    CUDA_ERROR_NVLINK_UNCORRECTABLE = 220, "an uncorrectable NVLink error occurred";
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221, "the PTX compiler was not found";
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222, "the PTX version is newer than the driver's compiler";
    CUDA_ERROR_JIT_COMPILATION_DISABLED = 223, "compiling PTX is disabled";
    CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY = 224, "the device does not support this execution affinity";
    CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC = 225, "the code synchronizes on the device, which is not supported";
    CUDA_ERROR_CONTAINED = 226, "an error was contained to this process";
    CUDA_ERROR_INSUFFICIENT_LOADER_VERSION = 227, "the module needs a newer loader";
    CUDA_ERROR_INVALID_SOURCE = 300, "invalid device source";
    CUDA_ERROR_FILE_NOT_FOUND = 301, "file not found";
    CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "a symbol of a shared object was not found";
    CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303, "a shared object failed to initialize";
    CUDA_ERROR_OPERATING_SYSTEM = 304, "a call to the operating system failed";
    CUDA_ERROR_INVALID_HANDLE = 400, "invalid resource handle";
    CUDA_ERROR_ILLEGAL_STATE = 401, "the resource is not in a state that allows the operation";
    CUDA_ERROR_LOSSY_QUERY = 402, "the query would lose information in this form";
    CUDA_ERROR_NOT_FOUND = 500, "named symbol not found";
    CUDA_ERROR_NOT_READY = 600, "the work is not finished yet";
    CUDA_ERROR_ILLEGAL_ADDRESS = 700, "a kernel accessed an illegal address";
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    CUDA_ERROR_LAUNCH_TIMEOUT = 702, "the kernel ran too long and was ended";
    CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING = 703, "the launch uses incompatible texturing";
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705, "peer access is not enabled";
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708, "the device's primary context is already active";
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709, "the context is destroyed";
    CUDA_ERROR_ASSERT = 710, "an assertion failed in a kernel";
    CUDA_ERROR_TOO_MANY_PEERS = 711, "no peer mapping resources are left";
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, "part of the host memory is already registered";
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713, "the pointer is not registered host memory";
    CUDA_ERROR_HARDWARE_STACK_ERROR = 714, "a kernel corrupted its stack";
    CUDA_ERROR_ILLEGAL_INSTRUCTION = 715, "a kernel met an illegal instruction";
    CUDA_ERROR_MISALIGNED_ADDRESS = 716, "a kernel accessed a misaligned address";
    CUDA_ERROR_INVALID_ADDRESS_SPACE = 717, "an instruction met an address of the wrong space";
    CUDA_ERROR_INVALID_PC = 718, "a kernel jumped to an invalid address";
    CUDA_ERROR_LAUNCH_FAILED = 719, "a kernel failed";
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720, "a cooperative launch has more blocks than fit the device";
    CUDA_ERROR_TENSOR_MEMORY_LEAK = 721, "a block ended without freeing its tensor memory";
    CUDA_ERROR_NOT_PERMITTED = 800, "the operation is not permitted";
    CUDA_ERROR_NOT_SUPPORTED = 801, "the operation is not supported";
    CUDA_ERROR_SYSTEM_NOT_READY = 802, "the system is not ready to start CUDA work";
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803, "display driver and CUDA driver do not fit together";
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "forward compatibility is not supported on this hardware";
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805, "the MPS server cannot be reached";
    CUDA_ERROR_MPS_RPC_FAILURE = 806, "a call to the MPS server failed";
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807, "the MPS server takes no new clients";
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808, "the MPS server has as many clients as it can take";
    CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED = 809, "the MPS server has as many connections as it can take";
    CUDA_ERROR_MPS_CLIENT_TERMINATED = 810, "the MPS client was ended";
    CUDA_ERROR_CDP_NOT_SUPPORTED = 811, "launching from the device is not supported";
    CUDA_ERROR_CDP_VERSION_MISMATCH = 812, "versions of dynamic parallelism do not fit together";
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "the operation is not allowed while a stream captures";
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901, "an earlier error invalidated the capture";
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902, "the operation would merge two independent captures";
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903, "the capture was not begun in this stream";
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904, "a forked stream was not joined before the capture ended";
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905, "the operation would depend on work outside the capture";
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906, "the operation would use the legacy stream implicitly";
    CUDA_ERROR_CAPTURED_EVENT = 907, "the event was last recorded in a capturing stream";
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908, "the capture was begun by another thread";
    CUDA_ERROR_TIMEOUT = 909, "a wait timed out";
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910, "the executable graph cannot be updated this way";
    CUDA_ERROR_EXTERNAL_DEVICE = 911, "an error happened in a device outside CUDA";
    CUDA_ERROR_INVALID_CLUSTER_SIZE = 912, "the cluster size is invalid";
    CUDA_ERROR_FUNCTION_NOT_LOADED = 913, "the function is not loaded";
    CUDA_ERROR_INVALID_RESOURCE_TYPE = 914, "the resource has the wrong type";
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = 915, "the resource's configuration is invalid";
    CUDA_ERROR_KEY_ROTATION = 916, "a key rotation is under way";
    CUDA_ERROR_STREAM_DETACHED = 917, "the stream is detached from its context";
    CUDA_ERROR_GRAPH_RECAPTURE_FAILURE = 918, "the graph cannot be captured again this way";
    CUDA_ERROR_FABRIC_NOT_READY = 919, "the fabric is not ready";
    CUDA_ERROR_UNKNOWN = 999, "unknown error";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_and_named() {
        assert!(RESULTS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(error_name(700), Some(c"CUDA_ERROR_ILLEGAL_ADDRESS"));
        assert_eq!(error_name(0), Some(c"CUDA_SUCCESS"));
        assert_eq!(error_string(2), Some(c"out of memory"));
        assert_eq!(error_name(77), None);
        assert_eq!(error_string(u32::MAX), None);
    }

    #[test]
    fn only_errors_of_the_context_are_sticky() {
        assert!(is_sticky(CUDA_ERROR_ILLEGAL_ADDRESS));
        assert!(is_sticky(CUDA_ERROR_ASSERT));
        assert!(!is_sticky(CUDA_ERROR_OUT_OF_MEMORY));
        assert!(!is_sticky(CUDA_ERROR_INVALID_HANDLE));
        assert!(!is_sticky(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
    }
}
