//! A thread of the session for work that may block. The reader must not block, so it queues this work as jobs.

use crate::Code;
use crate::program::{log, sys};
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};

pub type Job<Owner> = Box<dyn FnOnce(&Owner) + Send>;

/// The queue of jobs, which run in order. `Owner` is the object that a job gets: the session.
pub struct Jobs<Owner>(OnceLock<Sender<Job<Owner>>>);

impl<Owner> Default for Jobs<Owner> {
    fn default() -> Self {
        Jobs(OnceLock::new())
    }
}

impl<Owner: Send + Sync + 'static> Jobs<Owner> {
    /// Starts the thread for jobs, which calls `run` for each. Call this before any frame can arrive that queues a job.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if no thread can be started.
    pub fn start(&self, owner: &Arc<Owner>, run: fn(&Owner, Job<Owner>)) -> Result<(), Code> {
        let (sender, receiver) = mpsc::channel::<Job<Owner>>();
        if self.0.set(sender).is_err() {
            return Ok(());
        }
        let owner = Arc::clone(owner);
        sys::spawn("remotegpu-jobs", move || receiver.into_iter().for_each(|job| run(&owner, job))).map_err(|error| {
            log::error(&format!("cannot start a thread: {error}"));
            CUDA_ERROR_OUT_OF_MEMORY
        })
    }

    /// Queues a job and returns at once. If the thread was never started, the job is dropped.
    pub fn soon(&self, job: impl FnOnce(&Owner) + Send + 'static) {
        if let Some(jobs) = self.0.get() {
            // The thread ends only with the process, so this cannot fail.
            let _ = jobs.send(Box::new(job));
        }
    }
}
