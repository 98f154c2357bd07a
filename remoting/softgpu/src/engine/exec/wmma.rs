//! `wmma.load` and `wmma.store` (ISA 9.7.14.4). The machine may choose which lane has which element. Here the fragments
//! are those of `mma`, so a `wmma.mma` is a series of `mma`.
//!
//! A matrix is divided into tiles. A tile of A has 8 rows, and a tile of B has 8 columns. Along K, it has as many
//! elements as four lanes hold in one register. A tile of C and D has 8 rows and 8 columns, with two elements in each
//! lane. Lane l has row l/4 of each tile, or column l/4 for B.

use super::address::Addresses;
use super::lanes::{LANES, set_lanes};
use super::memory::space;
use super::watched::{Touch, touch_each};
use super::{Block, Handler};
use crate::engine::code::{Inst, Step};
use crate::engine::watch::Access;

/// The form of a fragment, in `mods` above the bits of the state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The base-2 logarithm of an element's size in bytes.
    pub size: u32,
    /// Whether each element has its own register, although a tile has two elements in each lane.
    pub single: bool,
    /// Whether the elements of a tile's row are apart in memory, with the stride between them.
    pub across: bool,
    /// The number of tiles below each other. `depth` is the number of tiles next to each other.
    pub lines: u32,
    pub depth: u32,
    /// Whether consecutive registers are tiles next to each other. Otherwise they are tiles below each other.
    pub depth_first: bool,
}

const SHIFT: u32 = 8;

impl Fragment {
    pub fn to_bits(self) -> u32 {
        let flags = u32::from(self.single) | u32::from(self.across) << 1 | u32::from(self.depth_first) << 2;
        (self.size | flags << 2 | self.lines << 5 | self.depth << 9) << SHIFT
    }

    fn from_bits(mods: u32) -> Fragment {
        let bits = mods >> SHIFT;
        let flag = |at: u32| bits >> (2 + at) & 1 != 0;
        Fragment {
            size: bits & 3,
            single: flag(0),
            across: flag(1),
            depth_first: flag(2),
            lines: bits >> 5 & 15,
            depth: bits >> 9 & 15,
        }
    }

    /// The number of a tile's elements that one lane holds.
    fn width(self) -> u32 {
        if self.single { 2 } else { (4 >> self.size).max(1) }
    }

    /// Returns the number of elements in a register.
    pub fn packed(self) -> u32 {
        if self.single { 1 } else { self.width() }
    }

    /// Returns the distance of element `index` of a register from the matrix's start, in elements. Some matrices have
    /// more registers than tiles. The further registers repeat the tiles.
    fn offset(self, register: u32, index: u32, lane: u32, stride: u64) -> u64 {
        let (tile, index) = if self.single { (register / 2, register % 2) } else { (register, index) };
        let tile = tile % (self.lines * self.depth);
        let (line, depth) = if self.depth_first {
            (tile / self.depth, tile % self.depth)
        } else {
            (tile % self.lines, tile / self.lines)
        };
        let line = u64::from(8 * line + lane / 4);
        let depth = u64::from(self.width() * (4 * depth + lane % 4) + index);
        if self.across {
            depth.wrapping_mul(stride).wrapping_add(line)
        } else {
            line.wrapping_mul(stride).wrapping_add(depth)
        }
    }
}

/// The matrix of an instruction: its start address for each lane, and the distance between its rows from operand `b`.
/// It is read before any register is written, because a destination may be one of these registers.
struct Matrix {
    fragment: Fragment,
    starts: Addresses,
    strides: [u32; LANES],
    space: u32,
}

impl Matrix {
    fn of(block: &Block, inst: &Inst) -> Matrix {
        let (fragment, space) = (Fragment::from_bits(inst.mods), inst.mods & space::MASK);
        Matrix { fragment, starts: block.addresses(inst), strides: *block.src(inst.b), space }
    }

    fn touches(&self, registers: u32, mask: u32, access: Access, touches: &mut Vec<Touch>) {
        if !matches!(self.space, space::GLOBAL | space::GENERIC) {
            return;
        }
        for register in 0..registers {
            for index in 0..self.fragment.packed() {
                let mut addresses = self.starts;
                for lane in set_lanes(mask) {
                    let offset = self.fragment.offset(register, index, lane as u32, self.strides[lane].into());
                    addresses[lane] = addresses[lane].wrapping_add(offset << self.fragment.size);
                }
                touch_each(&addresses, 1 << self.fragment.size, mask, access, false, touches);
            }
        }
    }
}

impl Block<'_> {
    /// Calls `access` with the host address of each element of a register, and with the element's index in the
    /// register.
    fn each_element(
        &mut self,
        matrix: &Matrix,
        register: u32,
        mask: u32,
        mut access: impl FnMut(usize, u32, super::Host),
    ) -> Result<(), Step> {
        let Matrix { fragment, starts, strides, space } = matrix;
        let bytes = 1u64 << fragment.size;
        for lane in set_lanes(mask) {
            for index in 0..fragment.packed() {
                let offset = fragment.offset(register, index, lane as u32, strides[lane].into());
                let address = starts[lane].wrapping_add(offset << fragment.size);
                match self.locate_one(*space, address, bytes, lane) {
                    Ok(host) => access(lane, index, host),
                    Err(bad) => return Err(self.access_fault(bad, bytes, address, lane)),
                }
            }
        }
        Ok(())
    }
}

/// The handler that loads the registers in the list of targets.
pub struct LoadFragment;

impl Handler for LoadFragment {
    const WATCHED: bool = true;

    fn touches(block: &Block, inst: &Inst, mask: u32, touches: &mut Vec<Touch>) {
        Matrix::of(block, inst).touches(inst.targets.len, mask, Access::Read, touches);
    }

    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let matrix = Matrix::of(block, inst);
        let size = matrix.fragment.size;
        for (register, &target) in inst.targets.of(&block.launch.code.lists).iter().enumerate() {
            let mut values = [0u64; LANES];
            let loaded = block.each_element(&matrix, register as u32, mask, |lane, index, host| {
                values[lane] |= match size {
                    0 => u64::from(host.read::<u8>()) << (8 * index),
                    1 => u64::from(host.read::<u16>()) << (16 * index),
                    2 => host.read::<u32>().into(),
                    _ => host.read(),
                };
            });
            if let Err(step) = loaded {
                return step;
            }
            if size == 3 {
                block.set(target, &values, mask);
            } else {
                block.set(target, &values.map(|value| value as u32), mask);
            }
        }
        Step::Next
    }
}

/// The handler that stores the registers in the list of sources.
pub struct StoreFragment;

impl Handler for StoreFragment {
    const WATCHED: bool = true;

    fn touches(block: &Block, inst: &Inst, mask: u32, touches: &mut Vec<Touch>) {
        Matrix::of(block, inst).touches(inst.sources.len, mask, Access::Write, touches);
    }

    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let matrix = Matrix::of(block, inst);
        let size = matrix.fragment.size;
        for (register, &source) in inst.sources.of(&block.launch.code.lists).iter().enumerate() {
            let values: [u64; LANES] =
                if size == 3 { *block.src(source) } else { block.src::<u32>(source).map(u64::from) };
            let stored = block.each_element(&matrix, register as u32, mask, |lane, index, host| match size {
                0 => host.write((values[lane] >> (8 * index)) as u8),
                1 => host.write((values[lane] >> (16 * index)) as u16),
                2 => host.write(values[lane] as u32),
                _ => host.write(values[lane]),
            });
            if let Err(step) = stored {
                return step;
            }
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_of_a_matrix_is_in_a_register() {
        // The bytes of an A with 16 rows and 16 columns. Below are the words of a C with 8 rows and 32 columns.
        let bytes = Fragment { size: 0, single: false, across: false, lines: 2, depth: 1, depth_first: false };
        let words = Fragment { size: 2, single: true, across: true, lines: 1, depth: 4, depth_first: false };
        for (fragment, registers, stride) in [(bytes, 2, 16), (words, 8, 8)] {
            assert_eq!(Fragment::from_bits(fragment.to_bits()), fragment);
            let all = (0..registers).flat_map(|register| (0..fragment.packed()).map(move |index| (register, index)));
            let mut found: Vec<u64> = all
                .flat_map(|(register, index)| (0..32).map(move |lane| fragment.offset(register, index, lane, stride)))
                .collect();
            found.sort_unstable();
            assert_eq!(found, (0..256).collect::<Vec<u64>>());
        }
    }
}
