//! Log lines on standard error for the user. `REMOTEGPU_LOG` is `error` (default), `info` or `debug`.

use std::sync::{Mutex, OnceLock, PoisonError};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Error,
    Info,
    Debug,
}

fn threshold() -> Level {
    static THRESHOLD: OnceLock<Level> = OnceLock::new();
    *THRESHOLD.get_or_init(|| match std::env::var("REMOTEGPU_LOG").as_deref() {
        Ok("debug") => Level::Debug,
        Ok("info") => Level::Info,
        _ => Level::Error,
    })
}

pub fn enabled(level: Level) -> bool {
    level <= threshold()
}

/// Writes a line in one system call, so that lines of several processes do not mix. Never panics, even if stderr is
/// closed.
pub fn line(level: Level, text: &str) {
    if enabled(level) {
        crate::program::sys::write_all(libc::STDERR_FILENO, format!("remotegpu: {text}\n").as_bytes());
    }
}

pub fn error(text: &str) {
    line(Level::Error, text);
}

/// Like [`error`], but skips a text that equals the previous one. A library may try a hundred images with the same
/// failure.
pub fn error_unless_repeated(text: &str) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if *last != text {
        error(text);
        text.clone_into(&mut last);
    }
}
