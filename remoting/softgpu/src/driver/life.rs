//! The process's only driver, which `cuInit` starts, and the current context of each thread.

use super::state::Driver;
use crate::check;
use crate::ffi::{R, print};
use crate::process::config::{Config, RULES_ENV};
use crate::process::signals;
use crate::streams::callback;
use crate::streams::context::Context;
use driverapi::errors::*;
use driverapi::forks::Owner;
use driverapi::of_thread::{OfThreads, Own};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static DRIVER: OnceLock<R<Driver>> = OnceLock::new();
static FORKED: AtomicBool = AtomicBool::new(false);
static OWNER: Owner = Owner::nobody();

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Release);
}

/// The handles of the contexts that each thread pushed. The last one is the current context.
static STACKS: OfThreads<Vec<usize>> = OfThreads::new(drop);

thread_local! {
    static STACK: Own<Vec<usize>> = const { Cell::new(None) };
}

/// Returns the settings of the running driver. Before `cuInit` they are read from the environment.
pub fn config() -> Config {
    match DRIVER.get() {
        Some(Ok(driver)) => driver.config.clone(),
        _ => read_config(),
    }
}

fn read_config() -> Config {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Config::read(|name| std::env::var(name).ok(), cpus)
}

/// Starts the driver, as `cuInit` does.
pub fn init() -> R {
    check_process()?;
    let driver = DRIVER.get_or_init(|| {
        let driver = Driver::new(read_config())?;
        if driver.model().null {
            tell_that_nothing_runs(&driver);
        }
        check::start(driver.config.check.as_deref());
        OWNER.take();
        signals::watch_forks(in_child);
        Ok(driver)
    });
    driver.as_ref().map(|_| ()).map_err(|&code| code)
}

/// Prints a warning that this process uses a null GPU, which runs no kernels.
fn tell_that_nothing_runs(driver: &Driver) {
    let (name, file) = (&driver.model().name, driver.config.rules.as_deref().unwrap_or_default());
    let rules = driver.executor.rules.as_ref();
    let rules = rules.map(|rules| format!("; {} rules of {}={file} write numbers", rules.len(), RULES_ENV));
    let rules = rules.unwrap_or_default();
    print(&format!("remotegpu: {name}: no kernel runs on this GPU; all results are meaningless{rules}"));
}

fn check_process() -> R {
    if FORKED.load(Ordering::Acquire) || OWNER.is_parent() {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    if signals::has_ended() {
        return Err(CUDA_ERROR_DEINITIALIZED);
    }
    Ok(())
}

/// Returns the driver. Fails before `cuInit`. Only the few functions that do not need `cuInit` do not call this.
pub fn driver() -> R<&'static Driver> {
    check_process()?;
    if callback::is_running() {
        return Err(CUDA_ERROR_NOT_PERMITTED);
    }
    DRIVER.get().ok_or(CUDA_ERROR_NOT_INITIALIZED)?.as_ref().map_err(|&code| code)
}

/// Returns the calling thread's context. Fails if there is none or if it has faulted.
pub fn current() -> R<Arc<Context>> {
    let context = current_even_if_faulted()?;
    context.check()?;
    Ok(context)
}

pub fn current_even_if_faulted() -> R<Arc<Context>> {
    let driver = driver()?;
    let id = current_id().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    driver.contexts.get(id).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)
}

pub fn current_id() -> Option<usize> {
    STACKS.with(&STACK, |stack| stack.last().copied())
}

pub fn push(context: usize) {
    STACKS.with(&STACK, |stack| stack.push(context));
}

pub fn pop() -> Option<usize> {
    STACKS.with(&STACK, Vec::pop)
}
