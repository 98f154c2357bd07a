//! Calls of the program that create user objects, and calls that change the references to them.

use crate::user_object::{Destructor, Held, UserObject};
use crate::{Registry, Result, SharedGraph, Work, lock};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::sync::Arc;

impl<W: Work> Registry<W> {
    /// Creates a user object and returns its handle. The program owns `references` references to the object.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if `references` is 0.
    pub fn create_object(&self, destroy: Destructor, references: u32) -> Result<usize> {
        if references == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.objects.sweep();
        let handle = (self.mint)();
        self.objects.table().insert(handle, UserObject::new(destroy, references));
        Ok(handle)
    }

    /// Adds `count` references of the program to a user object.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the handle is not that of a user object, or `count` is 0.
    pub fn retain_object(&self, object: usize, count: u32) -> Result<()> {
        self.objects.get(object)?.retain(count)
    }

    /// Releases `count` references of the program to a user object. The destructor is called with the last reference.
    ///
    /// # Errors
    /// The same errors as [`Self::retain_object`], and `CUDA_ERROR_INVALID_VALUE` if `count` exceeds the number of
    /// references.
    pub fn release_object(&self, object: usize, count: u32) -> Result<()> {
        self.objects.get(object)?.release(count)
    }

    /// Adds `count` references to an object to a graph. They are new references or, if `moves` is set, references of
    /// the caller.
    ///
    /// # Errors
    /// The same errors as [`Self::retain_object`].
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

    /// Removes `count` references to an object from a graph.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the graph has fewer references.
    pub fn let_object_go(&self, graph: &SharedGraph<W>, object: usize, count: u32) -> Result<()> {
        let object = self.objects.get(object)?;
        let mut graph = lock(graph);
        let is_it = |held: &Held| Arc::ptr_eq(&held.object, &object);
        let all: u32 = graph.held.iter().filter(|held| is_it(held)).map(|held| held.count).sum();
        let left = all.checked_sub(count).filter(|_| count > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (mut own, others): (Vec<_>, Vec<_>) = std::mem::take(&mut graph.held).into_iter().partition(is_it);
        graph.held = others;
        // The graph may have several entries for the object. From now on one entry holds the remaining count.
        own.iter_mut().for_each(|held| held.count = 0);
        if left > 0 {
            graph.held.push(Held { object: Arc::clone(&object), count: left });
        }
        drop(graph);
        object.release(count)
    }
}
