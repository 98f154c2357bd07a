//! The device memory that a driver uses for the limits of a context.

use crate::attributes::*;

/// The default limits of a context. Their memory is included in the memory of every context.
pub const DEFAULT_STACK: u64 = 1 << 10;
pub const DEFAULT_PRINTF_FIFO: u64 = 1 << 20;
pub const DEFAULT_MALLOC_HEAP: u64 = 8 << 20;

/// Returns the bytes that a limit uses in addition to the default. `threads` is the number of threads that the device
/// runs at a time; each has a stack. `None` if only the driver can compute them.
pub fn taken(limit: CUlimit, value: u64, threads: u64) -> Option<u64> {
    match limit {
        CU_LIMIT_STACK_SIZE => Some(value.saturating_sub(DEFAULT_STACK).saturating_mul(threads)),
        CU_LIMIT_PRINTF_FIFO_SIZE => Some(value.saturating_sub(DEFAULT_PRINTF_FIFO)),
        CU_LIMIT_MALLOC_HEAP_SIZE => Some(value.saturating_sub(DEFAULT_MALLOC_HEAP)),
        CU_LIMIT_MAX_L2_FETCH_GRANULARITY
        | CU_LIMIT_PERSISTING_L2_CACHE_SIZE
        | CU_LIMIT_SHMEM_SIZE
        | CU_LIMIT_CIG_ENABLED
        | CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED => Some(0),
        _ => None,
    }
}

/// Returns the number of threads that a device runs at a time, computed from its attributes.
pub fn resident_threads(attribute: impl Fn(CUdevice_attribute) -> i32) -> u64 {
    let [processors, each] =
        [CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR].map(attribute);
    u64::from(processors.max(0).unsigned_abs()) * u64::from(each.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_default_is_taken() {
        let of = |limit, value| taken(limit, value, 1000);
        assert_eq!(of(CU_LIMIT_MALLOC_HEAP_SIZE, 9 << 20), Some(1 << 20));
        assert_eq!(of(CU_LIMIT_PRINTF_FIFO_SIZE, 9 << 20), Some(8 << 20));
        assert_eq!(of(CU_LIMIT_STACK_SIZE, 1025), Some(1000));
        assert_eq!(of(CU_LIMIT_MALLOC_HEAP_SIZE, 1), Some(0));
        assert_eq!(of(CU_LIMIT_STACK_SIZE, u64::MAX), Some(u64::MAX));
        assert_eq!(of(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 1 << 30), Some(0));
        assert_eq!(of(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 3), None);
        assert_eq!(of(1000, 1), None);
    }
}
