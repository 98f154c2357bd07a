//! Which memory the program has marked by `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, by where it begins. Only what is told of it
//! depends on the mark: copies that may be asynchronous are complete wherever the program could tell.

use crate::session::lock;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

static MARKED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
/// Whether anything was ever marked: few programs do, and all free.
static ANY: AtomicBool = AtomicBool::new(false);

pub fn mark(start: u64, marked: bool) {
    if marked {
        ANY.store(true, Ordering::Release);
        lock(&MARKED).insert(start);
    } else {
        forget(start);
    }
}

pub fn is_marked(start: u64) -> bool {
    ANY.load(Ordering::Acquire) && lock(&MARKED).contains(&start)
}

/// What begins there next is not marked.
pub fn forget(start: u64) {
    if ANY.load(Ordering::Acquire) {
        lock(&MARKED).remove(&start);
    }
}
