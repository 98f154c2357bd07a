//! Tables of handles. A handle is a number in a table and never a pointer that is dereferenced. A freed or invented
//! handle gives an error code, not a crash.

use foldhash::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The next handle. Handles look like addresses of 16-byte objects in a range that the kernel never maps. No two
/// objects of any kind have the same handle.
static NEXT: AtomicUsize = AtomicUsize::new(0x5f00_0000_1000);

pub fn mint() -> usize {
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// The objects of one kind that have a handle.
pub struct Table<T> {
    objects: RwLock<HashMap<usize, Arc<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { objects: RwLock::default() }
    }
}

impl<T> Table<T> {
    pub fn insert(&self, id: usize, object: Arc<T>) {
        self.objects.write().unwrap_or_else(PoisonError::into_inner).insert(id, object);
    }

    pub fn get(&self, id: usize) -> Option<Arc<T>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub fn remove(&self, id: usize) -> Option<Arc<T>> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }

    /// Removes and returns all objects that `dead` selects.
    pub fn remove_where(&self, dead: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        let ids: Vec<usize> = objects.iter().filter(|(_, object)| dead(object)).map(|(&id, _)| id).collect();
        ids.iter().filter_map(|id| objects.remove(id)).collect()
    }

    pub fn all(&self) -> Vec<Arc<T>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
