//! Tests of the filters. An interpreter executes the filter instructions like the kernel.

use super::*;

const OWN: u64 = 4711;
const X86_64: u32 = 0xC000_003E;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const DENIED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const UNKNOWN: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
const EVERYBODY: [Process; 4] = [
    Process::Worker { opens_files: true },
    Process::Worker { opens_files: false },
    Process::Session { alone: true },
    Process::Session { alone: false },
];
const ALONE: Process = Process::Session { alone: true };
const APART: Process = Process::Session { alone: false };
const WORKER: Process = Process::Worker { opens_files: true };

fn run(program: &[sock_filter], data: &[u32; 16]) -> u32 {
    let (mut accumulator, mut at) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at].clone();
        at += 1;
        let jump = |taken| usize::from(if taken { jt } else { jf });
        match code {
            0x20 => accumulator = data[k as usize / 4],
            0x54 => accumulator &= k,
            0x05 => at += k as usize,
            0x15 => at += jump(accumulator == k),
            0x25 => at += jump(accumulator > k),
            0x35 => at += jump(accumulator >= k),
            0x45 => at += jump(accumulator & k != 0),
            0x06 => return k,
            _ => panic!("instruction {code:#x}"),
        }
    }
}

fn answer(process: Process, architecture: u32, number: u32, arguments: &[u64]) -> u32 {
    let mut data = [0; 16];
    (data[0], data[1]) = (number, architecture);
    for (index, argument) in arguments.iter().enumerate() {
        data[4 + 2 * index] = *argument as u32;
        data[5 + 2 * index] = (argument >> 32) as u32;
    }
    let programs = programs(process, OWN).expect("programs");
    // The strictest action is the smallest one as a signed number.
    programs.iter().map(|program| run(program, &data)).min_by_key(|action| action.cast_signed()).expect("an answer")
}

fn ask(process: Process, call: i64, arguments: &[u64]) -> u32 {
    answer(process, X86_64, u32::try_from(call).expect("a number"), arguments)
}

#[test]
fn what_has_no_condition_is_refused() {
    for process in EVERYBODY {
        for call in denied(process, OWN).always {
            assert_eq!(ask(process, call, &[]), DENIED, "{process:?} {call}");
        }
    }
}

#[test]
fn who_is_refused_what() {
    let (execute, make, open) = (libc::SYS_execve, libc::SYS_fork, libc::SYS_openat);
    for (call, refused) in [
        (libc::SYS_ptrace, EVERYBODY.to_vec()),
        (libc::SYS_io_uring_setup, EVERYBODY.to_vec()),
        (libc::SYS_personality, vec![ALONE, APART]),
        (execute, vec![EVERYBODY[0], EVERYBODY[1], ALONE]),
        (make, vec![EVERYBODY[0], EVERYBODY[1], ALONE]),
        (libc::SYS_connect, vec![EVERYBODY[0], EVERYBODY[1], ALONE]),
        (open, vec![EVERYBODY[1]]),
        (libc::SYS_kill, vec![EVERYBODY[0], EVERYBODY[1], ALONE]),
    ] {
        for process in EVERYBODY {
            let expected = if refused.contains(&process) { DENIED } else { ALLOW };
            assert_eq!(ask(process, call, &[1]), expected, "{process:?} {call}");
        }
    }
}

#[test]
fn what_programs_need_is_allowed() {
    let needed = [0, 1, 3, 9, 10, 11, 12, 13, 16, 20, 44, 45, 46, 47, 202, 218, 231, 262, 318];
    for process in EVERYBODY {
        for number in needed {
            assert_eq!(answer(process, X86_64, number, &[]), ALLOW, "{process:?} {number}");
        }
    }
    for process in [ALONE, APART, WORKER] {
        assert_eq!(ask(process, libc::SYS_openat, &[]), ALLOW, "{process:?}");
    }
}

#[test]
fn another_architecture_is_killed() {
    for process in EVERYBODY {
        for architecture in [0x4000_0003, 0x4000_0028, 0xC000_00B7] {
            assert_eq!(answer(process, architecture, 0, &[]), KILL, "{process:?}");
        }
        for number in [0x4000_0000, 0x4000_0000 | 59, 0x4000_0000 | 520, u32::MAX] {
            assert_eq!(answer(process, X86_64, number, &[]), UNKNOWN, "{process:?}");
        }
    }
}

#[test]
fn conditions_hold_for_what_they_say_only() {
    let (thread, process, new_user) = (0x3D_0F00, 17, 0x1000_0000 | 17);
    for who in EVERYBODY {
        let alone = if who == APART { ALLOW } else { DENIED };
        assert_eq!(ask(who, libc::SYS_clone, &[thread]), ALLOW, "{who:?}");
        assert_eq!(ask(who, libc::SYS_clone, &[process]), alone, "{who:?}");
        assert_eq!(ask(who, libc::SYS_clone, &[new_user]), DENIED, "{who:?}");
        // The kernel ignores the upper half of the register, too.
        assert_eq!(ask(who, libc::SYS_clone, &[1 << 40 | new_user]), DENIED, "{who:?}");
        assert_eq!(ask(who, libc::SYS_clone3, &[]), UNKNOWN, "{who:?}");
        assert_eq!(ask(who, libc::SYS_ioctl, &[0, 0x541B]), ALLOW, "{who:?}");
        for call in [libc::SYS_tgkill, libc::SYS_rt_tgsigqueueinfo, libc::SYS_prlimit64] {
            assert_eq!(ask(who, call, &[OWN]), ALLOW, "{who:?}");
            assert_eq!(ask(who, call, &[1]), alone, "{who:?}");
        }
        assert_eq!(ask(who, libc::SYS_prlimit64, &[0]), ALLOW, "{who:?}");
        for owner in [8, 15] {
            assert_eq!(ask(who, libc::SYS_fcntl, &[3, owner]), alone, "{who:?}");
        }
        for owner in [0x8901, 0x8902] {
            assert_eq!(ask(who, libc::SYS_ioctl, &[3, owner]), alone, "{who:?}");
        }
        assert_eq!(ask(who, libc::SYS_fcntl, &[3, 1030]), ALLOW, "{who:?}");
        for (kind, expected) in [(1, ALLOW), (2, alone), (3, alone), (4, alone), (5, ALLOW)] {
            for flags in [0, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
                let kind = kind | u64::from(flags.cast_unsigned());
                assert_eq!(ask(who, libc::SYS_socketpair, &[1, kind]), expected, "{who:?} {kind:#x}");
            }
        }
    }
    for flag in NEW_NAMESPACES {
        assert_eq!(ask(APART, libc::SYS_clone, &[u64::from(flag.cast_unsigned()) | thread]), DENIED);
    }
}

#[test]
fn sessions_have_conditions_of_their_own() {
    for who in [ALONE, APART] {
        let alone = if who == APART { ALLOW } else { DENIED };
        for request in [0x5412, 0x541C] {
            assert_eq!(ask(who, libc::SYS_ioctl, &[0, request]), DENIED, "{who:?}");
        }
        assert_eq!(ask(who, libc::SYS_kill, &[OWN]), ALLOW, "{who:?}");
        for other in [1, u64::MAX] {
            assert_eq!(ask(who, libc::SYS_kill, &[other]), alone, "{who:?}");
        }
        // The default policy, which ZeroMQ's threads set for themselves, is allowed. Policies that take the processor
        // from others are not.
        assert_eq!(ask(who, libc::SYS_sched_setscheduler, &[0, 0]), ALLOW, "{who:?}");
        assert_eq!(ask(who, libc::SYS_sched_setscheduler, &[0, 1]), alone, "{who:?}");
        for family in [1, 2, 10] {
            assert_eq!(ask(who, libc::SYS_socket, &[family]), alone, "{who:?}");
        }
        let unknown_family = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT.cast_unsigned();
        for family in [16, 17, 38, 40] {
            let expected = if who == APART { unknown_family } else { DENIED };
            assert_eq!(ask(who, libc::SYS_socket, &[family]), expected, "{who:?}");
        }
    }
}
