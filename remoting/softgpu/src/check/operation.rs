//! An operation that is running. Its accesses are compared with the accesses of other operations.

use super::clocks::{Clock, Point};
use super::order::Begun;
use super::report::What;
use super::{Checker, checker};
use crate::engine::watch::{Access, Watch};
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

thread_local! {
    /// The value is not dropped when the thread ends, because the program's own destructors may still call the driver.
    static CURRENT: RefCell<Option<ManuallyDrop<Arc<Operation>>>> = const { RefCell::new(None) };
}

/// Returns the operation that the calling thread executes.
pub fn current() -> Option<Arc<Operation>> {
    checker()?;
    CURRENT.with_borrow(|current| current.as_deref().map(Arc::clone))
}

/// Runs `work` with `operation` as the calling thread's current operation.
pub fn during<T>(operation: Arc<Operation>, work: impl FnOnce() -> T) -> T {
    operation.start();
    let before = CURRENT.replace(Some(ManuallyDrop::new(operation)));
    let done = work();
    drop(CURRENT.replace(before).map(ManuallyDrop::into_inner));
    done
}

/// Runs a function of the program in a stream. The host then comes after the stream's earlier work, and the stream's
/// later work comes after everything that the host knows.
pub fn host_function(function: impl FnOnce()) {
    let Some(operation) = current() else { return function() };
    operation.checker.order().host_joins(&operation.end());
    function();
    let known = operation.checker.order().host().clone();
    operation.find(&known);
}

pub struct Operation {
    checker: &'static Checker,
    /// The number in reports. Each part of the operation has its own number.
    id: AtomicU32,
    point: Mutex<Point>,
    past: RwLock<Arc<Clock>>,
    fenced: AtomicBool,
    /// The joined clock of words read without order. The next fence makes it part of `past`.
    pending: Mutex<Clock>,
}

impl Operation {
    pub fn new(checker: &'static Checker, begun: Begun, stream: usize, in_graph: bool) -> Arc<Operation> {
        let what = What { point: begun.point, stream, in_graph, name: "an operation".into() };
        Arc::new(Operation {
            checker,
            id: AtomicU32::new(checker.reports.add(what)),
            point: Mutex::new(begun.point),
            past: RwLock::new(begun.past),
            fenced: AtomicBool::new(false),
            pending: Mutex::default(),
        })
    }

    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Acquire)
    }

    pub fn name(&self, name: &str) {
        self.checker.reports.name(self.id(), name);
    }

    fn point(&self) -> Point {
        *self.point.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn past(&self) -> Arc<Clock> {
        Arc::clone(&self.past.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the point `other` happened before the present point of this operation, or is that point.
    pub fn is_after(&self, other: Point) -> bool {
        let own = self.point();
        if other.track == own.track {
            return other.epoch <= own.epoch;
        }
        self.past.read().unwrap_or_else(PoisonError::into_inner).has(other)
    }

    /// Returns the clock at the end of this operation.
    fn end(&self) -> Clock {
        let mut clock = Clock::clone(&self.past());
        clock.add(self.point().end());
        clock
    }

    /// Starts the operation. It comes after everything that earlier operations of the stream found while they ran.
    fn start(&self) {
        let track = self.point().track;
        if let Some(found) = self.checker.order().found_by(track) {
            self.join(found);
        }
    }

    fn join(&self, clock: &Clock) {
        let mut past = self.past.write().unwrap_or_else(PoisonError::into_inner);
        if !past.covers(clock) {
            Arc::make_mut(&mut past).join(clock);
        }
    }

    /// Orders this operation, and later operations of its stream, after `clock`.
    pub fn find(&self, clock: &Clock) {
        self.join(clock);
        self.checker.order().found(self.point().track, clock);
    }

    /// Orders this operation after the writes to a word. The stream waited for the word and has read the expected
    /// value.
    pub fn acquire_word(&self, address: u64) {
        let clock = self.checker.released_at(address);
        self.find(&clock);
    }

    /// Records a write of the stream to a word that other streams may wait for.
    pub fn release_word(&self, address: u64, bytes: u64) {
        self.name("cuStreamWriteValue");
        self.checker.order().release(address, &self.end());
        self.touch(Access::StrongWrite, address, bytes);
    }

    /// Records a free of memory, and reports each use of the memory that is not ordered with the free.
    pub fn frees(&self, base: u64, len: u64) {
        self.name("cuMemFreeAsync");
        let Some(key) = self.checker.ranges.key(base) else { return };
        self.checker.shadow.existing(key, len, |line, cell, mask| {
            self.meet(line - key + base, cell, mask, Access::Write);
        });
        self.checker.order().freed(base, len, self.end());
    }

    fn meet(&self, line: u64, cell: &mut super::shadow::Cell, mask: u64, access: Access) {
        let id = self.id();
        if cell.knows(mask, access, id) {
            return;
        }
        let before = |other| self.is_after(self.checker.point(other));
        let found = cell.conflicts(mask, access, id, before);
        self.checker.tell(self, access, line, found);
        cell.touch(mask, access, id, before);
    }
}

impl Watch for Operation {
    fn touch(&self, access: Access, address: u64, bytes: u64) {
        let Some(key) = self.checker.ranges.key(address) else { return };
        let to_address = address.wrapping_sub(key);
        self.checker.shadow.visit(key, bytes, |line, cell, mask| {
            self.meet(line.wrapping_add(to_address), cell, mask, access);
        });
    }

    fn fence(&self) {
        let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        self.join(&pending);
        self.fenced.store(true, Ordering::Release);
    }

    fn acquire(&self, address: u64, ordered: bool) {
        let order = self.checker.order();
        let Some(clock) = order.word(address) else { return };
        if ordered {
            self.join(clock);
        } else {
            self.pending.lock().unwrap_or_else(PoisonError::into_inner).join(clock);
        }
    }

    fn release(&self, address: u64, ordered: bool) {
        if !ordered && !self.fenced.load(Ordering::Acquire) {
            return;
        }
        let mut point = self.point.lock().unwrap_or_else(PoisonError::into_inner);
        let mut clock = Clock::clone(&self.past());
        clock.add(*point);
        self.checker.order().release(address, &clock);
        // Begin a new part, because later work of the kernel is not covered by this release.
        if point.epoch + 1 < point.end().epoch {
            point.epoch += 1;
            self.id.store(self.checker.reports.add_part(self.id(), *point), Ordering::Release);
        }
    }
}
