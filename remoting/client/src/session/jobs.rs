//! Work that the reader hands over because it may block: a thread of the session's own does it, in order.

use super::Session;
use crate::Code;
use crate::program::{log, sys};
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};

type Job = Box<dyn FnOnce(&Session) + Send>;

#[derive(Default)]
pub struct Jobs(OnceLock<Sender<Job>>);

impl Session {
    /// Starts the thread for jobs. Must be called before anything can arrive that leads to a job.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if no thread can be started.
    pub(super) fn start_jobs(self: &Arc<Self>) -> Result<(), Code> {
        let (sender, receiver) = mpsc::channel::<Job>();
        if self.jobs.0.set(sender).is_err() {
            return Ok(());
        }
        let session = Arc::clone(self);
        sys::spawn("remotegpu-jobs", move || receiver.into_iter().for_each(|job| job(&session))).map_err(|error| {
            log::error(&format!("cannot start a thread: {error}"));
            CUDA_ERROR_OUT_OF_MEMORY
        })
    }

    /// Queues a job and returns at once. Without [`Session::start_jobs`] it does nothing.
    pub(super) fn soon(&self, job: impl FnOnce(&Session) + Send + 'static) {
        if let Some(jobs) = self.jobs.0.get() {
            // The thread ends with the process only.
            let _ = jobs.send(Box::new(job));
        }
    }
}
