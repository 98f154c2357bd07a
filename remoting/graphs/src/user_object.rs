//! User objects: what graphs keep alive for the program, with a function that it wants called at the end.

use crate::Result;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) type Destructor = Box<dyn FnOnce() + Send>;

pub struct UserObject {
    /// References of the program and of graphs; 0 when the destructor was called.
    references: Mutex<(u32, Option<Destructor>)>,
}

/// A graph's references to an object.
pub(crate) struct Held {
    pub(crate) object: Arc<UserObject>,
    pub(crate) count: u32,
}

#[derive(Default)]
pub(crate) struct UserObjects(Mutex<HashMap<usize, Arc<UserObject>>>);

impl UserObject {
    pub(crate) fn new(destroy: Destructor, references: u32) -> Arc<Self> {
        Arc::new(UserObject { references: Mutex::new((references, Some(destroy))) })
    }

    fn state(&self) -> MutexGuard<'_, (u32, Option<Destructor>)> {
        self.references.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn retain(&self, count: u32) -> Result<()> {
        let mut state = self.state();
        let sum = state.0.checked_add(count).filter(|_| count > 0 && state.0 > 0);
        state.0 = sum.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok(())
    }

    /// Gives references back. With the last one the destructor is called.
    pub(crate) fn release(&self, count: u32) -> Result<()> {
        let mut state = self.state();
        state.0 = state.0.checked_sub(count).filter(|_| count > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let destructor = if state.0 == 0 { state.1.take() } else { None };
        drop(state);
        if let Some(destroy) = destructor {
            destroy();
        }
        Ok(())
    }
}

impl Clone for Held {
    /// A copied graph has references of its own.
    fn clone(&self) -> Self {
        // It fails at 2^32 references, and then the object outlives the copy.
        let count = if self.object.retain(self.count).is_ok() { self.count } else { 0 };
        Held { object: Arc::clone(&self.object), count }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // There are as many as the graph took; 0 is refused, and nothing is to be done then.
        let _ = self.object.release(self.count);
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Held({})", self.count)
    }
}

impl UserObjects {
    pub(crate) fn table(&self) -> MutexGuard<'_, HashMap<usize, Arc<UserObject>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, handle: usize) -> Result<Arc<UserObject>> {
        self.table().get(&handle).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Forgets the handles of objects that are no more.
    pub(crate) fn sweep(&self) {
        self.table().retain(|_, object| object.state().0 > 0);
    }
}
