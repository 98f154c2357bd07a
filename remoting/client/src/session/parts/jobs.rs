//! Work that the reader hands over because it may block: a thread of the session's own does it, in order.

use crate::Code;
use crate::program::{log, sys};
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};

type Job<Owner> = Box<dyn FnOnce(&Owner) + Send>;

/// The queue of jobs. `Owner` is what they work on: the session.
pub struct Jobs<Owner>(OnceLock<Sender<Job<Owner>>>);

impl<Owner> Default for Jobs<Owner> {
    fn default() -> Self {
        Jobs(OnceLock::new())
    }
}

impl<Owner: Send + Sync + 'static> Jobs<Owner> {
    /// Starts the thread for jobs. Must be called before anything can arrive that leads to a job.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if no thread can be started.
    pub fn start(&self, owner: &Arc<Owner>) -> Result<(), Code> {
        let (sender, receiver) = mpsc::channel::<Job<Owner>>();
        if self.0.set(sender).is_err() {
            return Ok(());
        }
        let owner = Arc::clone(owner);
        sys::spawn("remotegpu-jobs", move || receiver.into_iter().for_each(|job| job(&owner))).map_err(|error| {
            log::error(&format!("cannot start a thread: {error}"));
            CUDA_ERROR_OUT_OF_MEMORY
        })
    }

    /// Queues a job and returns at once. Without [`Jobs::start`] it does nothing.
    pub fn soon(&self, job: impl FnOnce(&Owner) + Send + 'static) {
        if let Some(jobs) = self.0.get() {
            // The thread ends with the process only.
            let _ = jobs.send(Box::new(job));
        }
    }
}
