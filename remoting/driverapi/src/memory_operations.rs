//! Checked operations of `cuStreamWaitValue*`, `cuStreamWriteValue*` and `cuStreamBatchMemOp`
//! (docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html).

use crate::constants::*;
use crate::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use crate::types::{CUresult, CUstreamBatchMemOpParams};

/// The maximum number of operations in a batch.
pub const MOST_OPERATIONS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    Four,
    Eight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Wait,
    Write,
}

/// An operation of a stream: wait for the value of a word, or write the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub kind: Kind,
    pub width: Width,
    pub address: u64,
    pub value: u64,
    /// The program's flags, already checked.
    pub flags: u32,
}

impl Width {
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Width::Four => 4,
            Width::Eight => 8,
        }
    }
}

impl Operation {
    /// Checks the arguments of an operation.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for unknown flags and unaligned addresses; `CUDA_ERROR_NOT_SUPPORTED` for a flush of
    /// remote writes, which no device here supports.
    pub fn new(kind: Kind, width: Width, address: u64, value: u64, flags: u32) -> Result<Operation, CUresult> {
        let known = match kind {
            Kind::Wait => CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH,
            Kind::Write => CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER,
        };
        if flags & !known != 0 || !address.is_multiple_of(width.bytes()) || address == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if kind == Kind::Wait && flags & CU_STREAM_WAIT_VALUE_FLUSH != 0 {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        Ok(Operation { kind, width, address, value, flags })
    }

    /// Reads an operation of a batch. `None` for a barrier, because the stream's order already provides one.
    ///
    /// # Errors
    /// The errors of [`Operation::new`]; `CUDA_ERROR_NOT_SUPPORTED` for flushes and reductions,
    /// `CUDA_ERROR_INVALID_VALUE` for an unknown operation.
    pub fn of_batch(given: &CUstreamBatchMemOpParams) -> Result<Option<Operation>, CUresult> {
        let (kind, width) = match given.operation {
            CU_STREAM_MEM_OP_WAIT_VALUE_32 => (Kind::Wait, Width::Four),
            CU_STREAM_MEM_OP_WAIT_VALUE_64 => (Kind::Wait, Width::Eight),
            CU_STREAM_MEM_OP_WRITE_VALUE_32 => (Kind::Write, Width::Four),
            CU_STREAM_MEM_OP_WRITE_VALUE_64 => (Kind::Write, Width::Eight),
            CU_STREAM_MEM_OP_BARRIER if given.barrier_flags <= CU_STREAM_MEMORY_BARRIER_TYPE_GPU => return Ok(None),
            CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES | CU_STREAM_MEM_OP_ATOMIC_REDUCTION => {
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        let value = if width == Width::Four { given.value & u64::from(u32::MAX) } else { given.value };
        Operation::new(kind, width, given.address, value, given.flags).map(Some)
    }

    /// Whether the word `found` satisfies the wait.
    #[must_use]
    pub fn is_met_by(&self, found: u64) -> bool {
        let Operation { width, value, .. } = *self;
        match (self.flags, width) {
            (CU_STREAM_WAIT_VALUE_EQ, _) => found == value,
            (CU_STREAM_WAIT_VALUE_AND, _) => found & value != 0,
            (CU_STREAM_WAIT_VALUE_NOR, Width::Four) => !(found as u32 | value as u32) != 0,
            (CU_STREAM_WAIT_VALUE_NOR, Width::Eight) => !(found | value) != 0,
            (_, Width::Four) => (found as u32).wrapping_sub(value as u32).cast_signed() >= 0,
            (_, Width::Eight) => found.wrapping_sub(value).cast_signed() >= 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_compares_as_its_flags_say() {
        let wait = |width, value, flags| Operation::new(Kind::Wait, width, 64, value, flags).unwrap();
        let at_least = wait(Width::Four, 5, CU_STREAM_WAIT_VALUE_GEQ);
        assert!(at_least.is_met_by(5) && at_least.is_met_by(6) && !at_least.is_met_by(4));
        // The comparison is cyclic, because the counter may have wrapped around.
        assert!(wait(Width::Four, 0xffff_fff0, CU_STREAM_WAIT_VALUE_GEQ).is_met_by(3));
        assert!(!wait(Width::Eight, 0xffff_fff0, CU_STREAM_WAIT_VALUE_GEQ).is_met_by(3));
        assert!(wait(Width::Eight, 7, CU_STREAM_WAIT_VALUE_EQ).is_met_by(7));
        assert!(!wait(Width::Four, 6, CU_STREAM_WAIT_VALUE_AND).is_met_by(9));
        let nor = wait(Width::Four, 0xffff_0000, CU_STREAM_WAIT_VALUE_NOR);
        assert!(nor.is_met_by(0xfffe) && !nor.is_met_by(0xffff));
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let new = |kind, address, flags| Operation::new(kind, Width::Eight, address, 0, flags).map(drop);
        assert_eq!(new(Kind::Wait, 68, 0), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(new(Kind::Write, 64, 2), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(new(Kind::Wait, 64, CU_STREAM_WAIT_VALUE_FLUSH), Err(CUDA_ERROR_NOT_SUPPORTED));
        let of = |operation| {
            let given = CUstreamBatchMemOpParams { operation, address: 64, ..CUstreamBatchMemOpParams::default() };
            Operation::of_batch(&given).map(|found| found.map(|operation| operation.width))
        };
        assert_eq!(of(CU_STREAM_MEM_OP_BARRIER), Ok(None));
        assert_eq!(of(CU_STREAM_MEM_OP_WRITE_VALUE_64), Ok(Some(Width::Eight)));
        assert_eq!(of(CU_STREAM_MEM_OP_ATOMIC_REDUCTION), Err(CUDA_ERROR_NOT_SUPPORTED));
        assert_eq!(of(77), Err(CUDA_ERROR_INVALID_VALUE));
    }
}
