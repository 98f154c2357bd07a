//! What `remotegpu bench` runs: latency and bandwidth of a CUDA driver, with raw TCP on the same machine beside them.
//! Prints one JSON object. Microseconds are medians, bandwidths are 10^9 bits of data per second.

mod driver;
mod measurements;
mod options;
mod round_trips;
mod samples;
mod softgpu;
mod tcp;

use std::process::ExitCode;

use options::{Job, Options};
use serde_json::{Map, Value};

fn main() -> ExitCode {
    let done = Options::parse(std::env::args().skip(1)).and_then(|options| match options.job {
        Job::Help => {
            println!("{}", options::HELP);
            Ok(())
        }
        Job::TcpPeer => tcp::serve_as_peer(),
        Job::InitialiseOnly => driver::Driver::load(&options.library).and_then(|driver| driver.start().map(drop)),
        Job::SoftwareGpu => softgpu::measure(&options),
        Job::Measure => measure(&options),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("remotegpu-bench: {message}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<(), String> {
    let mut figures = Map::new();
    let mut tcp = tcp::Reference::start()?;
    let before = tcp.measure(options.quick)?;
    figures.insert("init_round_trips".into(), round_trips::of_initialisation(options)?.into());
    for (name, value) in measurements::all(options)? {
        figures.insert(name.into(), value.into());
    }
    // On both sides of the driver's figures: another load on the machine shows as a difference.
    let after = tcp.measure(options.quick)?;
    for (name, before, after) in [
        ("raw_tcp_rtt_us", before.round_trip_us, after.round_trip_us),
        ("raw_tcp_gbps", before.gigabits_per_second, after.gigabits_per_second),
    ] {
        figures.insert(name.into(), ((before + after) / 2.0).into());
    }
    println!("{:#}", Value::Object(figures));
    Ok(())
}
