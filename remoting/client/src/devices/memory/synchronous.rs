//! Memory that the program marked with `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, by its start. The mark only changes answers
//! to queries. Copies always complete before the program could notice that they are asynchronous.

use crate::session::lock;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

static MARKED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
/// Whether the program has ever marked memory. All programs free memory and few mark it, so this avoids the lock.
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

/// Removes the mark at an address, so that memory allocated there later is not marked.
pub fn forget(start: u64) {
    if ANY.load(Ordering::Acquire) {
        lock(&MARKED).remove(&start);
    }
}
