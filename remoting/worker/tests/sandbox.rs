//! A worker that a tenant has taken over meets its neighbour: a process of the same user, here even one that hides
//! nothing.
//!
//! The test is its own attacker: it starts its own program again, which enters the sandbox and then tries.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use remotegpu_worker::guard::sandbox::{self, Files, Landlock, Writes};

const NEIGHBOUR: &str = "REMOTEGPU_TEST_NEIGHBOUR";
const SECRETS: &str = "REMOTEGPU_TEST_SECRETS";
const SANDBOX: &str = "REMOTEGPU_TEST_SANDBOX";

/// The attacker's sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sandbox {
    None,
    /// The driver still opens files.
    Files,
    /// The driver still opens files, and may change only device nodes.
    Devices,
    Whole,
}

/// Returns the result of the last system call as a word.
fn outcome(result: i64) -> String {
    if result < 0 { std::io::Error::last_os_error().kind().to_string() } else { "done".into() }
}

fn opened(path: impl AsRef<Path>) -> String {
    std::fs::File::open(path).map_or_else(|error| error.kind().to_string(), |_| "done".into())
}

/// Creates a file in the folder and removes it again.
fn written(folder: &Path) -> String {
    let path = folder.join(format!("remotegpu-written-{}", std::process::id()));
    let made = OpenOptions::new().write(true).create_new(true).open(&path);
    let _ = std::fs::remove_file(&path);
    made.map_or_else(|error| error.kind().to_string(), |_| "done".into())
}

/// Tries everything that a process may try on another one of its user. Returns the outcomes.
fn attempts(neighbour: i32) -> Vec<(&'static str, String)> {
    let (ours, _theirs) = UnixStream::pair().expect("sockets");
    let mut word = 0u64;
    let word = (&raw mut word).cast::<libc::c_void>();
    let near = libc::iovec { iov_base: word, iov_len: 8 };
    let limit = libc::rlimit64 { rlim_cur: 1, rlim_max: 1 };
    // SAFETY: the calls get numbers, and pointers to locals that live until the end of the block.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_code = -1;
        let info = &raw const info;
        let owner = [0, neighbour];
        vec![
            ("kill", outcome(libc::syscall(libc::SYS_kill, neighbour, 0))),
            ("tkill", outcome(libc::syscall(libc::SYS_tkill, neighbour, 0))),
            ("tgkill", outcome(libc::syscall(libc::SYS_tgkill, neighbour, neighbour, 0))),
            ("sigqueue", outcome(libc::syscall(libc::SYS_rt_sigqueueinfo, neighbour, libc::SIGURG, info))),
            (
                "tgsigqueue",
                outcome(libc::syscall(libc::SYS_rt_tgsigqueueinfo, neighbour, neighbour, libc::SIGURG, info)),
            ),
            ("pidfd", outcome(libc::syscall(libc::SYS_pidfd_open, neighbour, 0))),
            ("own", outcome(libc::syscall(libc::SYS_fcntl, ours.as_raw_fd(), libc::F_SETOWN, neighbour))),
            ("own ex", outcome(libc::syscall(libc::SYS_fcntl, ours.as_raw_fd(), 15, &raw const owner))),
            ("own ioctl", outcome(libc::syscall(libc::SYS_ioctl, ours.as_raw_fd(), 0x8901, &raw const neighbour))),
            ("ptrace", outcome(libc::syscall(libc::SYS_ptrace, libc::PTRACE_SEIZE, neighbour, 0, 0))),
            (
                "read",
                outcome(libc::syscall(
                    libc::SYS_process_vm_readv,
                    neighbour,
                    &raw const near,
                    1,
                    &raw const near,
                    1,
                    0,
                )),
            ),
            ("limit", outcome(libc::syscall(libc::SYS_prlimit64, neighbour, libc::RLIMIT_CPU, &raw const limit, 0))),
            ("nice", outcome(libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, neighbour, 19))),
            ("pin", outcome(libc::syscall(libc::SYS_sched_setaffinity, neighbour, 8, word))),
            ("shared memory", outcome(libc::syscall(libc::SYS_shmget, 0, 4096, 0o1600))),
            ("signal", outcome(libc::syscall(libc::SYS_tgkill, neighbour, neighbour, libc::SIGURG))),
        ]
    }
}

/// The user of a container, where the tests may choose: root has rights of its own over other processes.
fn user() -> u32 {
    // SAFETY: takes nothing.
    match unsafe { libc::geteuid() } {
        0 => 65534,
        uid => uid,
    }
}

/// The attacker. Prints the outcome of each attempt.
#[test]
#[ignore = "started by the other tests"]
fn attacker() {
    let Ok(neighbour) = std::env::var(NEIGHBOUR) else { return };
    let secrets = std::env::var_os(SECRETS).map(PathBuf::from).expect("secrets");
    let sandbox = std::env::var(SANDBOX).expect("sandbox");
    let (done, result) = std::sync::mpsc::channel();
    // A thread of its own: the rights that Landlock takes from it stay with the test's other threads.
    std::thread::spawn(move || {
        let uid = user();
        // SAFETY: takes numbers. By the system call itself it changes this thread only.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0);
        if sandbox != "None" {
            let writes = if sandbox == "Devices" { Writes::Devices } else { Writes::Anywhere };
            let files = if sandbox == "Whole" { Files::Done } else { Files::Needed };
            let hidden = std::slice::from_ref(&secrets);
            sandbox::prepare(Path::new("/usr/lib"), hidden, files, writes, Landlock::Welcome).expect("prepared");
            sandbox::enter(files).expect("entered");
            // SAFETY: shares nothing with a child that must not come to be; if it did, it would end at once.
            let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            assert!(child < 0 && outcome(child) == ErrorKind::PermissionDenied.to_string(), "it can fork");
        }
        let process = PathBuf::from(format!("/proc/{neighbour}"));
        let mut results = attempts(neighbour.parse().expect("a pid"));
        results.extend([
            ("memory", opened(process.join("mem"))),
            ("environment", opened(process.join("environ"))),
            ("maps", opened(process.join("maps"))),
            ("secret", opened(secrets.join("token"))),
            ("renewed secret", opened(secrets.join("later"))),
            ("program", Command::new("true").status().map_or_else(|e| e.kind().to_string(), |_| "done".into())),
            ("listen", TcpListener::bind("127.0.0.1:0").map_or_else(|e| e.kind().to_string(), |_| "done".into())),
            ("other file", opened("/etc/hostname")),
            ("write to a disk", written(Path::new("/var/tmp"))),
            ("write to memory", written(Path::new("/dev/shm"))),
            (
                "write to a device",
                OpenOptions::new()
                    .write(true)
                    .open("/dev/null")
                    .map_or_else(|e| e.kind().to_string(), |_| "done".into()),
            ),
            // Calls that the worker itself needs still work.
            ("thread", std::thread::spawn(|| "done".to_owned()).join().expect("joined")),
            // SAFETY: signal 0 to itself.
            ("itself", outcome(unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), std::process::id(), 0) })),
        ]);
        done.send(results).expect("sent");
    });
    let results = result.recv().expect("results");
    let mut out = std::io::stdout().lock();
    for (name, what) in results {
        writeln!(out, "attempt {name}: {what}").expect("written");
    }
}

struct Neighbour(Child);

impl Neighbour {
    fn start() -> Self {
        let mut child = Command::new("sleep").arg("600").uid(user()).stdin(Stdio::null()).spawn().expect("sleep");
        assert!(child.try_wait().expect("waited").is_none());
        Neighbour(child)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn attack(sandbox: Sandbox) -> Vec<(String, String)> {
    let neighbour = Neighbour::start();
    let secrets = std::env::temp_dir().join(format!("remotegpu-secrets-{}-{sandbox:?}", std::process::id()));
    std::fs::create_dir_all(&secrets).expect("folder");
    std::fs::write(secrets.join("token"), "secret").expect("token");
    std::fs::write(secrets.join("later"), "secret").expect("token");
    let mut command = Command::new(std::env::current_exe().expect("program"));
    command.args(["--exact", "attacker", "--ignored", "--nocapture"]);
    command.env(NEIGHBOUR, neighbour.0.id().to_string()).env(SECRETS, &secrets).env(SANDBOX, format!("{sandbox:?}"));
    let output = command.output().expect("attacker");
    std::fs::remove_dir_all(&secrets).expect("removed");
    let lines = BufReader::new(output.stdout.as_slice()).lines().map_while(Result::ok);
    let results: Vec<_> = lines
        .filter_map(|line| {
            let (name, what) = line.split_once("attempt ")?.1.split_once(": ")?;
            Some((name.to_owned(), what.to_owned()))
        })
        .collect();
    assert!(results.len() > 20, "{}", String::from_utf8_lossy(&output.stderr));
    results
}

fn allowed(results: &[(String, String)]) -> Vec<&str> {
    let denied = ErrorKind::PermissionDenied.to_string();
    results.iter().filter(|(_, what)| *what != denied).map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_worker_cannot_reach_its_neighbour_of_the_same_user() {
    assert_eq!(allowed(&attack(Sandbox::Whole)), ["thread", "itself"]);
}

#[test]
fn a_worker_whose_driver_opens_files_still_cannot_reach_its_neighbour_nor_the_secrets() {
    if !sandbox::has_landlock() {
        eprintln!("this kernel has no Landlock: only a uid of its own hides a neighbour's files from such a worker");
        return;
    }
    let writes = ["write to a disk", "write to memory", "write to a device"];
    assert_eq!(allowed(&attack(Sandbox::Files)), [&["other file"][..], &writes, &["thread", "itself"]].concat());
}

#[test]
fn where_an_administrator_says_so_it_changes_nothing_but_devices() {
    if !sandbox::has_landlock() {
        eprintln!("this kernel has no Landlock");
        return;
    }
    assert_eq!(allowed(&attack(Sandbox::Devices)), ["other file", "write to a device", "thread", "itself"]);
}

#[test]
fn without_the_sandbox_the_neighbour_would_be_at_its_mercy() {
    let results = attack(Sandbox::None);
    let allowed = allowed(&results);
    for name in ["kill", "tgkill", "own", "own ex", "own ioctl", "limit", "nice", "pin", "memory", "secret"] {
        assert!(allowed.contains(&name), "{name} fails anyway: its test shows nothing");
    }
}
