//! What a process that runs a stranger's commands does not need, it gives up.
//!
//! Where the appliance is not root all workers have its uid. Then this alone keeps them apart: to the kernel's usual rules a
//! process of the same user is a friend.

use landlock::{
    AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Answered with EPERM: other programs, other processes, new connections, the system's configuration.
const DENIED: [i64; 62] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
];

/// Opening and changing files by name.
const FILES: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_truncate,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
];

/// Whether the driver still needs to open files when it has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    Needed,
    Done,
}

/// Which argument, compared how, with what.
type Condition = (u8, SeccompCmpOp, u64);

/// Calls that are denied if all of their conditions hold.
fn partly_denied() -> Vec<(i64, Vec<Condition>)> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let own = u64::from(std::process::id());
    // A descriptor's owner gets any signal that its owner chose, SIGKILL too.
    let owner = |command: i32| (libc::SYS_fcntl, vec![(1, Eq, command as u64)]);
    let owner_of_socket = |request: u64| (libc::SYS_ioctl, vec![(1, Eq, request)]);
    vec![
        (libc::SYS_tgkill, vec![(0, Ne, own)]),
        (libc::SYS_rt_tgsigqueueinfo, vec![(0, Ne, own)]),
        (libc::SYS_prlimit64, vec![(0, Ne, 0), (0, Ne, own)]),
        // Threads yes, processes no.
        (libc::SYS_clone, vec![(0, MaskedEq(libc::CLONE_THREAD as u64), 0)]),
        owner(libc::F_SETOWN),
        owner(F_SETOWN_EX),
        owner_of_socket(FIOSETOWN),
        owner_of_socket(SIOCSPGRP),
    ]
}

const F_SETOWN_EX: i32 = 15;
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn denied(files: Files) -> Result<Rules, seccompiler::BackendError> {
    // A system call without rules is matched always.
    let mut rules: Rules = DENIED.iter().map(|call| (*call, Vec::new())).collect();
    if files == Files::Done {
        rules.extend(FILES.iter().map(|call| (*call, Vec::new())));
    }
    for (call, conditions) in partly_denied() {
        let conditions: Result<Vec<_>, _> = conditions
            .into_iter()
            .map(|(argument, is, value)| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value))
            .collect();
        rules.entry(call).or_default().push(SeccompRule::new(conditions?)?);
    }
    Ok(rules)
}

fn program(rules: Rules, answer: i32) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(answer as u32), arch)?.try_into()
}

/// Two filters, because each has one answer. A clone3 that "does not exist" makes the C library use clone, whose flags can
/// be looked at.
fn programs(files: Files) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let newer = Rules::from([(libc::SYS_clone3, Vec::new())]);
    Ok([program(denied(files)?, libc::EPERM)?, program(newer, libc::ENOSYS)?])
}

/// Before the driver is loaded, while there is one thread: the process cannot gain rights, be looked into, or look into
/// another one; and of all files it cannot read the `hidden` ones (or what is beneath them).
///
/// # Errors
/// If the system refuses. A kernel without Landlock is none: `Files::Done` and the own uid of a worker do without it.
pub fn prepare(hidden: &[PathBuf]) -> Result<(), String> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| e.to_string())?;
    rustix::thread::set_no_new_privs(true).map_err(|e| e.to_string())?;
    confine(hidden).map_err(|e| e.to_string())
}

/// After the driver is loaded, before the first byte of a client: for all threads, for good.
///
/// # Errors
/// If the system refuses.
pub fn enter(files: Files) -> Result<(), String> {
    for program in programs(files).map_err(|e| e.to_string())? {
        seccompiler::apply_filter_all_threads(&program).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Does this kernel keep processes of one user from looking into each other if they ask for it?
pub fn has_landlock() -> bool {
    let required = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    required.handle_access(AccessFs::ReadFile).and_then(Ruleset::create).is_ok()
}

/// A Landlock domain: its processes have no rights over those outside of it, whatever their uid is.
fn confine(hidden: &[PathBuf]) -> Result<(), landlock::RulesetError> {
    let hidden: Vec<_> = hidden.iter().filter_map(|path| path.canonicalize().ok()).collect();
    let mut readable = Vec::new();
    beside(Path::new("/"), &hidden, &mut readable);
    let rules = readable.iter().filter_map(|path| PathFd::new(path).ok());
    Ruleset::default()
        .handle_access(AccessFs::ReadFile)?
        .scope(Scope::Signal | Scope::AbstractUnixSocket)?
        .create()?
        .add_rules(rules.map(|path| Ok::<_, landlock::RulesetError>(PathBeneath::new(path, AccessFs::ReadFile))))?
        .restrict_self()?;
    Ok(())
}

/// The fewest paths that together cover all but the hidden ones. Links are left out: what they point to is covered where it
/// really lies.
fn beside(path: &Path, hidden: &[PathBuf], readable: &mut Vec<PathBuf>) {
    if !hidden.iter().any(|one| one.starts_with(path)) {
        readable.push(path.to_owned());
    } else if !hidden.iter().any(|one| one == path) {
        for entry in path.read_dir().into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
                beside(&entry.path(), hidden, readable);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_hidden_files_are_covered() {
        let root = std::env::temp_dir().join(format!("remotegpu-beside-{}", std::process::id()));
        for folder in ["open/deep", "part/data-1"] {
            std::fs::create_dir_all(root.join(folder)).expect("folder");
        }
        for file in ["part/data-1/crt", "part/data-1/key", "open/deep/file"] {
            std::fs::write(root.join(file), "").expect("file");
        }
        std::os::unix::fs::symlink("data-1", root.join("part/data")).expect("link");
        let root = root.canonicalize().expect("root");
        let mut readable = Vec::new();
        beside(&root, &[root.join("part/data-1/key")], &mut readable);
        readable.sort();
        std::fs::remove_dir_all(&root).expect("removed");
        assert_eq!(readable, [root.join("open"), root.join("part/data-1/crt")]);
    }
}
