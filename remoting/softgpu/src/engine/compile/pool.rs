//! Collects the constants of a program, each once.

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
    /// The operand for a number of 32 or, if `double`, 64 bits.
    pub fn number(&mut self, bits: u64, double: bool) -> u32 {
        let bits = if double { bits } else { u64::from(bits as u32) };
        let pool = &mut self.pool;
        *self.numbers.entry((bits, double)).or_insert_with(|| {
            let slot = pool.slots.len() as u32;
            pool.slots.extend(spread(bits, double));
            slot | CONST
        })
    }

    /// The operand for an address that the image decides.
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
