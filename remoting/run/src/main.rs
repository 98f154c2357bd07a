//! `remotegpu-run`: `remotegpu run` for machines without Python. A share of appliances' GPUs, the environment of the
//! command, and the command. It names the options that it does not have; the rest is the same as in `remotegpu run`,
//! which the tests compare (tests/cli/test_run.py).

mod child;
mod environment;
mod exits;
mod holding;
mod options;
mod own_token;
mod quantities;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use child::{Ended, Signals};
use exits::{Failure, SOFTWARE, USAGE};
use options::{Job, Options};
use remotegpu_client::connect::address;

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
    // Before a share is taken, or waited for.
    child::find(&options.command[0], &path)?;
    let library = dist.join("client/libcuda.so.1");
    if !library.exists() {
        let message = format!(
            "{} does not exist: unpack the whole archive or build it with `make build`, or point REMOTEGPU_DIST at a \
             folder that has it",
            library.display()
        );
        return Err(Failure::new(SOFTWARE, message));
    }
    let Options { mut endpoint, mut access, mut wish, managed_mib, command } = options;
    if let Some(ca) = &access.ca {
        check_authority(ca)?;
    }
    if access.token.is_none()
        && let Some((host, port)) = address::split(&endpoint, None)
        && let Some((here, token)) = own_token::find(host, port, variable("XDG_RUNTIME_DIR"))
    {
        access.token = Some(token);
        // With TLS the certificate says who it is, by the name that was given.
        if access.ca.is_none() {
            endpoint = address::joined(&here, port);
        }
    }
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    wish.client = format!("{} pid {} {}", host_name(), std::process::id(), words.join(" "));
    let lease = match holding::wait_for(&endpoint, &access, wish, signals)? {
        holding::Waited::Granted(lease) => lease,
        holding::Waited::Stopped(number) => return Ok(Ended::Signal(number)),
    };
    let held = holding::Held::new(*lease)?;
    let stand_ins = environment::stand_ins(&dist);
    let environment = environment::of_share(inherited, &dist, &stand_ins, held.lease(), managed_mib);
    let ended = child::run(&command, &path, &environment, signals);
    held.close();
    ended
}

/// `REMOTEGPU_DIST`, else the folder in whose `bin` this program lies.
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
