//! seccomp filters: the system calls that a process cannot make any more. All other calls stay allowed.
//!
//! [`Process`] selects the calls, because a worker and a session of offload need different ones. The worker's
//! `guard::sandbox` calls this module, and acceptors call it through `exports`. The folder `calls` contains only tests.
//! `files` restricts the files that a process can access.

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};
use std::collections::BTreeMap;

/// The kind of process that is restricted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// A worker: a single process that inherited its connections. `opens_files` is whether its driver opens files after
    /// the start.
    Worker { opens_files: bool },
    /// A session of offload. `alone` is whether it must stay a single process without connections, because no namespace
    /// isolates it.
    Session { alone: bool },
}

/// Calls that are denied to all processes: system configuration, rarely used parts of the kernel, access to other
/// processes.
const SYSTEM: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
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
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
];

/// Further calls of this kind that are denied to sessions. A session runs the tenant's own code, not a driver that may
/// need them.
const SYSTEM_OF_SESSIONS: &[i64] = &[
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl_fd,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_syslog,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_vhangup,
    libc::SYS_personality,
];

/// Calls that are denied to a process without a namespace: starting programs and processes, connections, and objects
/// that all processes of a user share.
const OTHERS: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_tkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
];

const OTHERS_OF_WORKERS: &[i64] = &[libc::SYS_kill, libc::SYS_sched_setscheduler];

/// Calls that open or change files by name.
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
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_rename,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    FCHMODAT2,
    libc::SYS_open_tree,
    libc::SYS_name_to_handle_at,
    libc::SYS_utimensat,
    libc::SYS_futimesat,
    libc::SYS_utimes,
    libc::SYS_utime,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
];

const FCHMODAT2: i64 = 452;

/// The argument's index, the comparison, and the value. Only the lower 32 bits are compared, because the kernel uses
/// only those of the listed arguments.
type Condition = (u8, SeccompCmpOp, u64);

/// The mask of a socket's type. The other bits are flags.
const SOCKET_TYPE: u64 = 0xf;
const F_SETOWN_EX: u64 = 15;
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541C;
/// Flags of clone that create a namespace. They include the user namespace, in which a process has all capabilities
/// again.
const NEW_NAMESPACES: [i32; 8] = [
    libc::CLONE_NEWTIME,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// The calls that get the same error. `always` has calls without conditions; a call in `partly` is denied if all
/// conditions of one entry are true.
#[derive(Default)]
struct Denied {
    always: Vec<i64>,
    partly: Vec<(i64, Vec<Condition>)>,
}

impl Denied {
    fn program(self, answer: i32) -> Result<BpfProgram, BackendError> {
        // A system call without rules always matches.
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            self.always.into_iter().map(|call| (call, Vec::new())).collect();
        for (call, conditions) in self.partly {
            let conditions: Result<Vec<_>, _> = conditions
                .into_iter()
                .map(|(argument, is, value)| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value))
                .collect();
            rules.entry(call).or_default().push(SeccompRule::new(conditions?)?);
        }
        let refusal = SeccompAction::Errno(answer.cast_unsigned());
        SeccompFilter::new(rules, SeccompAction::Allow, refusal, TargetArch::x86_64)?.try_into()
    }
}

/// Returns the conditional rules for a process without a namespace. `own` is its process id.
fn alone(own: u64) -> Vec<(i64, Vec<Condition>)> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    vec![
        (libc::SYS_tgkill, vec![(0, Ne, own)]),
        (libc::SYS_rt_tgsigqueueinfo, vec![(0, Ne, own)]),
        (libc::SYS_prlimit64, vec![(0, Ne, 0), (0, Ne, own)]),
        // A pair of datagram sockets, including raw ones, can send data and descriptors to any socket that has a name.
        (libc::SYS_socketpair, vec![(1, MaskedEq(SOCKET_TYPE), libc::SOCK_DGRAM as u64)]),
        (libc::SYS_socketpair, vec![(1, MaskedEq(SOCKET_TYPE), libc::SOCK_RAW as u64)]),
        (libc::SYS_socketpair, vec![(1, MaskedEq(SOCKET_TYPE), libc::SOCK_RDM as u64)]),
        // Threads are allowed, processes are not.
        (libc::SYS_clone, vec![(0, MaskedEq(libc::CLONE_THREAD as u64), 0)]),
        // A descriptor's owner gets any signal that its setter chose, including SIGKILL.
        (libc::SYS_fcntl, vec![(1, Eq, libc::F_SETOWN as u64)]),
        (libc::SYS_fcntl, vec![(1, Eq, F_SETOWN_EX)]),
        (libc::SYS_ioctl, vec![(1, Eq, FIOSETOWN)]),
        (libc::SYS_ioctl, vec![(1, Eq, SIOCSPGRP)]),
    ]
}

fn denied(process: Process, own: u64) -> Denied {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    // The appliance cannot count the memory of a non-dumpable process.
    let hiding = (libc::SYS_prctl, vec![(0, Eq, libc::PR_SET_DUMPABLE as u64)]);
    let mut denied = Denied { always: SYSTEM.to_vec(), partly: vec![hiding] };
    match process {
        Process::Worker { opens_files } => {
            denied.always.extend(OTHERS.iter().chain(OTHERS_OF_WORKERS));
            if !opens_files {
                denied.always.extend(FILES);
            }
            denied.partly.extend(alone(own));
        }
        Process::Session { alone: is_alone } => {
            denied.always.extend(SYSTEM_OF_SESSIONS);
            // Shared memory exists without a mapping or a descriptor of any process.
            denied.always.push(libc::SYS_shmget);
            // These requests type into another process's terminal.
            denied.partly.extend([TIOCSTI, TIOCLINUX].map(|request| (libc::SYS_ioctl, vec![(1, Eq, request)])));
            if is_alone {
                denied.always.extend(OTHERS);
                denied.partly.extend(alone(own));
                denied.partly.push((libc::SYS_kill, vec![(0, Ne, own)]));
                // Each thread of ZeroMQ sets the default policy for itself, and ends the process if that fails.
                denied.partly.push((libc::SYS_sched_setscheduler, vec![(1, Ne, libc::SCHED_OTHER as u64)]));
            } else {
                let flags = NEW_NAMESPACES.map(|flag| u64::from(flag.cast_unsigned()));
                denied.partly.extend(flags.map(|flag| (libc::SYS_clone, vec![(0, MaskedEq(flag), flag)])));
            }
        }
    }
    denied
}

/// Returns a filter that answers ENOSYS to all x32 calls, a second system call interface of the processor. Their
/// numbers differ, so the lists above do not match them. `seccompiler` cannot compare the number itself.
fn no_x32() -> BpfProgram {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const FIRST_OF_X32: u32 = 0x4000_0000;
    let refusal = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
    vec![
        sock_filter { code: LOAD_NUMBER, jt: 0, jf: 0, k: 0 },
        sock_filter { code: AT_LEAST, jt: 0, jf: 1, k: FIRST_OF_X32 },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: refusal },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ]
}

/// Returns the filters of a process. Each filter has one error code; the kernel applies the strictest result.
fn programs(process: Process, own: u64) -> Result<Vec<BpfProgram>, BackendError> {
    use SeccompCmpOp::Ne;
    // With ENOSYS for clone3 the C library uses clone, whose flags a filter can check.
    let newer = Denied { always: vec![libc::SYS_clone3], ..Denied::default() };
    let mut programs = vec![no_x32(), denied(process, own).program(libc::EPERM)?, newer.program(libc::ENOSYS)?];
    if process == (Process::Session { alone: false }) {
        let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
        let others = (libc::SYS_socket, families.map(|family| (0, Ne, family as u64)).to_vec());
        let kinds = Denied { partly: vec![others], ..Denied::default() };
        programs.push(kinds.program(libc::EAFNOSUPPORT)?);
    }
    Ok(programs)
}

/// Applies the filters to all threads, permanently. Call it before the first byte of a client is read.
///
/// # Errors
/// If the system refuses.
pub fn give_up(process: Process) -> Result<(), String> {
    for program in programs(process, u64::from(std::process::id())).map_err(|error| error.to_string())? {
        seccompiler::apply_filter_all_threads(&program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
