//! A context: the streams of a program on a device, and the fault that ends it.

use crate::check;
use crate::engine::{Fault, Output};
use crate::ffi::R;
use crate::process::config::Profile;
use crate::process::device::Device;
use crate::process::signals;
use crate::streams::queue::{Marker, Queue};
use driverapi::of_thread::{OfThreads, Own};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A queue that takes part in the context's order. Blocking ones and the legacy default stream wait for each other.
pub struct StreamQueue {
    pub queue: Arc<Queue>,
    pub blocking: bool,
    /// Whether its stream was destroyed. The queue stays until its work is done.
    pub retired: bool,
}

pub struct Context {
    pub id: usize,
    pub device: Arc<Device>,
    pub primary: bool,
    /// The number of times that the program made it or attached to it.
    pub attached: AtomicU32,
    pub flags: AtomicU32,
    pub cache_config: AtomicU32,
    limits: Mutex<HashMap<u32, u64>>,
    /// Set once a kernel that uses device `malloc` was launched: the size of that heap cannot change any more.
    pub uses_heap: AtomicBool,
    /// Set to stop running kernels: the context has faulted or is being destroyed.
    pub cancel: AtomicBool,
    pub legacy: Arc<Queue>,
    pub printed: Printed,
    profile: Profile,
    queues: Mutex<Vec<StreamQueue>>,
    fault: AtomicU32,
    /// The fault that calls may report already, or 0.
    told: AtomicU32,
}

/// The default streams of a thread, one for each context it used them in.
type PerThread = Vec<(Weak<Context>, Arc<Queue>)>;

static PER_THREAD: OfThreads<PerThread> = OfThreads::new(retire);

thread_local! {
    static QUEUES: Own<PerThread> = const { Cell::new(None) };
}

/// Retires the streams of a thread that has ended.
fn retire(queues: PerThread) {
    for (context, queue) in queues {
        if let Some(context) = context.upgrade() {
            if let Some(checker) = check::checker() {
                checker.retire(queue.number(), Some(context.legacy.number()));
            }
            context.retire_queue(&queue);
        }
    }
}

impl Context {
    pub fn new(id: usize, device: Arc<Device>, flags: u32, profile: Profile, primary: bool) -> R<Context> {
        device.charge(profile.context_bytes)?;
        Ok(Context {
            id,
            device,
            primary,
            attached: AtomicU32::new(1),
            flags: AtomicU32::new(flags),
            cache_config: AtomicU32::new(0),
            limits: Mutex::default(),
            uses_heap: AtomicBool::new(false),
            cancel: AtomicBool::new(false),
            legacy: Queue::new(profile.queue_limit),
            printed: Printed::default(),
            profile,
            queues: Mutex::default(),
            fault: AtomicU32::new(0),
            told: AtomicU32::new(0),
        })
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    fn limits(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the limit's value, if it was set.
    pub fn limit(&self, limit: u32) -> Option<u64> {
        self.limits().get(&limit).copied()
    }

    /// Takes memory of the device for what is beyond the default, as a GPU's driver does.
    pub fn set_limit(&self, limit: u32, value: u64) -> R {
        let mut limits = self.limits();
        let before = limits.get(&limit).map_or(0, |before| self.device.limit_bytes(limit, *before));
        let after = self.device.limit_bytes(limit, value);
        self.device.charge(after.saturating_sub(before))?;
        self.device.discharge(before.saturating_sub(after));
        limits.insert(limit, value);
        Ok(())
    }

    /// The lock under which work of several streams gets its order.
    pub fn queues(&self) -> MutexGuard<'_, Vec<StreamQueue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue for a new stream.
    pub fn add_queue(&self, blocking: bool) -> Arc<Queue> {
        let queue = Queue::new(self.profile.queue_limit);
        let mut queues = self.queues();
        queues.retain(|each| !(each.retired && each.queue.is_idle()));
        queues.push(StreamQueue { queue: Arc::clone(&queue), blocking, retired: false });
        queue
    }

    pub fn retire_queue(&self, queue: &Arc<Queue>) {
        if let Some(each) = self.queues().iter_mut().find(|each| Arc::ptr_eq(&each.queue, queue)) {
            each.retired = true;
            queue.retire();
        }
    }

    /// The default stream of the calling thread.
    pub fn per_thread_queue(self: &Arc<Self>) -> Arc<Queue> {
        PER_THREAD.with(&QUEUES, |queues| {
            if let Some((_, queue)) = queues.iter().find(|(context, _)| context.as_ptr() == Arc::as_ptr(self)) {
                return Arc::clone(queue);
            }
            queues.retain(|(context, _)| context.strong_count() > 0);
            let queue = self.add_queue(true);
            queues.push((Arc::downgrade(self), Arc::clone(&queue)));
            queue
        })
    }

    /// Returns the points where all work of the context submitted so far ends.
    pub fn ends(&self) -> Vec<Marker> {
        let queues = self.queues();
        queues.iter().map(|each| each.queue.end()).chain([self.legacy.end()]).collect()
    }

    /// Waits until all that was submitted is done.
    pub fn wait_for_all(&self) {
        let ends = self.ends();
        ends.iter().for_each(Marker::wait);
        if let Some(checker) = check::checker() {
            ends.iter().for_each(|end| checker.host_waited(end.queue()));
        }
    }

    pub fn synchronise(&self) -> R {
        self.wait_for_all();
        self.tell()
    }

    /// Records why work of this context failed. The first fault stays; everything still queued is skipped.
    pub fn fail(&self, fault: &Fault) {
        let stopped = self.cancel.swap(true, Ordering::AcqRel);
        let first = self.fault.compare_exchange(0, fault.code, Ordering::AcqRel, Ordering::Acquire).is_ok();
        // Stopping a kernel because its context ends is no fault.
        if first && !stopped {
            eprintln!("remotegpu: software GPU: CUDA error {}: {}", fault.code, fault.message.trim_end());
            if !self.profile.late_faults {
                self.told.store(fault.code, Ordering::Release);
            }
        }
    }

    pub fn fault(&self) -> u32 {
        self.fault.load(Ordering::Acquire)
    }

    /// Whether everything that runs must end.
    pub fn is_stopped(&self) -> bool {
        self.cancel.load(Ordering::Acquire)
    }

    /// Fails if the program may know of a fault.
    pub fn check(&self) -> R {
        match self.told.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Reports the fault in calls that synchronise: from here on every call reports it. Device printf appears now, too.
    pub fn tell(&self) -> R {
        self.printed.flush();
        self.told.store(self.fault(), Ordering::Release);
        self.check()
    }

    /// Stops everything that runs and waits until nothing does.
    pub fn stop(&self) {
        self.cancel.store(true, Ordering::Release);
        self.wait_for_all();
        self.queues().iter().for_each(|each| each.queue.retire());
        self.legacy.retire();
        self.printed.flush();
        self.device.discharge(self.profile.context_bytes);
        let limits = std::mem::take(&mut *self.limits());
        limits.into_iter().for_each(|(limit, value)| self.device.discharge(self.device.limit_bytes(limit, value)));
    }
}

/// Text that kernels printed, shown when the program synchronises, as CUDA does.
#[derive(Default)]
pub struct Printed {
    text: Mutex<Vec<u8>>,
}

/// Enough for the default printf buffer of CUDA many times over; a program that never synchronises still gets its text.
const PRINT_AT: usize = 1 << 20;

impl Printed {
    pub fn flush(&self) {
        let text = std::mem::take(&mut *self.text.lock().unwrap_or_else(PoisonError::into_inner));
        if !text.is_empty() {
            signals::print(&text);
        }
    }
}

impl Output for Printed {
    fn write(&self, text: &[u8]) {
        let mut kept = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(text);
        if kept.len() > PRINT_AT {
            drop(kept);
            self.flush();
        }
    }

    fn error(&self, text: &[u8]) {
        // Nothing can be done about a closed stream.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text);
    }
}
