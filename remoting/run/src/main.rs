//! `remotegpu-run`: leases a share of GPUs, sets a command's environment, and runs the command.
//!
//! `remotegpu run` of the Python package executes this program in its place. If Python starts an appliance of its own,
//! or observes the command (`--report`, `--trace`), it starts this program with `--hold`, which only holds the share.

mod child;
mod environment;
mod exits;
mod holding;
mod native;
mod options;
mod own_token;
mod placement;
mod quantities;
mod waiting;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use child::{Ended, Signals};
use exits::{Failure, SOFTWARE, USAGE};
use holding::Held;
use options::{Job, Options, Place};
use remotegpu_client::connect::{Access, Lease, address};
use serde_json::{Value, json};
use waiting::Waited;

fn main() {
    let signals = Signals::block();
    let code = match run(&signals) {
        Ok(Ended::Code(code)) => code,
        Ok(Ended::Signal(number)) => child::die_of(number),
        Err(failure) => {
            let words: Vec<_> = failure.message.split_whitespace().collect();
            eprintln!("remotegpu: {}", words.join(" "));
            failure.code
        }
    };
    std::process::exit(code);
}

fn run(signals: &Signals) -> Result<Ended, Failure> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let options = match options::parse(std::env::args_os().skip(1), variable)? {
        Job::Help => {
            println!("{}", options::HELP);
            return Ok(Ended::Code(0));
        }
        Job::Run(options) => options,
    };
    let dist = dist();
    let inherited: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let path = environment::path(&inherited, &dist);
    if options.hold {
        signals.end_with_input();
    } else {
        // Report a missing command before a share is leased.
        child::find(&options.command[0], &path)?;
    }
    let Options { place, mut wish, managed_mib, command, hold } = options;
    let stand_ins = environment::stand_ins(&dist);
    let (held, environment) = match place {
        Place::Native(profile) => {
            check_library(&dist.join("native/libcuda.so.1"))?;
            let memory = native::memory_of(&wish, profile, variable("REMOTEGPU_SOFTGPU_MEMORY").as_deref())?;
            let size = (wish.count, memory);
            (Vec::new(), environment::native(inherited.clone(), &dist, &stand_ins, profile, size))
        }
        Place::Appliances { endpoints, access } => {
            check_library(&dist.join("client/libcuda.so.1"))?;
            if let Some(ca) = &access.ca {
                check_authority(ca)?;
            }
            let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
            wish.client = format!("{} pid {} {}", host_name(), std::process::id(), words.join(" "));
            let runtime = variable("XDG_RUNTIME_DIR");
            let places: Vec<_> =
                endpoints.into_iter().map(|endpoint| with_own_token(endpoint, &access, runtime.clone())).collect();
            let leases = match waiting::wait_for(&places, &wish, signals)? {
                Waited::Granted(leases) => leases,
                Waited::Stopped(number) => return Ok(Ended::Signal(number)),
            };
            let held = hold_all(leases, if hold { print_place } else { |_| () })?;
            let leases: Vec<_> = held.iter().map(Held::lease).collect();
            let environment = environment::of_share(inherited.clone(), &dist, &stand_ins, &leases, managed_mib);
            (held, environment)
        }
    };
    let ended = if hold {
        print(&json!({ "environment": environment::changes(&inherited, &environment) }));
        Ok(wait_for_end(signals))
    } else {
        child::run(&command, &path, &environment, signals)
    };
    for lease in held {
        lease.close();
    }
    ended
}

/// Holds all leases, or none: on an error it closes all of them.
fn hold_all(leases: Vec<Lease>, moved: fn(&Lease)) -> Result<Vec<Held>, Failure> {
    let mut held = Vec::new();
    let mut leases = leases.into_iter();
    while let Some(lease) = leases.next() {
        match Held::new(lease, moved) {
            Ok(lease) => held.push(lease),
            Err(failure) => {
                held.into_iter().for_each(Held::close);
                leases.for_each(|lease| drop(lease.close()));
                return Err(failure);
            }
        }
    }
    Ok(held)
}

/// Adds the token of an appliance of the same user on this machine, if `access` has no token.
fn with_own_token(endpoint: String, access: &Access, runtime: Option<String>) -> (String, Access) {
    let mut access = access.clone();
    if access.token.is_none()
        && let Some((host, port)) = address::split(&endpoint, None)
        && let Some((here, token)) = own_token::find(host, port, runtime)
    {
        access.token = Some(token);
        // With TLS keep the given name, because the certificate is checked against it.
        let endpoint = if access.ca.is_none() { address::joined(&here, port) } else { endpoint };
        return (endpoint, access);
    }
    (endpoint, access)
}

/// Prints a JSON object as one line, for the program that started this one with `--hold`.
fn print(object: &Value) {
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{object}").and_then(|()| output.flush());
}

fn print_place(lease: &Lease) {
    print(&json!({ "lease_id": lease.share.lease_id, "endpoint": lease.endpoint() }));
}

/// Waits for a signal or the end of standard input. The program that started this one with `--hold` has the other end.
fn wait_for_end(signals: &Signals) -> Ended {
    loop {
        match signals.ending() {
            Some(_) if signals.has_input_ended() => return Ended::Code(0),
            Some(number) => return Ended::Signal(number),
            None => thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn check_library(library: &Path) -> Result<(), Failure> {
    if library.exists() {
        return Ok(());
    }
    let message = format!(
        "{} does not exist: unpack the whole archive or build it with `make build`, or point REMOTEGPU_DIST at a folder \
         that has it",
        library.display()
    );
    Err(Failure::new(SOFTWARE, message))
}

/// Returns `REMOTEGPU_DIST`, or else the parent of the `bin` folder that contains this program.
fn dist() -> PathBuf {
    let given = std::env::var_os("REMOTEGPU_DIST").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let own = || Some(std::env::current_exe().ok()?.parent()?.parent()?.to_owned());
    let folder = given.or_else(own).unwrap_or_default();
    folder.canonicalize().unwrap_or(folder)
}

fn check_authority(file: &str) -> Result<(), Failure> {
    let why = match std::fs::read_to_string(Path::new(file)) {
        Ok(text) if text.contains("-----BEGIN CERTIFICATE-----") => return Ok(()),
        Ok(_) => "it holds no certificate in PEM form".to_owned(),
        Err(error) => exits::reason(&error),
    };
    let message = format!("the CA certificate {file} cannot be used: {why}; correct --ca or REMOTEGPU_CA");
    Err(Failure::new(USAGE, message))
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}
