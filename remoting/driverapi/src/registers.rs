//! The number of threads in a block for which the registers suffice. It is the same on every GPU since compute
//! capability 5.0 (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").

use crate::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES};
use crate::types::CUresult;

/// The maximum number of threads in a block, if the registers suffice.
pub const MAX_THREADS: u32 = 1024;
const REGISTERS_PER_BLOCK: u32 = 65536;
/// The unit in which a thread's registers are allocated (CUDA C++ Programming Guide, "Multiprocessor Level": 256 for
/// each warp).
const REGISTER_UNIT: u32 = 8;
const WARP: u32 = 32;
/// The unit in which warps are allocated: the four parts of a multiprocessor get equal numbers.
const WARP_UNIT: u32 = 4;

/// Returns the maximum number of threads in a block if each uses `registers` registers.
pub fn threads_with(registers: u32) -> u32 {
    let warps = REGISTERS_PER_BLOCK / (registers.max(1).next_multiple_of(REGISTER_UNIT) * WARP);
    (warps / WARP_UNIT * WARP_UNIT * WARP).min(MAX_THREADS)
}

/// Returns the error code for a block with more threads than its kernel allows. Either the registers do not suffice, or
/// the block exceeds the launch bounds (`.maxntid`). The order of the two checks is not measured.
pub fn refusal(threads: u64, registers: u32) -> CUresult {
    if threads > threads_with(registers).into() { CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES } else { CUDA_ERROR_INVALID_VALUE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_refused_for_its_registers_only_where_they_do_not_suffice() {
        for (registers, most) in [(16, 1024), (64, 1024), (65, 896), (128, 512), (255, 256)] {
            assert_eq!(threads_with(registers), most, "{registers}");
            assert_eq!(refusal(most.into(), registers), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(refusal(u64::from(most) + 1, registers), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
    }
}
