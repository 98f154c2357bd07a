//! A piece of work under way: its accesses are compared with those of other work.

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
    /// Without a destructor, since destructors of the program's own may still call the driver.
    static CURRENT: RefCell<Option<ManuallyDrop<Arc<Operation>>>> = const { RefCell::new(None) };
}

/// The operation that the calling thread does.
pub fn current() -> Option<Arc<Operation>> {
    checker()?;
    CURRENT.with_borrow(|current| current.as_deref().map(Arc::clone))
}

/// Does an operation's work.
pub fn during<T>(operation: Arc<Operation>, work: impl FnOnce() -> T) -> T {
    operation.start();
    let before = CURRENT.replace(Some(ManuallyDrop::new(operation)));
    let done = work();
    drop(CURRENT.replace(before).map(ManuallyDrop::into_inner));
    done
}

/// Runs a function of the program in a stream: the host knows what came before, and the stream what the host knows.
pub fn host_function(function: impl FnOnce()) {
    let Some(operation) = current() else { return function() };
    operation.checker.order().host_joins(&operation.end());
    function();
    let known = operation.checker.order().host().clone();
    operation.find(&known);
}

pub struct Operation {
    checker: &'static Checker,
    /// Changes with each part.
    id: AtomicU32,
    point: Mutex<Point>,
    past: RwLock<Arc<Clock>>,
    fenced: AtomicBool,
    /// The clock read from released words; it counts from the next fence on.
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

    /// Whether an operation's part happened before this.
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

    /// Starts the operation: what earlier operations of the stream found while they ran holds for it, too.
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

    /// Puts this operation, and what comes after it in its stream, after `clock`.
    pub fn find(&self, clock: &Clock) {
        self.join(clock);
        self.checker.order().found(self.point().track, clock);
    }

    /// Acquires a word: the stream saw in it the value that it waited for.
    pub fn acquire_word(&self, address: u64) {
        let clock = self.checker.released_at(address);
        self.find(&clock);
    }

    /// Releases a word: the stream writes it, and others may wait for it.
    pub fn release_word(&self, address: u64, bytes: u64) {
        self.name("cuStreamWriteValue");
        self.checker.order().release(address, &self.end());
        self.touch(Access::StrongWrite, address, bytes);
    }

    /// Frees memory: reports uses of it that have no order to that.
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
        // Later work of the kernel is not released.
        if point.epoch + 1 < point.end().epoch {
            point.epoch += 1;
            self.id.store(self.checker.reports.add_part(self.id(), *point), Ordering::Release);
        }
    }
}
