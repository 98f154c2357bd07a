//! One line on standard error for what a person must know. `REMOTEGPU_LOG` is `error` (default), `info` or `debug`.

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

/// Writes in one system call, so that lines of several processes do not mix; never panics if stderr is closed.
pub fn line(level: Level, text: &str) {
    if enabled(level) {
        crate::program::sys::write_all(libc::STDERR_FILENO, format!("remotegpu: {text}\n").as_bytes());
    }
}

pub fn error(text: &str) {
    line(Level::Error, text);
}

/// Like [`error`], but not twice in a row: a library may try a hundred images that all fail alike.
pub fn error_unless_repeated(text: &str) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if *last != text {
        error(text);
        text.clone_into(&mut last);
    }
}
