//! A worker gives up rights that it does not need; the crate `remotegpu-sandbox` lists them.
//!
//! If the appliance is not root, all workers have its uid. Then only this sandbox keeps them apart: by default the
//! kernel lets processes of one user access each other.

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

/// Policy for a kernel without Landlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landlock {
    Required,
    /// Start without it: a worker with `Files::Done` and its own uid does not depend on it.
    Welcome,
}

/// Sets limits of the process, which it cannot raise again. Address space has no limit: the driver reserves more of it
/// than any machine has memory.
///
/// # Errors
/// If the system refuses.
pub fn limit(threads: Option<u64>) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = |number| Rlimit { current: Some(number), maximum: Some(number) };
    // A core dump would hold a tenant's memory. At 0 the kernel writes no file, but pipes the dump to a program if
    // `core_pattern` names one; at 1 it does neither. A process that may not raise its limit to 1 stays at 0.
    setrlimit(Resource::Core, most(getrlimit(Resource::Core).maximum.unwrap_or(1).min(1)))?;
    // If memory runs out, the kernel ends a session, not the appliance. Not every container has the file.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    if let Some(threads) = threads {
        setrlimit(Resource::Nproc, most(threads))?;
    }
    Ok(())
}

/// Files that a worker may change if its driver still opens files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// All files that are not hidden.
    Anywhere,
    /// Only device nodes.
    Devices,
}

/// Called before the driver is loaded, while there is one thread. The process can no longer gain rights or look into
/// another process, and it cannot read or change the `hidden` files (or files below them). Landlock keeps other
/// sessions from looking into this process; the appliance must be able to, to count its memory. Without Landlock no
/// process of its user may.
///
/// # Errors
/// If the system refuses, or has no Landlock although it is required.
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

/// Called after the driver is loaded, before the first byte of a client. It applies to all threads and cannot be
/// undone.
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
