//! The outcome of a kernel: text on the way, and a fault at its end.

/// Why a kernel was stopped: a sticky `CUresult` and an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub code: u32,
    pub message: String,
}

/// The destination of device `printf` and of failed assertions.
pub trait Output: Sync {
    fn write(&self, text: &[u8]);
    /// A failed assertion's text, which goes to the standard error stream.
    fn error(&self, text: &[u8]) {
        self.write(text);
    }
}
