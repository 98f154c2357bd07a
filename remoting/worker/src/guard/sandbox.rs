//! The sandbox: a worker gives up rights that it does not need. The crate `remotegpu-sandbox` lists these rights.
//!
//! If the appliance does not run as root, all workers have its uid. Then only this sandbox separates them, because by
//! default the kernel lets processes of one user access each other.

use crate::guard::defences::{Defence, stands};
use sandbox::calls::{self, Process};
use sandbox::files::{self, Writable};
use std::path::{Path, PathBuf};

pub use sandbox::files::has_landlock;

/// Variables that name files which a null GPU opens and changes when it starts (docs/frameworks.md).
const NULL_FILES: [&str; 2] = ["REMOTEGPU_NULL_RULES", "REMOTEGPU_NULL_RULES_TALLY"];

/// Whether the driver still has to open files after it has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    Needed,
    Done,
}

/// The policy for a kernel without Landlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landlock {
    Required,
    /// Start without Landlock. A worker with `Files::Done` and its own uid does not depend on it.
    Welcome,
}

/// Sets resource limits of the process, which cannot be raised again. Address space is not limited, because the driver
/// reserves more of it than any machine has memory.
///
/// # Errors
/// Fails if the system refuses.
pub fn limit(threads: Option<u64>) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = |number| Rlimit { current: Some(number), maximum: Some(number) };
    // A core dump would contain a tenant's memory. At 0 the kernel writes no file, but still pipes the dump to a
    // program if `core_pattern` names one. At 1 it does neither. A process that may not raise its limit to 1 stays at
    // 0.
    setrlimit(Resource::Core, most(getrlimit(Resource::Core).maximum.unwrap_or(1).min(1)))?;
    // If memory runs out, the kernel should kill this process and not the appliance. Some containers do not have this
    // file.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    if let Some(threads) = threads {
        setrlimit(Resource::Nproc, most(threads))?;
    }
    Ok(())
}

/// The files that a worker may change while its driver opens files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// All files that are not hidden.
    Anywhere,
    /// Only device nodes.
    Devices,
}

/// Prepares the sandbox before the driver is loaded, while the process has one thread. Afterwards the process can no
/// longer gain rights, access another process, or read or change the `hidden` files (or files below them). Landlock
/// keeps other sessions from accessing this process. The appliance keeps its access, because it counts the memory of
/// the process. Without Landlock no process of its user has access.
///
/// With `Files::Done` the process changes no files but those of a null GPU, and reads libraries only, those in the folder `driver` included, and
/// what lies beneath folders of the root in which nothing is hidden.
///
/// # Errors
/// Fails if the system refuses, or if Landlock is required and missing.
pub fn prepare(
    driver: &Path,
    hidden: &[PathBuf],
    files: Files,
    writes: Writes,
    landlock: Landlock,
) -> Result<(), String> {
    if !stands(Defence::Sandbox) {
        return Ok(());
    }
    use rustix::process::{DumpableBehavior, Resource, getrlimit, set_dumpable_behavior};
    rustix::thread::set_no_new_privs(true).map_err(|e| e.to_string())?;
    let null_files = NULL_FILES.iter().filter_map(std::env::var_os).map(PathBuf::from);
    let own: Vec<PathBuf> = null_files.chain(["/proc/self".into()]).collect();
    let (readable, writable) = match (files, writes) {
        (Files::Done, _) => (files::libraries_and(driver, hidden), Writable::Beneath(&own)),
        (Files::Needed, Writes::Anywhere) => (vec!["/".into()], Writable::AllButHidden),
        (Files::Needed, Writes::Devices) => (vec!["/".into()], Writable::Devices),
    };
    let confined = files::confine(&readable, hidden, writable, true).map_err(|e| e.to_string())?;
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

/// Completes the sandbox after the driver is loaded and before the first byte of a client is read. It applies to all
/// threads and cannot be undone.
///
/// # Errors
/// Fails if the system refuses.
pub fn enter(files: Files) -> Result<(), String> {
    if stands(Defence::Sandbox) {
        calls::give_up(Process::Worker { opens_files: files == Files::Needed })
    } else {
        Ok(())
    }
}
