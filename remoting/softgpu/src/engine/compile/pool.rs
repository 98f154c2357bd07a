//! The constants of a program. Equal constants are stored once.

use std::collections::HashMap;

use crate::engine::code::{CONST, Pool, PoolRelocation, Target};
use crate::engine::exec::spread;

#[derive(Default)]
pub struct PoolBuilder {
    pool: Pool,
    numbers: HashMap<(u64, bool), u32>,
    addresses: HashMap<(Target, i64), u32>,
}

impl PoolBuilder {
    /// Returns the operand for a number of 32 bits, or of 64 bits if `double` is set.
    pub fn number(&mut self, bits: u64, double: bool) -> u32 {
        let bits = if double { bits } else { u64::from(bits as u32) };
        let pool = &mut self.pool;
        *self.numbers.entry((bits, double)).or_insert_with(|| {
            let slot = pool.slots.len() as u32;
            pool.slots.extend(spread(bits, double));
            slot | CONST
        })
    }

    /// Returns the operand for an address that is known only in an image.
    pub fn address(&mut self, target: Target, addend: i64) -> u32 {
        let pool = &mut self.pool;
        *self.addresses.entry((target, addend)).or_insert_with(|| {
            let slot = pool.slots.len() as u32;
            pool.slots.extend(spread(0, true));
            pool.relocations.push(PoolRelocation { slot, target, addend });
            slot | CONST
        })
    }

    pub fn finish(self) -> Pool {
        self.pool
    }
}
