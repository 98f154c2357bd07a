//! `mbarrier` (ISA 9.7.13.15): barriers in shared memory that count arrivals and bytes.
//!
//! PTX does not define the format of the 64 bits. Here they are, from the lowest: 20 bits of pending arrivals, 20 bits
//! of expected arrivals, 22 bits of bytes in flight (signed), and the parity of the phase.

use super::address::space;
use super::host::Host;
use super::lanes::{LANES, set_lanes};
use super::watched::{Touch, touch_each};
use super::{Block, Handler};
use crate::engine::code::{Inst, NONE, Step};
use crate::engine::watch::Access;

const COUNT_BITS: u32 = 20;
pub const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const BYTES_SHIFT: u32 = 2 * COUNT_BITS;
const BYTES_BITS: u32 = 22;
const PARITY_SHIFT: u32 = BYTES_SHIFT + BYTES_BITS;

/// The fields of a barrier's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    pending: i64,
    expected: i64,
    bytes: i64,
    parity: u64,
}

impl State {
    fn new(count: u32) -> State {
        State { pending: count.into(), expected: count.into(), bytes: 0, parity: 0 }
    }

    fn from_bits(bits: u64) -> State {
        let count = |shift: u32| (bits >> shift & COUNT_MASK) as i64;
        let bytes = (bits << (u64::BITS - PARITY_SHIFT)) as i64 >> (u64::BITS - BYTES_BITS);
        State { pending: count(0), expected: count(COUNT_BITS), bytes, parity: bits >> PARITY_SHIFT & 1 }
    }

    fn to_bits(self) -> u64 {
        let count = |value: i64| value as u64 & COUNT_MASK;
        let bytes = self.bytes as u64 & ((1 << BYTES_BITS) - 1);
        count(self.pending) | count(self.expected) << COUNT_BITS | bytes << BYTES_SHIFT | self.parity << PARITY_SHIFT
    }

    /// Ends the phase if no arrival and no byte is pending.
    fn settle(mut self) -> State {
        if self.pending == 0 && self.bytes == 0 {
            self.pending = self.expected;
            self.parity ^= 1;
        }
        self
    }
}

/// The operations. The bits of `mods` from bit 8 on are the number of one operation. An arrival first adds the bytes in
/// `c`, if any, to the expected bytes.
pub mod operation {
    pub const SHIFT: u32 = 8;
    pub const INIT: u32 = 0;
    pub const ARRIVE: u32 = 1;
    pub const ARRIVE_DROP: u32 = 2;
    pub const EXPECT: u32 = 3;
    pub const COMPLETE: u32 = 4;
}

/// Subtracts the bytes of a finished bulk copy from the bytes in flight.
pub fn complete_bytes(barrier: Host, bytes: u32) {
    let mut state = State::from_bits(barrier.read());
    state.bytes -= i64::from(bytes);
    barrier.write(state.settle().to_bits());
}

/// The handler of all operations that change a barrier: count in `b` (1 if absent), bytes in `c`, the previous state in
/// `d`.
pub struct Update;

impl Handler for Update {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let barriers = match block.locate(inst, 8, mask) {
            Ok(barriers) => barriers,
            Err(step) => return step,
        };
        let or = |operand: u32, absent: u32| if operand == NONE { [absent; LANES] } else { *block.src(operand) };
        let (counts, bytes) = (or(inst.b, 1), or(inst.c, 0));
        let mut before = [0u64; LANES];
        for lane in set_lanes(mask) {
            before[lane] = barriers[lane].read();
            let (mut state, count) = (State::from_bits(before[lane]), i64::from(counts[lane]));
            match inst.mods >> operation::SHIFT {
                operation::INIT => state = State::new(counts[lane]),
                operation::EXPECT => state.bytes += i64::from(bytes[lane]),
                operation::COMPLETE => state.bytes -= i64::from(bytes[lane]),
                dropping => {
                    state.bytes += i64::from(bytes[lane]);
                    state.pending -= count;
                    if dropping == operation::ARRIVE_DROP {
                        state.expected -= count;
                    }
                }
            }
            if inst.mods >> operation::SHIFT != operation::INIT {
                state = state.settle();
            }
            barriers[lane].write(state.to_bits());
        }
        if inst.d != NONE {
            block.set(inst.d, &before, mask);
        }
        Step::Next
    }
}

/// The handler of `test_wait` and `try_wait`. The predicate `d2` is true if the phase of the state `b`, or of the
/// parity `c`, has ended.
pub struct Test;

impl Handler for Test {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let barriers = match block.locate(inst, 8, mask) {
            Ok(barriers) => barriers,
            Err(step) => return step,
        };
        let parities = match inst.b {
            NONE => block.src::<u32>(inst.c).map(|parity| u64::from(parity & 1)),
            state => block.src::<u64>(state).map(|bits| State::from_bits(bits).parity),
        };
        let over = |lane: usize| State::from_bits(barriers[lane].read()).parity != parities[lane];
        let truth = set_lanes(mask).filter(|&lane| over(lane)).fold(0, |all, lane| all | 1 << lane);
        block.set_pred(inst.d2, truth, mask);
        if truth == mask {
            return Step::Next;
        }
        // Programs test in a loop, so let other threads run that have to arrive.
        block.warp.group.pc += 1;
        Step::Yield
    }
}

/// The handler of `cp.async.bulk`. It copies `c` bytes from `b` to `a`, whose spaces are in `mods`. Then it reports the
/// bytes to the barrier `e`, if there is one.
pub struct CopyBulk;

/// The position of the source's space in `mods`. The destination's space is below.
pub const SOURCE_SHIFT: u32 = 8;
/// The unit of a bulk copy in bytes. Sizes and addresses must be multiples of it.
const UNIT: u64 = 16;

impl Handler for CopyBulk {
    const WATCHED: bool = true;

    fn touches(block: &Block, inst: &Inst, mask: u32, touches: &mut Vec<Touch>) {
        let bytes = block.src::<u32>(inst.c);
        let ends = [(inst.a, 0, Access::Write), (inst.b, SOURCE_SHIFT, Access::Read)];
        for (operand, shift, access) in ends {
            if matches!(inst.mods >> shift & space::MASK, space::GLOBAL | space::GENERIC) {
                for lane in set_lanes(mask).filter(|&lane| bytes[lane] > 0) {
                    let addresses = block.src::<u64>(operand);
                    touch_each(addresses, bytes[lane].into(), 1 << lane, access, false, touches);
                }
            }
        }
    }

    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let (to, from, bytes) = (*block.src::<u64>(inst.a), *block.src::<u64>(inst.b), *block.src::<u32>(inst.c));
        let barriers = (inst.e != NONE).then(|| *block.src::<u64>(inst.e));
        let spaces = [inst.mods & space::MASK, inst.mods >> SOURCE_SHIFT & space::MASK];
        for lane in set_lanes(mask) {
            for offset in (0..u64::from(bytes[lane])).step_by(UNIT as usize) {
                let target = block.locate_one(spaces[0], to[lane].wrapping_add(offset), UNIT, lane);
                let source = block.locate_one(spaces[1], from[lane].wrapping_add(offset), UNIT, lane);
                match (target, source) {
                    (Ok(target), Ok(source)) => {
                        target.write(source.read::<u64>());
                        target.plus(8).write(source.plus(8).read::<u64>());
                    }
                    (Err(bad), _) => return block.access_fault(bad, UNIT, to[lane], lane),
                    (_, Err(bad)) => return block.access_fault(bad, UNIT, from[lane], lane),
                }
            }
            if let Some(barriers) = barriers {
                match block.locate_one(space::SHARED, barriers[lane], 8, lane) {
                    Ok(barrier) => complete_bytes(barrier, bytes[lane]),
                    Err(bad) => return block.access_fault(bad, 8, barriers[lane], lane),
                }
            }
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_a_state() {
        let state = State { pending: 3, expected: 1_048_575, bytes: -1_048_575, parity: 1 };
        assert_eq!(State::from_bits(state.to_bits()), state);
        assert_eq!(State::from_bits(State::new(7).to_bits()), State::new(7));
    }

    #[test]
    fn a_phase_ends_with_its_last_arrival_and_its_last_byte() {
        let arrived = State { pending: 0, bytes: 16, ..State::new(2) };
        assert_eq!(arrived.settle(), arrived);
        assert_eq!(State { bytes: 0, ..arrived }.settle(), State { parity: 1, ..State::new(2) });
    }
}
