//! The statistics of a process that called any exported function. It writes them to `REMOTEGPU_STATS`: a file, or a
//! folder for files of several processes. It writes at its end and ten times a second, because a signal or `_exit` may
//! end it.

use crate::program::{identity, log, stats, sys};
use driverapi::descriptors::apart;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, thread};

const STATS: &str = "REMOTEGPU_STATS";

const EVERY: Duration = Duration::from_millis(100);

/// The last written report, or `None` after the final one.
static WRITTEN: Mutex<Option<String>> = Mutex::new(Some(String::new()));

/// Starts writing a report whenever it has changed, if the environment sets a path.
pub fn keep() {
    let Some(path) = std::env::var_os(STATS).map(PathBuf::from) else { return };
    let kept = sys::spawn("remotegpu-stats", move || {
        loop {
            thread::sleep(EVERY);
            let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(before) = written.as_mut() else { return };
            let report = stats::report(&identity::name());
            if *before != report {
                write(&path, &report);
                *before = report;
            }
        }
    });
    if let Err(error) = kept {
        log::error(&format!("statistics of a process that is killed are lost: no thread: {error}"));
    }
}

/// Writes the final report.
pub fn write_last() {
    // `remotegpu-run` has the same environment but makes no calls. It leaves the file to the program that it runs.
    if let (Some(path), true) = (std::env::var_os(STATS), stats::is_any()) {
        let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
        *written = None;
        write(Path::new(&path), &stats::report(&identity::name()));
    }
}

/// Writes a report. A folder gets a file for each process; a file keeps the report of a program's last process.
fn write(path: &Path, report: &str) {
    let file = if path.is_dir() { path.join(format!("{}.json", std::process::id())) } else { path.to_owned() };
    let open = || fs::OpenOptions::new().write(true).create(true).truncate(false).open(&file);
    let written = apart(open).and_then(|mut file| {
        writeln!(file, "{report}")?;
        // The file is shortened last, so that a process which is killed meanwhile leaves a report.
        if file.metadata()?.is_file() { file.set_len(report.len() as u64 + 1) } else { Ok(()) }
    });
    if let Err(error) = written {
        log::error(&format!("cannot write the statistics to {}: {error}", file.display()));
    }
}
