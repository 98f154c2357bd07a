//! Lists which kernels the engine can execute: `cargo run --example ptx_check -- FILE...`. A file is PTX, or anything
//! that has fat binaries in it, such as one of NVIDIA's libraries; of each fat binary the newest PTX counts.

use driverapi::fatbin::{self, Kind};
use softgpu::engine::Program;
use std::collections::BTreeMap;

/// The results so far.
#[derive(Default)]
struct Tally {
    supported: usize,
    failed: usize,
    /// How often each reason was given, without the kernel's name and line.
    reasons: BTreeMap<String, usize>,
}

impl Tally {
    fn fail(&mut self, reason: String) {
        self.failed += 1;
        *self.reasons.entry(reason).or_default() += 1;
    }

    fn check(&mut self, text: &str) {
        let program = match Program::compile(&[text]) {
            Ok(program) => program,
            Err(error) => return self.fail(error.to_string()),
        };
        for kernel in program.kernels() {
            match &kernel.unsupported {
                None => self.supported += 1,
                Some(why) => self.fail(why.split_once(": ").map_or(why.as_str(), |(_, form)| form).to_owned()),
            }
        }
    }

    fn check_file(&mut self, bytes: &[u8]) {
        if let Ok(text) = std::str::from_utf8(bytes) {
            return self.check(text);
        }
        let magic = fatbin::MAGIC.to_le_bytes();
        for start in (0..bytes.len().saturating_sub(16)).step_by(8).filter(|&at| bytes[at..].starts_with(&magic)) {
            let Ok(entries) = fatbin::entries(&bytes[start..]) else { continue };
            let newest = entries.iter().filter(|entry| entry.kind == Kind::Ptx).max_by_key(|entry| entry.arch);
            let Some(data) = newest.and_then(|entry| entry.data().ok()) else { continue };
            self.check(&String::from_utf8_lossy(&data));
        }
    }
}

fn main() {
    let mut failed = 0;
    for path in std::env::args().skip(1) {
        let mut tally = Tally::default();
        match std::fs::read(&path) {
            Ok(bytes) => tally.check_file(&bytes),
            Err(error) => tally.fail(error.to_string()),
        }
        println!("{path}: {} kernels supported, {} not", tally.supported, tally.failed);
        for (reason, times) in &tally.reasons {
            println!("  {times} times: {reason}");
        }
        failed += tally.failed;
    }
    std::process::exit(i32::from(failed > 0));
}
