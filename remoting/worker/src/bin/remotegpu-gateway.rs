//! The program `remotegpu-gateway`: parses its options and runs [`remotegpu_worker::gateway`].

use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use remotegpu_worker::gateway::{self, Options};

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("remotegpu-gateway: {message}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<(), String> {
    let options = Options::parse(std::env::args().skip(1))?;
    // SAFETY: the appliance started this program with the descriptor open, and nothing else in this process uses the
    // descriptor. If the number is not open, the first use fails with an error.
    let control = unsafe { OwnedFd::from_raw_fd(options.control_fd) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(gateway::run(options, control)).map_err(|error| error.to_string())
}
