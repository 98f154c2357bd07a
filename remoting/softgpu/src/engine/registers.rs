//! The number of registers that is reported for a kernel. The interpreter's slots are not hardware registers: what
//! counts is that blocks, registers and occupancy fit together.

use driverapi::registers::MAX_THREADS;

const MAX_THREADS_PER_MULTIPROCESSOR: u32 = 2048;
const REGISTERS_PER_BLOCK: u32 = 65536;
/// Registers are given to warps in units of this many (CUDA C++ Programming Guide, "Multiprocessor Level": 256 a warp).
const REGISTER_UNIT: u32 = 8;
const WARP: u32 = 32;
/// A multiprocessor's four parts have equal numbers of warps.
const WARP_UNIT: u32 = 4;
/// About what a trivial kernel takes on hardware.
const LEAST: u32 = 8;
/// The most registers that an instruction can name.
const MOST: u32 = 255;

/// The most registers with which so many blocks of so many threads fit a multiprocessor. More blocks than it has threads for
/// bind nothing further, as a compiler ignores such a wish.
pub fn registers_for(threads: u32, blocks: u32) -> u32 {
    let warps = threads.clamp(1, MAX_THREADS).div_ceil(WARP);
    let blocks = blocks.clamp(1, MAX_THREADS_PER_MULTIPROCESSOR / (warps * WARP));
    let each = REGISTERS_PER_BLOCK / ((warps * blocks).next_multiple_of(WARP_UNIT) * WARP);
    (each / REGISTER_UNIT * REGISTER_UNIT).min(MOST)
}

/// A kernel's registers: as many as its code has slots, within what its largest block, `.minnctapersm` and `.maxnreg` leave.
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
