//! A small `nvidia-smi`: what scripts and people ask of it most, from whatever `libnvidia-ml.so.1` is loaded.
//! Tools that call NVIDIA's program find this one in a pod that has no GPU of its own.

mod clock;
mod library;
mod options;
mod query;
mod snapshot;
mod table;

use options::{Options, Output};
use snapshot::System;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Exit codes that NVIDIA's program documents.
const INVALID_ARGUMENT: u8 = 2;
const NOT_FOUND: u8 = 6;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => return fail(&message, INVALID_ARGUMENT),
    };
    if let Output::Text(text) = options.output {
        return print(text);
    }
    let library = match library::Library::load() {
        Ok(library) => library,
        Err((message, code)) => return fail(&message, code),
    };
    loop {
        let mut system = System::read(&library);
        if let Some(wanted) = &options.device {
            system.gpus.retain(|gpu| gpu.is(wanted));
            if system.gpus.is_empty() {
                return fail(&format!("No device is {wanted:?}; nvidia-smi -L lists them."), NOT_FOUND);
            }
        }
        let text = match &options.output {
            Output::List => table::list(&system),
            Output::Gpus(query) => query.gpus(&system),
            Output::Processes(query) => query.processes(&system),
            Output::Table | Output::Text(_) => table::overview(&system),
        };
        let code = print(&text);
        match options.repeat_seconds {
            Some(seconds) if code == ExitCode::SUCCESS => std::thread::sleep(Duration::from_secs(seconds)),
            _ => return code,
        }
    }
}

/// A reader that went away (`nvidia-smi | head -1`) is not an error worth words.
fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn fail(message: &str, code: u8) -> ExitCode {
    eprintln!("{message}");
    ExitCode::from(code)
}
