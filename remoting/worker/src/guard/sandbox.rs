//! A worker gives up what it does not need; what that is stands in the crate `remotegpu-sandbox`.
//!
//! Where the appliance is not root all workers have its uid. Then this alone keeps them apart: to the kernel's usual rules a
//! process of the same user is a friend.

use crate::guard::defences::{Defence, stands};
use sandbox::calls::{self, Process};
use sandbox::files::{self, Writable};
use std::path::PathBuf;

pub use sandbox::files::has_landlock;

/// Whether the driver still needs to open files when it has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    Needed,
    Done,
}

/// What to do on a kernel without Landlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landlock {
    Required,
    /// `Files::Done` and an own uid of the worker do without it.
    Welcome,
}

/// Limits of the process, which it cannot raise again. Address space cannot be one: the driver reserves more of it than
/// any machine has memory.
///
/// # Errors
/// If the system refuses.
pub fn limit(threads: Option<u64>) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = |number| Rlimit { current: Some(number), maximum: Some(number) };
    // It would hold a tenant's memory. At 0 the kernel writes none, but hands one to the program that `core_pattern` may
    // name; at 1 it does neither. Who may not raise it to 1 stays at 0.
    setrlimit(Resource::Core, most(getrlimit(Resource::Core).maximum.unwrap_or(1).min(1)))?;
    // If memory runs out, the kernel ends a session, not the appliance. Not every container has the file.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    if let Some(threads) = threads {
        setrlimit(Resource::Nproc, most(threads))?;
    }
    Ok(())
}

/// Which files a worker whose driver opens some may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// What is not hidden.
    Anywhere,
    /// Device nodes alone.
    Devices,
}

/// Before the driver is loaded, while there is one thread: the process cannot gain rights, or look into another one; and of
/// all files it cannot read or change the `hidden` ones (or what is beneath them). Landlock keeps other sessions from
/// looking into it; the appliance has to, to count its memory. Without Landlock nobody of its user may.
///
/// # Errors
/// If the system refuses, or has no Landlock where that is required.
pub fn prepare(hidden: &[PathBuf], writes: Writes, landlock: Landlock) -> Result<(), String> {
    if !stands(Defence::Sandbox) {
        return Ok(());
    }
    use rustix::process::{DumpableBehavior, Resource, getrlimit, set_dumpable_behavior};
    rustix::thread::set_no_new_privs(true).map_err(|e| e.to_string())?;
    let writable = match writes {
        Writes::Anywhere => Writable::AllButHidden,
        Writes::Devices => Writable::Devices,
    };
    let confined = files::confine(&["/".into()], hidden, writable, true).map_err(|e| e.to_string())?;
    if !confined || getrlimit(Resource::Core).current != Some(1) {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| e.to_string())?;
    }
    if confined || landlock == Landlock::Welcome {
        return Ok(());
    }
    Err("this kernel has no Landlock, which keeps workers from each other's files: use Linux 5.13 or later with Landlock \
         among its security modules, or start the appliance with --landlock warn"
        .to_owned())
}

/// After the driver is loaded, before the first byte of a client: for all threads, for good.
///
/// # Errors
/// If the system refuses.
pub fn enter(files: Files) -> Result<(), String> {
    if stands(Defence::Sandbox) {
        calls::give_up(Process::Worker { opens_files: files == Files::Needed })
    } else {
        Ok(())
    }
}
