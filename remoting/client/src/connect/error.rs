//! Reasons why an appliance could not be reached or refuses this client.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The environment that `remotegpu run` sets is missing or wrong.
    Settings,
    /// Nothing listens there, or there is no way to it.
    Unreachable,
    /// Something listens, but it is not an appliance, or not the right port of one.
    NotAnAppliance,
    Timeout,
    /// The certificate cannot be trusted, or one side speaks TLS and the other does not.
    Tls,
    /// The lease is unknown or has ended, or its secret or ticket is wrong.
    Refused,
    /// The appliance has no such session any more.
    Gone,
    /// The lease is at another appliance, which [`super::shares::followed`] names from now on.
    Moved,
    /// The two programs are of versions that do not fit.
    Version,
    /// The appliance has no room or is draining.
    Busy,
    /// The appliance failed.
    Appliance,
}

/// One line for a person: the cause, the thing at fault, the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectError {
    pub message: String,
    pub kind: ErrorKind,
}

impl ConnectError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        ConnectError { message: one_line(&message.into()), kind }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConnectError {}

/// A peer's words are shown to a person: no control characters reach the terminal, and no page of text either.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect()
}

/// Joins an error and its causes.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_control_characters() {
        let error = ConnectError::new(ErrorKind::Refused, "no\n\x1b[31mred");
        assert_eq!(error.message, "no  [31mred");
    }
}
