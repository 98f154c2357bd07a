//! Values that NVIDIA's libraries store in a context under their own keys.
//!
//! The driver that owns the contexts calls `drop_context` when it destroys or resets one.

use crate::types::CUcontext;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::ptr::{with_exposed_provenance_mut, without_provenance_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A destructor: called with context, key and value when the context is destroyed or reset.
pub type Destructor = unsafe extern "C" fn(CUcontext, *mut c_void, *mut c_void);

struct Entry {
    value: usize,
    destructor: Option<Destructor>,
}

impl Entry {
    fn destroy(self, context: CUcontext, key: usize) {
        if let Some(destructor) = self.destructor {
            // SAFETY: the library that stored the value gave this function for it, and the entry is already removed.
            unsafe { destructor(context, without_provenance_mut(key), with_exposed_provenance_mut(self.value)) };
        }
    }
}

/// Entries by context, then by key. Addresses are stored as numbers: they are compared and returned, never
/// dereferenced.
type Storage = BTreeMap<usize, HashMap<usize, Entry>>;

static STORAGE: Mutex<Storage> = Mutex::new(BTreeMap::new());

fn storage() -> MutexGuard<'static, Storage> {
    STORAGE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn put(context: CUcontext, key: *mut c_void, value: *mut c_void, destructor: Option<Destructor>) {
    let entry = Entry { value: value.expose_provenance(), destructor };
    storage().entry(context.addr()).or_default().insert(key.addr(), entry);
}

pub(crate) fn get(context: CUcontext, key: *mut c_void) -> Option<*mut c_void> {
    let value = storage().get(&context.addr())?.get(&key.addr())?.value;
    Some(with_exposed_provenance_mut(value))
}

/// Removes a value. Returns whether it existed.
pub(crate) fn delete(context: CUcontext, key: *mut c_void) -> bool {
    storage().get_mut(&context.addr()).is_some_and(|entries| entries.remove(&key.addr()).is_some())
}

/// Removes all values of a context and calls their destructors. A destructor may call the driver, so the lock is not
/// held during the calls.
pub fn drop_context(context: CUcontext) {
    let gone = storage().remove(&context.addr());
    for (key, entry) in gone.unwrap_or_default() {
        entry.destroy(context, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static DESTROYED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn count(context: CUcontext, key: *mut c_void, value: *mut c_void) {
        assert_eq!((context.addr(), get(context, key)), (0x700, None));
        DESTROYED.fetch_add(value.addr(), Ordering::Relaxed);
    }

    #[test]
    fn values_belong_to_a_context_and_go_with_it() {
        let [first, second, key, value] = [0x700, 0x800, 1, 40].map(without_provenance_mut::<c_void>);
        put(first, key, value, Some(count));
        put(first, without_provenance_mut(2), without_provenance_mut(2), Some(count));
        put(first, without_provenance_mut(3), without_provenance_mut(3), None);
        put(second, key, value, Some(count));
        assert_eq!(get(first, key), Some(value));
        assert_eq!(get(first, without_provenance_mut(9)), None);
        assert!(delete(first, without_provenance_mut(3)));
        assert!(!delete(first, without_provenance_mut(3)));
        drop_context(first);
        assert_eq!(DESTROYED.load(Ordering::Relaxed), 42);
        assert_eq!((get(first, key), get(second, key)), (None, Some(value)));
    }
}
