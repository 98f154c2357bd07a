//! How often the client waits for the appliance until the first stream is synchronised.

use std::process::{Command, Stdio};

use crate::options::Options;

/// Counted in a process of its own, by the client's own statistics, which it writes when it ends. `None` with a driver
/// that writes none: it is no remote one.
///
/// # Errors
/// If the process fails; its own message stands above.
pub fn of_initialisation(options: &Options) -> Result<Option<u64>, String> {
    let file = std::env::temp_dir().join(format!("remotegpu-bench-{}.json", std::process::id()));
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let status = Command::new(program)
        .args(["--initialise-only", "--library", &options.library])
        .env("REMOTEGPU_STATS", &file)
        .stdout(Stdio::null())
        .status();
    let report = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    let status = status.map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("initialising the driver failed ({status})"));
    }
    let Ok(report) = report else { return Ok(None) };
    let report: serde_json::Value =
        serde_json::from_str(&report).map_err(|error| format!("the client's statistics are no JSON: {error}"))?;
    Ok(report["round_trips"].as_u64())
}
