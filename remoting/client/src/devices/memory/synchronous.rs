//! Memory that the program has marked by `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, by its start. The mark only changes what
//! queries answer: copies that may be asynchronous are complete wherever the program could notice.

use crate::session::lock;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

static MARKED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
/// Whether anything was ever marked: few programs mark memory, but all free some.
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

/// Removes the mark of an address, so that the next memory there has none.
pub fn forget(start: u64) {
    if ANY.load(Ordering::Acquire) {
        lock(&MARKED).remove(&start);
    }
}
