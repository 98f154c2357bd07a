//! The program of `remotegpu bench`: measures latency and bandwidth of a CUDA driver, and compares them with raw TCP on
//! the same machine. It prints one JSON object. Times are medians in microseconds, bandwidths are 10^9 bits of data per
//! second.
//!
//! `driver` loads any libcuda by its path. `measurements`, `bulk`, `backlog`, `scenarios` and `softgpu` measure it.
//! `tcp` is the reference, and `delay` simulates a slow network. `remotegpu.cli.bench` starts this program, which links
//! no code of client, worker or software GPU.

mod backlog;
mod bulk;
mod delay;
mod driver;
mod measurements;
mod options;
mod processor;
mod samples;
mod scenarios;
mod softgpu;
mod tcp;

use std::io::Read;
use std::process::ExitCode;

use options::{Job, Options};
use serde_json::Value;

fn main() -> ExitCode {
    let done = Options::parse(std::env::args().skip(1)).and_then(|options| match &options.job {
        Job::Help => {
            println!("{}", options::HELP);
            Ok(())
        }
        Job::Measure => measure(&options),
        Job::SoftwareGpu => softgpu::measure(&options),
        Job::Bulk => bulk::measure(&options),
        Job::Backlog(time) => backlog::work(&options, *time),
        Job::Scenario(name) => scenarios::play(&options, name),
        Job::TcpPeer(address) => {
            end_with_input();
            tcp::serve_as_peer(address)
        }
        Job::DelayProxy(delay, routes) => {
            end_with_input();
            delay::serve(*delay, routes)
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("remotegpu-bench: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Starts a thread that ends this process at EOF of standard input, so that no server outlives its parent.
fn end_with_input() {
    std::thread::spawn(|| {
        let mut input = std::io::stdin();
        while let Ok(1..) = input.read(&mut [0; 256]) {}
        std::process::exit(0);
    });
}

/// Prints all figures. Raw TCP is measured before and after the driver: if the two results differ, the machine had
/// other load.
fn measure(options: &Options) -> Result<(), String> {
    let mut tcp = tcp::Reference::start(options)?;
    let before = tcp.measure(options)?;
    let mut figures = scenarios::measure(options)?;
    figures.extend(measurements::all(options)?);
    let after = tcp.measure(options)?;
    let document = serde_json::json!({
        "figures": figures,
        "before": object(&before),
        "after": object(&after),
    });
    println!("{document:#}");
    Ok(())
}

fn object(figures: &[(&str, f64)]) -> Value {
    figures.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect()
}
