//! The speed of the software GPU in lane-instructions (one PTX instruction on one active thread) per second of
//! processor time. This unit does not depend on the number of cores or on other load.
//!
//! `kernels` defines the workloads and checks their results; `ptx` assembles and counts their instructions. `main`
//! calls this module. It uses only the driver's interface and must not depend on the interpreter.

mod kernels;
mod ptx;

use std::time::Instant;

use serde_json::{Map, Value};

use crate::driver::{Driver, Kernel, Session};
use crate::options::Options;
use crate::{processor, samples};
use kernels::Workload;

/// Runs every workload, checks its result, and prints one JSON object.
///
/// # Errors
/// If the driver fails, or if a result is wrong.
pub fn measure(options: &Options) -> Result<(), String> {
    let driver = Driver::load(&options.library)?;
    let session = driver.start()?;
    let mut figures = Map::new();
    for workload in kernels::all(options.quick) {
        let speed = run(&session, &workload, options)?;
        figures.insert(format!("{}_lane_ginst_per_core_s", workload.name), speed.per_core.into());
        figures.insert(format!("{}_cores", workload.name), speed.cores.into());
    }
    println!("{:#}", Value::Object(figures));
    Ok(())
}

struct Speed {
    /// 10^9 lane-instructions per second of processor time.
    per_core: f64,
    /// Processor time divided by elapsed time.
    cores: f64,
}

fn run(session: &Session, workload: &Workload, options: &Options) -> Result<Speed, String> {
    let text = workload.text();
    let kernel = session.function(&text, c"k")?;
    let input = session.alloc(workload.input.len())?;
    let output = session.alloc(workload.output_bytes)?;
    session.to_device(input, &workload.input)?;
    let mut parameters = vec![input, output];
    parameters.extend(&workload.numbers);
    // One run before the measurement allocates memory and warms the caches.
    launch(session, &kernel, workload, &parameters)?;
    let (mut per_core, mut cores) = (Vec::new(), Vec::new());
    for _ in 0..options.repeat(7).times {
        let (wall, processor) = (Instant::now(), processor::seconds());
        launch(session, &kernel, workload, &parameters)?;
        let (wall, processor) = (wall.elapsed().as_secs_f64(), processor::seconds() - processor);
        per_core.push(workload.lane_instructions() as f64 * 1e-9 / processor);
        cores.push(processor / wall);
    }
    let mut result = vec![0; workload.output_bytes];
    session.to_host(&mut result, output)?;
    session.free(input)?;
    session.free(output)?;
    if !(workload.is_right)(&result) {
        return Err(format!("the result of {} is wrong", workload.name));
    }
    Ok(Speed { per_core: samples::median(per_core), cores: samples::median(cores) })
}

fn launch(session: &Session, kernel: &Kernel, workload: &Workload, parameters: &[u64]) -> Result<(), String> {
    kernel.launch_grid(workload.grid, workload.block, parameters)?;
    session.synchronize()
}
