//! Handles that the program gets. A handle is a number that names an entry of a table. It is never used as an address.
//!
//! A handle contains the kind of object, the index of the entry and the entry's generation. So null, freed, foreign and
//! random handles are all detected. A handle is non-zero and aligned like a pointer, because programs test it against
//! null and use its low bits for tags.

use std::sync::{Arc, PoisonError, RwLock};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    Context = 1,
    Stream,
    Event,
    Module,
    Function,
    Library,
    Kernel,
    Pool,
    Link,
    Memory,
    Executable,
    Array,
}

const INDEX_SHIFT: u32 = 4;
const GENERATION_SHIFT: u32 = 28;
const KIND_SHIFT: u32 = 44;
const MAX_ENTRIES: usize = 1 << (GENERATION_SHIFT - INDEX_SHIFT);

struct Entry<T> {
    generation: u16,
    value: Option<Arc<T>>,
}

struct Entries<T> {
    all: Vec<Entry<T>>,
    free: Vec<usize>,
}

/// A table of all objects of one kind.
pub struct Table<T> {
    kind: Kind,
    entries: RwLock<Entries<T>>,
}

impl<T> Table<T> {
    pub const fn new(kind: Kind) -> Self {
        Table { kind, entries: RwLock::new(Entries { all: Vec::new(), free: Vec::new() }) }
    }

    /// Adds the object that `make` builds for its handle. Returns `None` if the table is full.
    pub fn insert(&self, make: impl FnOnce(usize) -> Arc<T>) -> Option<Arc<T>> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let index = match entries.free.pop() {
            Some(index) => index,
            None if entries.all.len() < MAX_ENTRIES => {
                entries.all.push(Entry { generation: 0, value: None });
                entries.all.len() - 1
            }
            None => return None,
        };
        let entry = &mut entries.all[index];
        let value = make(encode(self.kind, index, entry.generation));
        entry.value = Some(Arc::clone(&value));
        Some(value)
    }

    pub fn get(&self, handle: usize) -> Option<Arc<T>> {
        let (index, generation) = decode(self.kind, handle)?;
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.all.get(index).filter(|entry| entry.generation == generation)?;
        entry.value.clone()
    }

    /// Removes and returns the object. Its handle becomes invalid.
    pub fn remove(&self, handle: usize) -> Option<Arc<T>> {
        let (index, generation) = decode(self.kind, handle)?;
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.all.get_mut(index).filter(|entry| entry.generation == generation)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        entries.free.push(index);
        Some(value)
    }

    /// Returns all objects that the table has now.
    pub fn all(&self) -> Vec<Arc<T>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.all.iter().filter_map(|entry| entry.value.clone()).collect()
    }

    /// Calls `ask` for the objects until it returns `Some`, and returns that value.
    pub fn find_map<A>(&self, ask: impl FnMut(&T) -> Option<A>) -> Option<A> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.all.iter().filter_map(|entry| entry.value.as_deref()).find_map(ask)
    }

    /// Removes and returns every object for which `gone` returns true.
    pub fn remove_where(&self, gone: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let Entries { all, free } = &mut *entries;
        let mut removed = Vec::new();
        for (index, entry) in all.iter_mut().enumerate() {
            if entry.value.as_deref().is_some_and(&gone) {
                removed.extend(entry.value.take());
                entry.generation = entry.generation.wrapping_add(1);
                free.push(index);
            }
        }
        removed
    }
}

fn encode(kind: Kind, index: usize, generation: u16) -> usize {
    (kind as usize) << KIND_SHIFT | usize::from(generation) << GENERATION_SHIFT | index << INDEX_SHIFT
}

fn decode(kind: Kind, handle: usize) -> Option<(usize, u16)> {
    let index = (handle >> INDEX_SHIFT) & (MAX_ENTRIES - 1);
    let generation = (handle >> GENERATION_SHIFT) as u16;
    (encode(kind, index, generation) == handle).then_some((index, generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    static NUMBERS: Table<u32> = Table::new(Kind::Event);

    #[test]
    fn only_live_handles_of_the_kind_are_found() {
        let mut handle = 0;
        NUMBERS.insert(|h| {
            handle = h;
            Arc::new(7)
        });
        assert_eq!(NUMBERS.get(handle).as_deref(), Some(&7));
        for wrong in [0, 1, 2, handle + 1, handle | 1 << 60, encode(Kind::Stream, 0, 0), usize::MAX, 0xdead_beef] {
            assert!(NUMBERS.get(wrong).is_none(), "{wrong:#x}");
        }
        assert_eq!(NUMBERS.remove(handle).as_deref(), Some(&7));
        assert!(NUMBERS.get(handle).is_none() && NUMBERS.remove(handle).is_none());
        let mut next = 0;
        NUMBERS.insert(|h| {
            next = h;
            Arc::new(8)
        });
        assert_ne!(next, handle, "the entry is reused under another generation");
        assert_eq!(NUMBERS.remove_where(|value| *value == 8).len(), 1);
        assert!(NUMBERS.get(next).is_none());
    }
}
