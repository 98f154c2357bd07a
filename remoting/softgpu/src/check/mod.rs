//! The overlap checker (`REMOTEGPU_CHECK=overlap`). It finds two streams that access the same bytes without an order
//! between the accesses, if at least one access is a write.
//!
//! The driver calls the checker when a call orders work (streams, events, graphs, frees). The engine calls it when a
//! kernel accesses memory. The checker does not depend on how work is queued or how instructions run, and it changes
//! nothing that a program sees. `clocks` compares points in time, and `order` updates the clocks from calls. `shadow`
//! keeps the last accesses to each byte, and `ranges` lists the watched memory. `operation` is a piece of work that
//! runs, and `report` prints the conflicts.

mod clocks;
mod operation;
mod order;
mod ranges;
mod report;
mod shadow;

pub use clocks::Step;
pub use operation::{Operation, current, during, host_function};

use crate::engine::watch::{self, Access};
use crate::ffi::print;
use clocks::{Clock, Point};
use order::Order;
use ranges::Ranges;
use report::Reports;
use shadow::Shadow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

static CHECKER: OnceLock<Checker> = OnceLock::new();

/// The properties of a stream that matter for order.
pub struct Place {
    /// The number of the stream's queue.
    pub queue: u64,
    /// The numbers of the queues whose earlier work must finish before this stream's next work.
    pub after: Vec<u64>,
    /// The stream's handle.
    pub stream: usize,
}

pub struct Checker {
    order: Mutex<Order>,
    shadow: Shadow,
    ranges: Ranges,
    reports: Reports,
}

/// Starts the checker if the setting asks for it.
pub fn start(setting: Option<&str>) {
    match setting {
        None | Some("" | "0") => {}
        Some("overlap") => {
            CHECKER.get_or_init(|| Checker {
                order: Mutex::default(),
                shadow: Shadow::default(),
                ranges: Ranges::default(),
                reports: Reports::default(),
            });
            watch::switch_on();
        }
        Some(other) => print(&format!(
            "remotegpu: REMOTEGPU_CHECK={other} names no check, so nothing is checked; set it to overlap"
        )),
    }
}

/// Returns the checker, or `None` if the program is not checked.
pub fn checker() -> Option<&'static Checker> {
    CHECKER.get()
}

impl Checker {
    fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation of a stream and orders it after the stream's earlier work.
    pub fn begin(&'static self, place: &Place) -> Arc<Operation> {
        let begun = self.order().begin(place.queue, &place.after);
        Operation::new(self, begun, place.stream, false)
    }

    /// Begins the steps of a graph that a stream launches. Each step names the earlier steps that it waits for.
    pub fn graph(&'static self, executable: usize, place: &Place, steps: &[Step]) -> Vec<Arc<Operation>> {
        let begun = self.order().graph(executable, place.queue, &place.after, steps);
        begun.into_iter().map(|begun| Operation::new(self, begun, place.stream, true)).collect()
    }

    pub fn record(&self, event: usize, queue: u64) {
        self.order().record(event, queue);
    }

    pub fn wait(&self, queue: u64, event: usize) {
        self.order().wait(queue, event);
    }

    /// Records that all work of the queue is done, as far as the host knows.
    pub fn host_waited(&self, queue: u64) {
        self.order().host_waited(queue);
    }

    /// Records that the host knows that the event is reached.
    pub fn host_saw(&self, event: usize) {
        self.order().host_saw(event);
    }

    /// Retires a destroyed stream. `legacy` is the queue of the default stream that waits for it, and later work of
    /// that queue stays ordered after the retired stream's work.
    pub fn retire(&self, queue: u64, legacy: Option<u64>) {
        self.order().retire(queue, legacy);
    }

    /// Watches new memory that no stream has used before.
    pub fn allocated(&self, base: u64, len: u64) {
        self.ranges.insert(base, len, base);
        self.shadow.clear(base, len);
    }

    /// Watches memory of a pool, which another stream may still use. If `is_after_free` is set, the pool orders this
    /// stream after the free that returned the memory.
    pub fn allocated_in_order(&'static self, base: u64, len: u64, place: &Place, is_after_free: bool) {
        self.ranges.insert(base, len, base);
        let operation = self.begin(place);
        operation.name("cuMemAllocAsync");
        let freed = self.order().handed_out(base, len);
        if is_after_free {
            operation.find(&freed);
        }
        self.examine_all(&operation, base, len);
        self.shadow.clear(base, len);
    }

    /// Watches a mapping of physical memory. `physical` identifies the physical memory, so that several mappings of it
    /// share one shadow.
    pub fn mapped(&self, base: u64, len: u64, physical: usize, offset: u64) {
        let start = self.ranges.physical(physical);
        self.ranges.insert(base, len, start + offset);
    }

    /// Stops watching an address range.
    pub fn released(&self, base: u64) {
        self.ranges.remove(base);
    }

    /// Stops watching memory that other processes also use.
    pub fn exempt(&self, base: u64) {
        if let Some((len, key)) = self.ranges.remove(base) {
            self.shadow.clear(key, len);
        }
    }

    /// Reports all accesses in a range that have no order to `operation`.
    fn examine_all(&self, operation: &Operation, base: u64, len: u64) {
        let Some(key) = self.ranges.key(base) else { return };
        self.shadow.existing(key, len, |line, cell, mask| {
            let touch =
                cell.conflicts(mask, Access::Write, operation.id(), |other| operation.is_after(self.point(other)));
            self.tell(operation, Access::Write, line.wrapping_sub(key).wrapping_add(base), touch);
        });
    }

    fn point(&self, id: u32) -> Point {
        self.reports.point(id)
    }

    fn tell(&self, operation: &Operation, access: Access, line: u64, found: Vec<shadow::Conflict>) {
        for conflict in found {
            self.reports.tell(conflict, operation.id(), access, line);
        }
    }

    /// Returns the joined clock of all known writes to a word. A stream that waits for the word comes after these
    /// writes.
    fn released_at(&self, address: u64) -> Clock {
        let Some(key) = self.ranges.key(address) else { return self.order().host().clone() };
        let mut clock = self.order().word(address).cloned().unwrap_or_default();
        self.shadow.existing(key, 1, |_, cell, mask| {
            for id in cell.writers(mask) {
                clock.add(self.point(id));
            }
        });
        clock
    }
}
