//! The registers of a block. A slot has a row of 32 lanes for each warp. The rows of a slot are contiguous, so that one
//! instruction can process all of them in order.

use std::marker::PhantomData;

use super::lanes::{LANES, Lane, Slot};

/// The number of slots in front of the registers: two for each of three operands, see [`Registers::broadcast`].
const SCRATCH: usize = 6;

/// The position of an operand's rows. The rows of all warps are inside the registers.
#[derive(Clone, Copy)]
pub struct Rows<T> {
    first: usize,
    /// The number of slots between the rows of consecutive warps, or 0 if all warps share one row.
    step: usize,
    of: PhantomData<T>,
}

#[derive(Default)]
pub struct Registers {
    slots: Vec<Slot>,
    preds: Vec<u32>,
    warps: usize,
    /// The number of rows between consecutive slots. It is odd, because with a power of two the slots of a warp would
    /// share a few cache lines.
    stride: usize,
}

impl Registers {
    /// Prepares the registers for a new block. Registers are undefined until they are written, so old values may stay.
    pub fn start(&mut self, warps: usize, slots: u32, preds: u32) {
        (self.warps, self.stride) = (warps, warps | 1);
        self.reserve(slots, preds);
    }

    /// Makes room for more slots and predicates in each warp, and keeps the contents.
    pub fn reserve(&mut self, slots: u32, preds: u32) {
        let (slots, preds) = (SCRATCH + slots as usize * self.stride, preds as usize * self.warps);
        if self.slots.len() < slots {
            self.slots.resize(slots, Slot::default());
        }
        if self.preds.len() < preds {
            self.preds.resize(preds, 0);
        }
    }

    pub fn warps(&self) -> usize {
        self.warps
    }

    #[inline(always)]
    fn index<T: Lane>(&self, slot: u32, warp: u32) -> usize {
        SCRATCH + slot as usize * self.stride + warp as usize * T::SLOTS
    }

    #[inline(always)]
    pub fn row<T: Lane>(&self, slot: u32, warp: u32) -> &[T; LANES] {
        T::view(&self.slots[self.index::<T>(slot, warp)..])
    }

    #[inline(always)]
    pub fn row_mut<T: Lane>(&mut self, slot: u32, warp: u32) -> &mut [T; LANES] {
        let index = self.index::<T>(slot, warp);
        T::view_mut(&mut self.slots[index..])
    }

    #[inline(always)]
    pub fn rows<T: Lane>(&self, slot: u32) -> Rows<T> {
        let first = self.index::<T>(slot, 0);
        assert!(first + self.warps * T::SLOTS <= self.slots.len());
        Rows { first, step: T::SLOTS, of: PhantomData }
    }

    /// Returns rows with the same value in all lanes of all warps. `operand` is from 0 to 2.
    #[inline(always)]
    pub fn broadcast<T: Lane>(&mut self, operand: usize, value: T) -> Rows<T> {
        let rows = Rows { first: 2 * operand, step: 0, of: PhantomData };
        *T::view_mut(&mut self.slots[rows.first..]) = [value; LANES];
        rows
    }

    #[inline(always)]
    pub fn get<T: Lane>(&self, rows: Rows<T>, warp: usize) -> &[T; LANES] {
        assert!(warp < self.warps);
        // SAFETY: `rows` and `broadcast` checked that each warp's row is inside, and registers never get fewer.
        T::view(unsafe { self.slots.get_unchecked(rows.first + warp * rows.step..) })
    }

    #[inline(always)]
    pub fn get_mut<T: Lane>(&mut self, rows: Rows<T>, warp: usize) -> &mut [T; LANES] {
        assert!(warp < self.warps);
        // SAFETY: as in `get`.
        T::view_mut(unsafe { self.slots.get_unchecked_mut(rows.first + warp * rows.step..) })
    }

    #[inline(always)]
    pub fn pred(&self, pred: u32, warp: u32) -> u32 {
        self.preds[pred as usize * self.warps + warp as usize]
    }

    #[inline(always)]
    pub fn pred_mut(&mut self, pred: u32, warp: u32) -> &mut u32 {
        &mut self.preds[pred as usize * self.warps + warp as usize]
    }
}
