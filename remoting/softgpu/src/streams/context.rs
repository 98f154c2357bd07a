//! A context: a program's streams on one device, and the fault that ends the context.

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

/// A stream's queue in its context. Blocking queues and the legacy default stream wait for each other.
pub struct StreamQueue {
    pub queue: Arc<Queue>,
    pub blocking: bool,
    /// Whether the queue's stream was destroyed. The queue stays until its work is done.
    pub retired: bool,
}

pub struct Context {
    pub id: usize,
    pub device: Arc<Device>,
    pub primary: bool,
    /// The number of times that the program created the context or attached to it.
    pub attached: AtomicU32,
    pub flags: AtomicU32,
    pub cache_config: AtomicU32,
    limits: Mutex<HashMap<u32, u64>>,
    /// Whether a kernel that uses device `malloc` was launched. After that, the size of the heap cannot change.
    pub uses_heap: AtomicBool,
    /// Whether running kernels must stop, because the context has faulted or is being destroyed.
    pub cancel: AtomicBool,
    pub legacy: Arc<Queue>,
    pub printed: Printed,
    profile: Profile,
    queues: Mutex<Vec<StreamQueue>>,
    fault: AtomicU32,
    /// The fault code that calls report, or 0. It is set when the program may learn of the fault.
    told: AtomicU32,
}

/// A thread's default streams, one for each context in which the thread used a default stream.
type PerThread = Vec<(Weak<Context>, Arc<Queue>)>;

static PER_THREAD: OfThreads<PerThread> = OfThreads::new(retire);

thread_local! {
    static QUEUES: Own<PerThread> = const { Cell::new(None) };
}

/// Retires the default streams of a thread that has ended.
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

    /// Returns a limit's value, or `None` if the program did not set the limit.
    pub fn limit(&self, limit: u32) -> Option<u64> {
        self.limits().get(&limit).copied()
    }

    /// Sets a limit. The device is charged for the memory that the new value needs, instead of the memory for the old
    /// value.
    pub fn set_limit(&self, limit: u32, value: u64) -> R {
        let mut limits = self.limits();
        let before = limits.get(&limit).map_or(0, |before| self.device.limit_bytes(limit, *before));
        let after = self.device.limit_bytes(limit, value);
        self.device.charge(after.saturating_sub(before))?;
        self.device.discharge(before.saturating_sub(after));
        limits.insert(limit, value);
        Ok(())
    }

    /// Locks the list of queues. While the lock is held, work of several streams gets its order.
    pub fn queues(&self) -> MutexGuard<'_, Vec<StreamQueue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a queue for a new stream.
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

    /// Returns the default stream of the calling thread.
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

    /// Returns a marker for each queue: the end of all work that was submitted so far.
    pub fn ends(&self) -> Vec<Marker> {
        let queues = self.queues();
        queues.iter().map(|each| each.queue.end()).chain([self.legacy.end()]).collect()
    }

    /// Waits until all work that was submitted so far is done.
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

    /// Records the fault that made work of this context fail. Only the first fault is kept. All queued work is skipped.
    pub fn fail(&self, fault: &Fault) {
        let stopped = self.cancel.swap(true, Ordering::AcqRel);
        let first = self.fault.compare_exchange(0, fault.code, Ordering::AcqRel, Ordering::Acquire).is_ok();
        // A kernel that was stopped because its context ends is not a fault.
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

    /// Whether all running work must stop.
    pub fn is_stopped(&self) -> bool {
        self.cancel.load(Ordering::Acquire)
    }

    /// Fails if a fault of the context was already reported.
    pub fn check(&self) -> R {
        match self.told.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Reports the fault of the context, as calls that synchronise do. After this, every call fails. Also prints the
    /// text of device printf.
    pub fn tell(&self) -> R {
        self.printed.flush();
        self.told.store(self.fault(), Ordering::Release);
        self.check()
    }

    /// Stops all running work, waits until none is left, and ends the context's charges on the device.
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

/// The text that kernels printed. It is shown when the program synchronises, as in CUDA.
#[derive(Default)]
pub struct Printed {
    text: Mutex<Vec<u8>>,
}

/// The number of bytes beyond which text is printed without a synchronisation. It is many times CUDA's default printf
/// buffer.
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
        // Ignore errors, for example of a closed stderr.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text);
    }
}
