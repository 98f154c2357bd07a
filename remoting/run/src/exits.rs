//! The exit codes, equal to those of `remotegpu.cli.exits`, and the error type that carries one.

use remotegpu_client::connect::{ConnectError, ErrorKind};

pub const USAGE: i32 = 2;
pub const UNAVAILABLE: i32 = 69;
pub const SOFTWARE: i32 = 70;
pub const BUSY: i32 = 75;
pub const MISMATCH: i32 = 76;
pub const DENIED: i32 = 77;
pub const NOT_EXECUTABLE: i32 = 126;
pub const NOT_FOUND: i32 = 127;

/// An error that ends this program: one line for stderr, and the exit code.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: i32,
    pub message: String,
}

impl Failure {
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Failure { code, message: message.into() }
    }
}

/// Returns the system's error message without the error number.
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" (os error").map_or(text.clone(), |(reason, _)| reason.to_owned())
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let code = match error.kind {
            ErrorKind::Settings => USAGE,
            ErrorKind::Refused => DENIED,
            ErrorKind::Busy => BUSY,
            ErrorKind::Version => MISMATCH,
            ErrorKind::Unreachable
            | ErrorKind::NotAnAppliance
            | ErrorKind::Timeout
            | ErrorKind::Tls
            | ErrorKind::Gone
            | ErrorKind::Moved
            | ErrorKind::Appliance => UNAVAILABLE,
        };
        let options = if error.kind == ErrorKind::Tls { " (--ca, --server-name)" } else { "" };
        Failure::new(code, format!("{}{options}", error.message))
    }
}
