//! Local memory, which is a stack for each lane that grows with calls.

use super::lanes::LANES;

/// The maximum bytes of local memory for a thread, as on hardware.
pub const MAX_LOCAL: u32 = 512 << 10;

#[derive(Default)]
pub struct LocalMemory {
    /// The memory of all lanes, in units of 16 bytes so that vector accesses are aligned.
    units: Vec<u128>,
    /// The number of bytes for each lane.
    stride: u32,
}

impl LocalMemory {
    pub fn stride(&self) -> u32 {
        self.stride
    }

    /// Grows each lane's memory to at least `bytes` bytes, and keeps its contents. Returns false if a thread may not
    /// have so much.
    pub fn reserve(&mut self, bytes: u32) -> bool {
        if bytes <= self.stride {
            return true;
        }
        if bytes > MAX_LOCAL {
            return false;
        }
        let stride = bytes.next_multiple_of(16).max((2 * self.stride).min(MAX_LOCAL));
        let (old, new) = (self.stride as usize / 16, stride as usize / 16);
        let mut units = vec![0; new * LANES];
        for lane in 0..LANES {
            units[lane * new..lane * new + old].copy_from_slice(&self.units[lane * old..(lane + 1) * old]);
        }
        self.units = units;
        self.stride = stride;
        true
    }

    /// Returns the bytes of a lane.
    pub fn lane(&mut self, lane: usize) -> &mut [u8] {
        let stride = self.stride as usize;
        let units = &mut self.units[lane * stride / 16..(lane + 1) * stride / 16];
        // SAFETY: the bytes of integers, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(units.as_mut_ptr().cast(), stride) }
    }

    /// Returns the host address of a lane's first byte.
    pub fn base(&mut self, lane: usize) -> u64 {
        self.units.as_mut_ptr() as u64 + lane as u64 * u64::from(self.stride)
    }
}
