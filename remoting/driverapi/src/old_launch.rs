//! Launches in the form before CUDA 4.0: calls set a function's block, shared memory and parameters one by one, and a
//! launch uses these values.

use crate::constants::{CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END};
use crate::errors::CUDA_ERROR_INVALID_VALUE;
use crate::types::CUresult;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The maximum size of a kernel's parameters in bytes, on any GPU.
const MOST_BYTES: usize = 32_764;

/// The arguments of a function's next launch in this form. CUDA's defaults are unknown; the default here is a block
/// without threads, which every launch refuses.
#[derive(Clone, Default)]
pub struct State {
    pub block: [u32; 3],
    pub shared: u32,
    /// The number of parameter bytes that a launch passes. The kernel's further parameters are 0.
    size: usize,
    parameters: Vec<u8>,
}

impl State {
    pub fn set_block(&mut self, block: [i32; 3]) -> Result<(), CUresult> {
        let [Ok(x), Ok(y), Ok(z)] = block.map(u32::try_from) else { return Err(CUDA_ERROR_INVALID_VALUE) };
        self.block = [x, y, z];
        Ok(())
    }

    pub fn set_size(&mut self, bytes: u32) -> Result<(), CUresult> {
        let size = bytes as usize;
        if size > MOST_BYTES {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.size = size;
        Ok(())
    }

    /// Stores a value at a byte offset of the parameters.
    pub fn put(&mut self, offset: i32, value: &[u8]) -> Result<(), CUresult> {
        let start = usize::try_from(offset).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let end = start.checked_add(value.len()).filter(|end| *end <= MOST_BYTES).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if self.parameters.len() < end {
            self.parameters.resize(end, 0);
        }
        self.parameters[start..end].copy_from_slice(value);
        Ok(())
    }

    /// Returns the parameters as the argument `extra` of `cuLaunchKernel`. The pointers are valid as long as the
    /// returned value exists.
    #[must_use]
    pub fn extra(mut self) -> Extra {
        self.parameters.resize(self.size.max(1), 0);
        let size = Box::new(self.size);
        let list = [
            CU_LAUNCH_PARAM_BUFFER_POINTER,
            self.parameters.as_ptr().expose_provenance(),
            CU_LAUNCH_PARAM_BUFFER_SIZE,
            std::ptr::from_ref(&*size).expose_provenance(),
            CU_LAUNCH_PARAM_END,
        ];
        Extra { list, _parameters: self.parameters, _size: size }
    }
}

/// A list of tags and values, and the memory that it points to.
pub struct Extra {
    pub list: [usize; 5],
    _parameters: Vec<u8>,
    _size: Box<usize>,
}

/// The old launch state of one function.
#[derive(Default)]
pub struct OldLaunch {
    used: AtomicBool,
    state: Mutex<State>,
}

impl OldLaunch {
    /// Locks the state, for a call that reads or sets it.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.used.store(true, Ordering::Relaxed);
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the arguments of a `cuLaunchKernel`, as CUDA's documentation requires; `parameters` packs the kernel's
    /// parameters. Does nothing for a function without calls of the old form, so that normal launches have no cost.
    pub fn overwrite(&self, block: [u32; 3], shared: u32, parameters: impl FnOnce() -> Vec<u8>) {
        if self.used.load(Ordering::Relaxed) {
            let parameters = parameters();
            *self.state() = State { block, shared, size: parameters.len(), parameters };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_where_they_were_put() {
        let mut state = State::default();
        assert_eq!(state.put(4, &7u32.to_le_bytes()), Ok(()));
        assert_eq!(state.put(0, &[1, 2]), Ok(()));
        assert_eq!(state.parameters, [1, 2, 0, 0, 7, 0, 0, 0]);
        assert_eq!(state.put(-1, &[1]), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(state.put(i32::MAX, &[1]), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(state.set_size(40_000), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(state.set_block([1, -1, 1]), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(state.set_size(6), Ok(()));
        assert_eq!(state.extra()._parameters, [1, 2, 0, 0, 7, 0]);
    }

    #[test]
    fn later_launches_change_the_state_of_functions_that_have_one() {
        let launch = OldLaunch::default();
        launch.overwrite([1, 2, 3], 4, || panic!("no call needs the parameters"));
        launch.state().set_block([5, 6, 7]).unwrap();
        launch.overwrite([1, 2, 3], 4, || vec![9, 9]);
        let state = launch.state().clone();
        assert_eq!((state.block, state.shared, state.size, state.parameters), ([1, 2, 3], 4, 2, vec![9, 9]));
    }
}
