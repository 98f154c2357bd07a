//! User objects: objects of the program that graphs keep alive. When the last reference is released, a destructor of
//! the program is called.

use crate::Result;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) type Destructor = Box<dyn FnOnce() + Send>;

pub struct UserObject {
    /// The number of references of the program and of graphs, and the destructor. The number is 0 after the destructor
    /// was called.
    references: Mutex<(u32, Option<Destructor>)>,
}

/// The references of one graph to one object.
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

    /// Releases `count` references. The destructor is called with the last reference.
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
    /// Returns as many new references to the same object, for a copy of the graph.
    fn clone(&self) -> Self {
        // This fails only at 2^32 references. Then the copy has no references, and the object outlives the copy.
        let count = if self.object.retain(self.count).is_ok() { self.count } else { 0 };
        Held { object: Arc::clone(&self.object), count }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The object has at least as many references as the graph took. A count of 0 is refused, and then there is
        // nothing to release.
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

    /// Removes the handles of objects that were destroyed.
    pub(crate) fn sweep(&self) {
        self.table().retain(|_, object| object.state().0 > 0);
    }
}
