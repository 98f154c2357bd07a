//! Helper threads for driver calls that may block: module loads, links, contexts, unmapping, page-locked memory.
//!
//! A job runs on a helper thread. Its follow-up then runs on the sequencer thread, with access to the session.

use crate::driver::Driver;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The follow-up of a job, which the sequencer runs with the job's result.
type Then<S> = Box<dyn FnOnce(&mut S) + Send>;
/// The kind of a finished job, and its follow-up.
type Report<S> = (Kind, Then<S>);
type Job<S> = Box<dyn FnOnce(&Driver) -> Then<S> + Send>;

#[derive(Clone, Copy)]
enum Kind {
    AtOnce,
    InOrder,
    /// Work of a long-lived thread that is not a job.
    Other,
}

/// Limit on the unordered jobs that run at the same time.
const AT_ONCE: usize = 32;

pub struct Helpers<S: 'static> {
    driver: Arc<Driver>,
    results: Receiver<Report<S>>,
    report: Sender<Report<S>>,
    memory: Option<Sender<Job<S>>>,
    running: usize,
    /// The number of ordered jobs whose results have not been taken.
    in_order: usize,
    waiting: VecDeque<Job<S>>,
    wake: Arc<OwnedFd>,
}

impl<S: 'static> Helpers<S> {
    /// Creates the helpers. Their threads start with the first jobs.
    ///
    /// # Errors
    /// Fails if the system has no more descriptors.
    pub fn new(driver: Arc<Driver>) -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (report, results) = channel();
        Ok(Helpers {
            driver,
            results,
            report,
            memory: None,
            running: 0,
            in_order: 0,
            waiting: VecDeque::new(),
            wake: Arc::new(wake),
        })
    }

    /// Returns a descriptor that is readable when a result is available.
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Runs `job` on a new thread.
    pub fn start<T: Send + 'static>(
        &mut self,
        job: impl FnOnce(&Driver) -> T + Send + 'static,
        then: impl FnOnce(&mut S, T) + Send + 'static,
    ) {
        self.waiting.push_back(boxed(job, then));
        self.start_waiting();
    }

    /// Runs `job` after all earlier jobs that were started with this function.
    pub fn start_in_order<T: Send + 'static>(
        &mut self,
        job: impl FnOnce(&Driver) -> T + Send + 'static,
        then: impl FnOnce(&mut S, T) + Send + 'static,
    ) {
        let memory = self.memory.take().unwrap_or_else(|| {
            let (sender, jobs) = channel::<Job<S>>();
            let (driver, report) = (self.driver.clone(), self.reporter(Kind::InOrder));
            std::thread::spawn(move || jobs.into_iter().for_each(|job| report(job(&driver))));
            sender
        });
        self.in_order += 1;
        // The channel is open: the thread ends only when this sender is dropped.
        let _ = memory.send(boxed(job, then));
        self.memory = Some(memory);
    }

    fn start_waiting(&mut self) {
        while self.running < AT_ONCE {
            let Some(job) = self.waiting.pop_front() else { return };
            self.running += 1;
            let (driver, report) = (self.driver.clone(), self.reporter(Kind::AtOnce));
            std::thread::spawn(move || report(job(&driver)));
        }
    }

    /// Returns a function that another thread can call to queue work for the sequencer. The work of one thread runs in
    /// its order.
    pub fn for_thread(&self) -> impl Fn(Then<S>) + Send + Clone + use<S> {
        self.reporter(Kind::Other)
    }

    fn reporter(&self, kind: Kind) -> impl Fn(Then<S>) + Send + Clone + use<S> {
        let (results, wake) = (self.report.clone(), self.wake.clone());
        move |then| {
            // The channel has no receiver after the session has ended.
            let _ = results.send((kind, then));
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        }
    }

    /// Clears the descriptor `wake` after it became readable. It becomes readable again when a new result arrives.
    pub fn rest(&self) {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
    }

    /// Takes the next result. The caller runs it with the session.
    pub fn next_result(&mut self) -> Option<Then<S>> {
        let (kind, then) = self.results.try_recv().ok()?;
        match kind {
            Kind::AtOnce => {
                self.running -= 1;
                self.start_waiting();
            }
            Kind::InOrder => self.in_order -= 1,
            Kind::Other => {}
        }
        Some(then)
    }

    /// Whether all jobs have ended and all results were taken.
    pub fn is_idle(&self) -> bool {
        self.running == 0 && self.in_order == 0
    }
}

fn boxed<S, T: Send + 'static>(
    job: impl FnOnce(&Driver) -> T + Send + 'static,
    then: impl FnOnce(&mut S, T) + Send + 'static,
) -> Job<S> {
    Box::new(move |driver| {
        let result = job(driver);
        Box::new(move |session| then(session, result))
    })
}
