//! The results of a kernel: the text that it prints, and the fault that stopped it.

/// The reason why a kernel was stopped: a `CUresult` that the context keeps, and an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub code: u32,
    pub message: String,
}

/// The destination of device `printf` and of failed assertions.
pub trait Output: Sync {
    fn write(&self, text: &[u8]);
    /// Writes the text of a failed assertion to the standard error stream.
    fn error(&self, text: &[u8]) {
        self.write(text);
    }
}
