//! A small `nvidia-smi` for the queries that scripts and people use most, for any `libnvidia-ml.so.1`. Tools that call
//! NVIDIA's program find this one in a pod without a GPU of its own.
//!
//! `library` loads NVML, `snapshot` reads all values once, and `table`, `query`, `details`, `monitor` and `topology`
//! print. This program must not depend on the provider of NVML: the client, the software GPU or NVIDIA.

mod clock;
mod details;
mod fields;
mod library;
mod manual;
mod monitor;
mod options;
mod query;
mod snapshot;
mod table;
mod topology;

use options::{Options, Output};
use snapshot::System;
use std::fs::File;
use std::io::Write;
use std::process::ExitCode;

/// Exit codes that NVIDIA's program documents.
const INVALID_ARGUMENT: u8 = 2;
const NOT_FOUND: u8 = 6;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        // Like NVIDIA's program, print the message on standard output, where scripts look for it.
        Err(message) => {
            println!("{message}");
            return ExitCode::from(INVALID_ARGUMENT);
        }
    };
    let mut out: Box<dyn Write> = match &options.file {
        None => Box::new(std::io::stdout()),
        Some(path) => match File::create(path) {
            Ok(file) => Box::new(file),
            Err(error) => return fail(&format!("Cannot write to {}: {error}.", path.display()), INVALID_ARGUMENT),
        },
    };
    if let Output::Text(text) = &options.output {
        return print(&mut out, text);
    }
    let library = match library::Library::load() {
        Ok(library) => library,
        Err((message, code)) => return fail(&message, code),
    };
    if let Output::Monitor(monitor) = &options.output {
        print(&mut out, &monitor.header());
    }
    let mut left = options.count;
    loop {
        let mut system = System::read(&library);
        if let Some(wanted) = &options.device {
            system.gpus.retain(|gpu| gpu.is(wanted));
            if system.gpus.is_empty() {
                return fail(&format!("No device is {wanted:?}; nvidia-smi -L lists them."), NOT_FOUND);
            }
        }
        let code = print(&mut out, &shown(&options.output, &system));
        left = left.map(|left| left - 1);
        match options.repeat {
            Some(pause) if code == ExitCode::SUCCESS && left != Some(0) => std::thread::sleep(pause),
            _ => return code,
        }
    }
}

fn shown(output: &Output, system: &System) -> String {
    match output {
        Output::List => table::list(system),
        Output::Fields(query) => query.lines(system),
        Output::Details { xml: true, sections } => details::xml(system, sections),
        Output::Details { xml: false, sections } => details::text(system, sections),
        Output::Monitor(monitor) => monitor.values(system),
        Output::Topology => topology::matrix(system),
        Output::Table | Output::Text(_) => table::overview(system),
    }
}

/// Writes `text`. Returns failure without a message if the reader closed the pipe (`nvidia-smi | head -1`).
fn print(out: &mut impl Write, text: &str) -> ExitCode {
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
