//! The identity of this process, and a check whether another process has ended.

use crate::program::sys;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fs;

/// Returns the identity of this process: its machine's boot, its PID namespace and its start time. It stays the same
/// through exec. An appliance on the same machine can see when this process has ended. Returns `None` if /proc is
/// incomplete.
pub fn identity() -> Option<String> {
    let errno = sys::errno();
    let found = read_identity();
    sys::set_errno(errno);
    found
}

fn read_identity() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let start = stat_of("self")?.start;
    Some(format!("{} {} {start}", boot.trim(), namespace.to_str()?))
}

/// Returns whether the process with this id and identity has ended. The result is true only for a process of this
/// process's own PID namespace, because other namespaces are not visible.
pub fn has_ended(pid: u32, identity: &str) -> bool {
    let errno = sys::errno();
    let ended = is_gone(pid, identity).unwrap_or(false);
    sys::set_errno(errno);
    ended
}

fn is_gone(pid: u32, identity: &str) -> Option<bool> {
    let ours = read_identity()?;
    let ((here, _), (there, start)) = (ours.rsplit_once(' ')?, identity.rsplit_once(' ')?);
    let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
    if here != there {
        return None;
    }
    if test_kill_process(number) == Err(Errno::SRCH) {
        return Some(true);
    }
    // /proc may show another namespace, where the process ids differ, or hide other users' processes.
    if fs::read_link("/proc/self").ok()?.to_str()? != std::process::id().to_string() {
        return None;
    }
    let now = stat_of(&pid.to_string())?;
    Some(now.start != start || (now.state == "Z" && fs::read_dir(format!("/proc/{pid}/task")).ok()?.count() < 2))
}

struct Stat {
    state: String,
    start: String,
}

/// Returns fields 3 and 22 of `/proc/PID/stat`, the state and the start time. They follow the program's name, which is
/// in brackets and may contain any bytes (proc_pid_stat(5)).
fn stat_of(pid: &str) -> Option<Stat> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let behind = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = String::from_utf8_lossy(&stat[behind..]).into_owned();
    let field = |number: usize| fields.split_whitespace().nth(number - 3).map(str::to_owned);
    Some(Stat { state: field(3)?, start: field(22)? })
}

/// Returns the name of the program, which appliances show in lists.
pub fn name() -> String {
    let errno = sys::errno();
    let command = fs::read("/proc/self/cmdline").unwrap_or_default();
    sys::set_errno(errno);
    let words: Vec<_> = command.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    let text = String::from_utf8_lossy(&words.join(&b' ')).into_owned();
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn identity_of(pid: u32) -> String {
        let ours = identity().expect("known here");
        let (place, _) = ours.rsplit_once(' ').expect("three parts");
        format!("{place} {}", stat_of(&pid.to_string()).expect("it lives").start)
    }

    #[test]
    fn a_process_has_ended_when_it_is_gone_or_waits_to_be_reaped() {
        let mut child = Command::new("sleep").arg("100").spawn().expect("started");
        let (pid, who) = (child.id(), identity_of(child.id()));
        assert!(!has_ended(pid, &who));
        child.kill().expect("killed");
        while !has_ended(pid, &who) {
            std::thread::yield_now();
        }
        child.wait().expect("reaped");
        assert!(has_ended(pid, &who));
    }

    #[test]
    fn a_number_that_another_process_has_now_is_no_life() {
        let ours = identity_of(std::process::id());
        let (place, start) = ours.rsplit_once(' ').expect("three parts");
        assert!(!has_ended(std::process::id(), &ours));
        assert!(has_ended(std::process::id(), &format!("{place} {start}0")));
    }

    #[test]
    fn nothing_is_known_of_other_places() {
        let ours = identity_of(std::process::id());
        for other in ["", "1", "no such boot pid:[1] 1", &ours.replace("pid:[", "pid:[1")] {
            assert!(!has_ended(u32::MAX, other) && !has_ended(4_000_000, other), "{other}");
        }
    }
}
