//! The program's calls about user objects, and the references that graphs hold.

use crate::user_object::{Destructor, Held, UserObject};
use crate::{Registry, Result, SharedGraph, Work, lock};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::sync::Arc;

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
        self.objects.table().insert(handle, UserObject::new(destroy, references));
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
