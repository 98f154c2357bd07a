//! Runs every decoder on mutated seeds, in a process of its own, for `REMOTEGPU_FUZZ_SECONDS` seconds (default 30). An
//! input fails if the process ends (a panic, a signal, one allocation beyond 64 MiB) or takes longer than a second.
//!
//!     cargo run --release --manifest-path remoting/fuzz/Cargo.toml [-- NAME [INPUT_FILE] | --write-seeds FOLDER]

mod limits;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remotegpu_fuzz::{Mutator, TARGETS, Target};

#[global_allocator]
static ALLOCATOR: limits::Limited = limits::Limited;

const SECONDS: &str = "REMOTEGPU_FUZZ_SECONDS";
/// The environment variable with the file in which a process stores the number of its current input. If the variable is
/// set, this process mutates the inputs itself.
const PROGRESS: &str = "REMOTEGPU_FUZZ_PROGRESS";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        [] => run_all(TARGETS.iter().collect()),
        ["--write-seeds", folder] => write_seeds(Path::new(folder)),
        [name] => find(name).and_then(|target| match std::env::var_os(PROGRESS) {
            Some(progress) => mutate_for_a_while(target, Path::new(&progress)),
            None => run_all(vec![target]),
        }),
        [name, file] => find(name).and_then(|target| run_file(target, Path::new(file))),
        _ => Err("expected nothing, a decoder's name, or a name and a file".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("remotegpu-fuzz: {message}");
            ExitCode::FAILURE
        }
    }
}

fn find(name: &str) -> Result<&'static Target, String> {
    let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    TARGETS.iter().find(|target| target.name == name).ok_or_else(|| format!("no decoder {name}; there are {names:?}"))
}

fn duration() -> Result<Duration, String> {
    let text = std::env::var(SECONDS).unwrap_or_else(|_| "30".into());
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..1e6).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("{SECONDS}={text} is no number of seconds"))
}

fn run_file(target: &Target, file: &Path) -> Result<(), String> {
    let input = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    (target.run)(&input);
    println!("{}: {} bytes are survived", target.name, input.len());
    Ok(())
}

/// Writes the seeds of each target to a folder of its name, as corpora for cargo-fuzz.
fn write_seeds(folder: &Path) -> Result<(), String> {
    for target in TARGETS {
        let folder = folder.join(target.name);
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        for (index, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{index}")), seed).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Mutates the seeds of each target in a process of its own, with at most one process for each processor at a time.
///
/// # Errors
/// The failures of all targets, or the first process that cannot be started or read.
fn run_all(mut waiting: Vec<&'static Target>) -> Result<(), String> {
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut running, mut failures): (Vec<Run>, Vec<String>) = (Vec::new(), Vec::new());
    while !(waiting.is_empty() && running.is_empty()) {
        while running.len() < at_once && !waiting.is_empty() {
            running.push(Run::start(waiting.remove(0))?);
        }
        std::thread::sleep(Duration::from_millis(20));
        for run in std::mem::take(&mut running) {
            match run.finished()? {
                Ok(run) => running.push(run),
                Err(outcome) => failures.extend(outcome),
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// A process that mutates the seeds of one decoder.
struct Run {
    target: &'static Target,
    progress: PathBuf,
    child: Child,
}

impl Run {
    fn start(target: &'static Target) -> Result<Run, String> {
        let progress = std::env::temp_dir().join(format!("remotegpu-fuzz-{}-{}", std::process::id(), target.name));
        std::fs::write(&progress, 0u64.to_le_bytes()).map_err(|error| error.to_string())?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let child = Command::new(program).arg(target.name).env(PROGRESS, &progress).spawn();
        Ok(Run { target, progress, child: child.map_err(|error| error.to_string())? })
    }

    /// Returns the process itself if it still runs. Otherwise returns its failure, or `None` if it has succeeded.
    fn finished(mut self) -> Result<Result<Run, Option<String>>, String> {
        let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? else { return Ok(Ok(self)) };
        let number = std::fs::read(&self.progress).ok().and_then(|bytes| bytes.first_chunk().copied());
        let number = u64::from_le_bytes(number.unwrap_or_default());
        let _ = std::fs::remove_file(&self.progress);
        if status.success() {
            println!("{}: {number} inputs survived", self.target.name);
            return Ok(Err(None));
        }
        let input = Mutator::new(&(self.target.seeds)(), number).input();
        let file = std::env::temp_dir().join(format!("remotegpu-fuzz-{}-{number}", self.target.name));
        std::fs::write(&file, &input).map_err(|error| error.to_string())?;
        let (name, file) = (self.target.name, file.display());
        Ok(Err(Some(format!(
            "{name} does not survive input {number} ({status}): `cargo run --release --manifest-path \
             remoting/fuzz/Cargo.toml -- {name} {file}`"
        ))))
    }
}

fn mutate_for_a_while(target: &Target, progress: &Path) -> Result<(), String> {
    let end = Instant::now() + duration()?;
    let progress = File::options().write(true).open(progress).map_err(|error| error.to_string())?;
    let seeds = (target.seeds)();
    let number = Arc::new(AtomicU64::new(0));
    watch(target.name, number.clone());
    for seed in &seeds {
        (target.run)(seed);
    }
    while Instant::now() < end {
        let current = number.fetch_add(1, Ordering::Relaxed) + 1;
        // The number is written before the input runs, so that the parent knows the input if this process ends.
        progress.write_all_at(&current.to_le_bytes(), 0).map_err(|error| error.to_string())?;
        (target.run)(&Mutator::new(&seeds, current).input());
    }
    Ok(())
}

/// Starts a thread that ends the process if one input takes more than a second. It measures the processor time of this
/// process, because the machine may be busy with other work.
fn watch(name: &'static str, number: Arc<AtomicU64>) {
    std::thread::spawn(move || {
        let mut last = (u64::MAX, 0.0);
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let (current, used) = (number.load(Ordering::Relaxed), processor_seconds());
            if current != last.0 {
                last = (current, used);
            } else if used - last.1 > 1.0 {
                eprintln!("{name}: input {current} takes longer than a second");
                std::process::abort();
            }
        }
    });
}

/// Returns the processor time of all threads of this process in seconds. Fields 14 and 15 of `stat` have the user and
/// system time in hundredths of a second. The fields are counted after the name in parentheses.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
