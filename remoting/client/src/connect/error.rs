//! Reasons why an appliance cannot be reached or refuses this client.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The environment variables that `remotegpu run` sets are missing or wrong.
    Settings,
    /// No process listens at the address, or the network does not reach it.
    Unreachable,
    /// A process listens, but it is not an appliance, or the port is the wrong one.
    NotAnAppliance,
    Timeout,
    /// The certificate cannot be trusted, or one side speaks TLS and the other does not.
    Tls,
    /// The lease is unknown or has ended, or its secret or ticket is wrong.
    Refused,
    /// The session does not exist on the appliance any more.
    Gone,
    /// Another appliance has the lease. From now on [`super::shares::followed`] returns it.
    Moved,
    /// The versions of the client and the appliance are incompatible.
    Version,
    /// The appliance has no free capacity, or is draining.
    Busy,
    /// The appliance reported an internal error.
    Appliance,
}

/// An error with a message of one line for the user: the cause, the object at fault and the next step.
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

/// Shortens a peer's text to one line without control characters, because it is shown on the user's terminal.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect()
}

/// Returns the text of an error and of its causes.
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
