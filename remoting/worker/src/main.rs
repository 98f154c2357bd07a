//! The program of the worker: serves one session, or prints the description of the devices (`--snapshot`). Usage:
//!
//! `remotegpu-worker --driver PATH --control-fd N --data-fd M [--hide PATH]… [--no-files] [--write-devices-only] [--require-landlock] [--threads N] [--grace SECONDS] [--budget NAME=NUMBER]… [--turns-fd N] [--warm]`, or `--snapshot --driver PATH`.

use driverapi::written::PAGEMAP;
use remotegpu_worker::driver::Driver;
use remotegpu_worker::guard::sandbox::{Files, Landlock, Writes};
use remotegpu_worker::guard::{sandbox, watchdog};
use remotegpu_worker::io::connection::Connection;
use remotegpu_worker::io::text::{Text, complain};
use remotegpu_worker::session::budgets::Budgets;
use remotegpu_worker::session::commands::Session;
use remotegpu_worker::session::{server, snapshot};
use remotegpu_worker::turns::asking::Turns;
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const USAGE: &str = "usage: remotegpu-worker --driver PATH (--snapshot | --control-fd N --data-fd M [--hide PATH]... [--no-files] \
     [--write-devices-only] [--require-landlock] [--threads N] [--grace SECONDS] [--budget NAME=NUMBER]... [--turns-fd N] [--warm])";

enum Mode {
    Snapshot,
    Session(Place),
}

/// The descriptors, limits and options that the appliance passes to a worker.
struct Place {
    control: RawFd,
    data: RawFd,
    hidden: Vec<PathBuf>,
    files: Files,
    writes: Writes,
    landlock: Landlock,
    /// Limit on the number of threads of this process's uid.
    threads: Option<u64>,
    /// The time that the session continues without a connection.
    grace: Duration,
    budgets: Budgets,
    /// The socket on which the worker gets turns at the GPUs, or `None` if their time is not divided.
    turns: Option<RawFd>,
    /// Whether the worker creates a context before a client connects.
    warm: bool,
}

fn arguments() -> Option<(String, Mode)> {
    let (mut driver, mut snapshot, mut control, mut data) = (None, false, None, None);
    let (mut hidden, mut files, mut landlock) = (Vec::new(), Files::Needed, Landlock::Welcome);
    let mut writes = Writes::Anywhere;
    let (mut threads, mut grace, mut budgets, mut turns) = (None, Duration::ZERO, Budgets::default(), None);
    let mut warm = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--driver" => driver = Some(arguments.next()?),
            "--snapshot" => snapshot = true,
            "--control-fd" => control = Some(arguments.next()?.parse().ok()?),
            "--data-fd" => data = Some(arguments.next()?.parse().ok()?),
            "--hide" => hidden.push(arguments.next()?.into()),
            "--no-files" => files = Files::Done,
            "--write-devices-only" => writes = Writes::Devices,
            "--require-landlock" => landlock = Landlock::Required,
            "--threads" => threads = Some(arguments.next()?.parse().ok()?),
            "--grace" => grace = Duration::from_secs(arguments.next()?.parse().ok()?),
            "--turns-fd" => turns = Some(arguments.next()?.parse().ok()?),
            "--warm" => warm = true,
            "--budget" => budgets.set(&arguments.next()?)?,
            _ => return None,
        }
    }
    let mode = if snapshot {
        Mode::Snapshot
    } else {
        let (control, data) = (control?, data?);
        Mode::Session(Place { control, data, hidden, files, writes, landlock, threads, grace, budgets, turns, warm })
    };
    Some((driver?, mode))
}

fn open_driver(path: &str) -> Result<Driver, String> {
    let driver = Driver::open(path)?;
    driver.init().map_err(|code| format!("the CUDA driver {path} does not start: CUDA error {code}"))?;
    Ok(driver)
}

fn print_snapshot(path: &str) -> Result<(), String> {
    let snapshot =
        snapshot::take(&open_driver(path)?).map_err(|code| format!("{path} does not answer: CUDA error {code}"))?;
    println!("{}", serde_json::to_string(&snapshot).map_err(|e| e.to_string())?);
    Ok(())
}

fn run_session(path: &str, place: &Place) -> Result<(), String> {
    let line = |e: std::io::Error| e.to_string();
    // SAFETY: the appliance started this process with these descriptors for its exclusive use, and nothing else took
    // them.
    let (control, data) = unsafe { (OwnedFd::from_raw_fd(place.control), OwnedFd::from_raw_fd(place.data)) };
    // SAFETY: the same reason as above.
    let turns = place.turns.map(|turns| unsafe { OwnedFd::from_raw_fd(turns) });
    sandbox::limit(place.threads).map_err(line)?;
    // The file is opened first, because the sandbox may make this process non-dumpable, and then the file can no longer
    // be opened.
    let pagemap = File::open(PAGEMAP);
    let driver = Path::new(path).parent().unwrap_or(Path::new("/"));
    sandbox::prepare(driver, &place.hidden, place.files, place.writes, place.landlock)?;
    // SAFETY: no other thread exists yet. Kernels are loaded when they are described, on a helper's thread, because
    // loading may wait for a running kernel. There are many hardware queues, because a stream that shares a queue with
    // a waiting stream waits too.
    unsafe {
        std::env::set_var("CUDA_MODULE_LOADING", "LAZY");
        std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32");
    }
    let text = Text::capture().map_err(line)?;
    let driver = Arc::new(open_driver(path)?);
    if let Ok(pagemap) = pagemap {
        // If a driver does not support this, its mirrors are read as a whole.
        let _ = driver.follow_writes(pagemap.as_fd());
    }
    let mut session = Session::new(driver, Some(text), place.budgets.clone())?;
    session.turns = turns.map(Turns::new);
    sandbox::enter(place.files)?;
    if place.warm {
        session.warm_up().map_err(|code| format!("no context is made before there is a client: CUDA error {code}"))?;
    }
    // By default the kernel may add 50 us to every short sleep.
    let _ = rustix::thread::set_current_timer_slack(Some(std::num::NonZeroU64::MIN));
    watchdog::watch_appliance(control.as_fd()).map_err(line)?;
    server::tell_ready(control.as_fd()).map_err(line)?;
    if let Some(socket) = server::accept_connection(control.as_fd(), data.as_fd()).map_err(line)? {
        let mut connection = Connection::new(socket, data, place.grace, &mut session.out).map_err(line)?;
        server::serve(&mut session, &mut connection, control.as_fd());
    }
    watchdog::exit()
}

fn main() -> ExitCode {
    let Some((driver, mode)) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let done = match mode {
        Mode::Snapshot => print_snapshot(&driver),
        Mode::Session(place) => run_session(&driver, &place),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            complain(&line);
            ExitCode::FAILURE
        }
    }
}
