//! The number of registers that is reported for a kernel. The interpreter's slots are not hardware registers. The
//! numbers only need to be consistent for block size, registers and occupancy.

use driverapi::registers::MAX_THREADS;

const MAX_THREADS_PER_MULTIPROCESSOR: u32 = 2048;
const REGISTERS_PER_BLOCK: u32 = 65536;
/// The unit in which registers are allocated to the threads of a warp (CUDA C++ Programming Guide, "Multiprocessor
/// Level": 256 for a warp).
const REGISTER_UNIT: u32 = 8;
const WARP: u32 = 32;
/// The unit in which warps are counted, because a multiprocessor's four parts have equal numbers of warps.
const WARP_UNIT: u32 = 4;
/// The minimum number of registers. A trivial kernel needs about this number on hardware.
const LEAST: u32 = 8;
/// The maximum number of registers that an instruction can name.
const MOST: u32 = 255;

/// Returns the maximum number of registers with which `blocks` blocks of `threads` threads fit on a multiprocessor. If
/// the multiprocessor does not have enough threads for them, `blocks` is reduced to the number that fits, as a compiler
/// does.
pub fn registers_for(threads: u32, blocks: u32) -> u32 {
    let warps = threads.clamp(1, MAX_THREADS).div_ceil(WARP);
    let blocks = blocks.clamp(1, MAX_THREADS_PER_MULTIPROCESSOR / (warps * WARP));
    let each = REGISTERS_PER_BLOCK / ((warps * blocks).next_multiple_of(WARP_UNIT) * WARP);
    (each / REGISTER_UNIT * REGISTER_UNIT).min(MOST)
}

/// Returns a kernel's registers. The number is that of its slots, within the limits of its largest block,
/// `.minnctapersm` and `.maxnreg`.
pub fn registers_of(slots: u32, threads: u32, blocks: Option<u32>, most: Option<u32>) -> u32 {
    let bound = registers_for(threads, blocks.unwrap_or(1)).min(most.unwrap_or(MOST));
    slots.max(LEAST).min(bound.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use driverapi::registers::threads_with;

    #[test]
    fn registers_leave_room_for_the_blocks() {
        for threads in 1..=MAX_THREADS {
            assert!(threads_with(registers_for(threads, 1)) >= threads, "{threads} threads");
            for blocks in 1..=MAX_THREADS_PER_MULTIPROCESSOR / threads.next_multiple_of(WARP) {
                let registers = registers_for(threads, blocks);
                assert!(registers >= 32 && registers * threads.next_multiple_of(WARP) * blocks <= REGISTERS_PER_BLOCK);
            }
        }
        assert_eq!(
            [(1024, 1), (1024, 2), (1024, 9), (256, 1), (33, 1)].map(|(t, b)| registers_for(t, b)),
            [64, 32, 32, 255, 255]
        );
        assert_eq!(registers_of(200, 1024, None, None), 64);
        assert_eq!(registers_of(200, 256, Some(4), None), 64);
        assert_eq!(registers_of(200, 64, None, Some(40)), 40);
        assert_eq!(registers_of(3, 64, None, None), LEAST);
    }
}
