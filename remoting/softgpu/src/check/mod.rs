//! The overlap checker (`REMOTEGPU_CHECK=overlap`): finds two streams that touch the same bytes, one writing, with no
//! order between them.
//!
//! The driver calls it where a call makes order (streams, events, graphs, frees), and the engine where a kernel touches
//! memory. It must not know how work is queued or how instructions run, and it changes nothing that a program sees.
//! `clocks` says which point happened before which, `order` takes that from calls, `shadow` keeps the last accesses to
//! each byte, `ranges` says which bytes are watched, `operation` is a piece of work under way, and `report` writes what
//! was found.

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

/// A stream, as far as order is concerned.
pub struct Place {
    /// The number of its queue.
    pub queue: u64,
    /// The queues whose work of before it waits for.
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

/// Starts checking, if that is what the setting says.
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

/// The checker, if the program is checked.
pub fn checker() -> Option<&'static Checker> {
    CHECKER.get()
}

impl Checker {
    fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins work of a stream: gives it its place in the order.
    pub fn begin(&'static self, place: &Place) -> Arc<Operation> {
        let begun = self.order().begin(place.queue, &place.after);
        Operation::new(self, begun, place.stream, false)
    }

    /// Begins the steps of a graph that a stream launches, each with the steps that it waits for.
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

    /// Notes that the host knows all work of the queue to be done.
    pub fn host_waited(&self, queue: u64) {
        self.order().host_waited(queue);
    }

    /// Notes that the host knows an event to be reached.
    pub fn host_saw(&self, event: usize) {
        self.order().host_saw(event);
    }

    /// Retires a destroyed stream. Its work stays before later work of the default stream that waits for it.
    pub fn retire(&self, queue: u64, legacy: Option<u64>) {
        self.order().retire(queue, legacy);
    }

    /// Watches memory that no stream has used.
    pub fn allocated(&self, base: u64, len: u64) {
        self.ranges.insert(base, len, base);
        self.shadow.clear(base, len);
    }

    /// Watches memory of a pool, which another stream may still use. `is_after_free`: the pool itself makes sure that
    /// the stream comes after the free that gave the memory back.
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

    /// Watches memory at a second address, or at its first: `physical` tells one piece of memory from others.
    pub fn mapped(&self, base: u64, len: u64, physical: usize, offset: u64) {
        let start = self.ranges.physical(physical);
        self.ranges.insert(base, len, start + offset);
    }

    /// Ends the watch of an address range.
    pub fn released(&self, base: u64) {
        self.ranges.remove(base);
    }

    /// Stops watching memory that other processes use, too.
    pub fn exempt(&self, base: u64) {
        if let Some((len, key)) = self.ranges.remove(base) {
            self.shadow.clear(key, len);
        }
    }

    /// Finds uses of memory without order to `operation`, in all of a range.
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

    /// Returns the clock of a word's known writers, for a reader that waits for them.
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
