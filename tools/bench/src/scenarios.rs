//! Counts how often the client waits for the appliance. Each scenario makes a few calls in its own process, whose
//! client writes its statistics at the process' end.

use std::ffi::CString;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Map, Value};

use crate::driver::{Driver, KERNEL, Session};
use crate::options::Options;
use crate::samples::{median, noise};

/// The number of calls, large enough that occasional requests for memory do not matter.
const CALLS: usize = 200;
const STARTS: usize = 5;

/// The padding of an image: no appliance has the image, and the client does not send it without a request.
const MODULE_PADDING: usize = 128 << 10;

/// Returns `init_ms` and the numbers of round trips. They are `null` with a driver that does not count them because it
/// is not remote.
///
/// # Errors
/// If a process fails; the process prints its own message.
pub fn measure(options: &Options) -> Result<Map<String, Value>, String> {
    let starts = (0..STARTS).map(|_| run(options, "start")).collect::<Result<Vec<_>, _>>()?;
    let init_ms = median(starts.iter().map(|start| start.init_ms).collect());
    let start = &starts[0];
    let (first, again) = (run(options, "module")?, run(options, "module-twice")?);
    let each = |run: &Count| Some((run.round_trips? - start.round_trips?) / CALLS as f64);
    let (allocate, finished) = (run(options, "allocate")?, run(options, "query-finished-event")?);
    let figures = [
        ("init_ms", Some(init_ms)),
        ("init_round_trips", start.round_trips),
        ("alloc_round_trips", each(&allocate)),
        // Each query follows a synchronise, which is one round trip.
        ("event_query_round_trips", each(&finished).map(|trips| trips - 1.0)),
        ("module_first_round_trips", first.more_than(start, |count| count.round_trips)),
        ("module_again_round_trips", again.more_than(&first, |count| count.round_trips)),
        ("module_again_bytes", again.more_than(&first, |count| count.bytes_sent)),
    ];
    Ok(figures.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect())
}

struct Count {
    init_ms: f64,
    round_trips: Option<f64>,
    bytes_sent: Option<f64>,
}

impl Count {
    fn more_than(&self, other: &Count, of: fn(&Count) -> Option<f64>) -> Option<f64> {
        Some(of(self)? - of(other)?)
    }
}

fn run(options: &Options, scenario: &str) -> Result<Count, String> {
    let file = std::env::temp_dir().join(format!("remotegpu-bench-{}.json", std::process::id()));
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args(["scenario", scenario, "--library", &options.library])
        .env("REMOTEGPU_STATS", &file)
        .stderr(Stdio::inherit())
        .output();
    let report = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("the scenario {scenario} failed ({})", output.status));
    }
    let init_ms = String::from_utf8_lossy(&output.stdout).trim().parse().map_err(|_| "no time was told")?;
    let Ok(report) = report else { return Ok(Count { init_ms, round_trips: None, bytes_sent: None }) };
    let report: Value =
        serde_json::from_str(&report).map_err(|error| format!("the client's statistics are no JSON: {error}"))?;
    Ok(Count { init_ms, round_trips: report["round_trips"].as_f64(), bytes_sent: report["bytes_sent"].as_f64() })
}

/// Makes the calls of a scenario. Prints the time for the driver's initialisation in milliseconds.
///
/// # Errors
/// The name of the function that failed, with its code.
pub fn play(options: &Options, scenario: &str) -> Result<(), String> {
    let driver = Driver::load(&options.library)?;
    let started = Instant::now();
    let session = driver.start()?;
    println!("{}", started.elapsed().as_secs_f64() * 1e3);
    match scenario {
        "start" => Ok(()),
        "allocate" => (0..CALLS).try_for_each(|_| session.alloc(4096).map(drop)),
        "query-finished-event" => query_finished_events(&session),
        "module" => load(&session, 1),
        "module-twice" => load(&session, 2),
        other => Err(format!("there is no scenario {other}")),
    }
}

fn query_finished_events(session: &Session) -> Result<(), String> {
    let event = session.event()?;
    for _ in 0..CALLS {
        event.record()?;
        session.synchronize()?;
        if !event.query()? {
            return Err("an event before a synchronise is not done after it".into());
        }
    }
    Ok(())
}

fn load(session: &Session, times: usize) -> Result<(), String> {
    let digits: String = noise(MODULE_PADDING / 2).iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{}// {} {digits}\n", KERNEL.to_string_lossy(), std::process::id());
    let text = CString::new(text).map_err(|error| error.to_string())?;
    (0..times).try_for_each(|_| session.function(&text, c"count").map(drop))
}
