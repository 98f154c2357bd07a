//! User objects: what graphs keep alive for the program, with a function that it wants called at the end.

use crate::{Registry, Result, SharedGraph, Work, lock};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Destructor = Box<dyn FnOnce() + Send>;

pub struct UserObject {
    /// References of the program and of graphs; 0 when the destructor was called.
    references: Mutex<(u32, Option<Destructor>)>,
}

/// A graph's references to an object.
pub(crate) struct Held {
    object: Arc<UserObject>,
    count: u32,
}

#[derive(Default)]
pub(crate) struct UserObjects(Mutex<HashMap<usize, Arc<UserObject>>>);

impl UserObject {
    fn state(&self) -> MutexGuard<'_, (u32, Option<Destructor>)> {
        self.references.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retain(&self, count: u32) -> Result<()> {
        let mut state = self.state();
        let sum = state.0.checked_add(count).filter(|_| count > 0 && state.0 > 0);
        state.0 = sum.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok(())
    }

    /// Gives references back. With the last one the destructor is called.
    fn release(&self, count: u32) -> Result<()> {
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
    fn table(&self) -> MutexGuard<'_, HashMap<usize, Arc<UserObject>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, handle: usize) -> Result<Arc<UserObject>> {
        self.table().get(&handle).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Forgets the handles of objects that are no more.
    fn sweep(&self) {
        self.table().retain(|_, object| object.state().0 > 0);
    }
}

impl<W: Work> Registry<W> {
    /// The handle of a new object with references that are the program's.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for no reference.
    pub fn create_object(&self, destroy: Destructor, references: u32) -> Result<usize> {
        if references == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.objects.sweep();
        let handle = (self.mint)();
        let object = UserObject { references: Mutex::new((references, Some(destroy))) };
        self.objects.table().insert(handle, Arc::new(object));
        Ok(handle)
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a handle that is not an object's, or no reference.
    pub fn retain_object(&self, object: usize, count: u32) -> Result<()> {
        self.objects.get(object)?.retain(count)
    }

    /// # Errors
    /// As [`Self::retain_object`], and for more references than there are.
    pub fn release_object(&self, object: usize, count: u32) -> Result<()> {
        self.objects.get(object)?.release(count)
    }

    /// Gives a graph references to an object: new ones, or those of the caller if they `move`.
    ///
    /// # Errors
    /// As [`Self::retain_object`].
    pub fn hold_object(&self, graph: &SharedGraph<W>, object: usize, count: u32, moves: bool) -> Result<()> {
        let object = self.objects.get(object)?;
        if count == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if !moves {
            object.retain(count)?;
        }
        lock(graph).held.push(Held { object, count });
        Ok(())
    }

    /// Takes references to an object from a graph.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for more than the graph has.
    pub fn let_object_go(&self, graph: &SharedGraph<W>, object: usize, count: u32) -> Result<()> {
        let object = self.objects.get(object)?;
        let mut graph = lock(graph);
        let is_it = |held: &Held| Arc::ptr_eq(&held.object, &object);
        let all: u32 = graph.held.iter().filter(|held| is_it(held)).map(|held| held.count).sum();
        let left = all.checked_sub(count).filter(|_| count > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (mut own, others): (Vec<_>, Vec<_>) = std::mem::take(&mut graph.held).into_iter().partition(is_it);
        graph.held = others;
        // The references are counted again: one entry has those that are left.
        own.iter_mut().for_each(|held| held.count = 0);
        if left > 0 {
            graph.held.push(Held { object: Arc::clone(&object), count: left });
        }
        drop(graph);
        object.release(count)
    }
}
