//! What may be refused without a word.

/// Does every program of a framework ask for this at its start and do without? Such a refusal is worth no line.
/// torch wishes to hear the driver's error log.
#[must_use]
pub fn is_asked_in_passing(function: &str) -> bool {
    function == "cuLogsRegisterCallback"
}
