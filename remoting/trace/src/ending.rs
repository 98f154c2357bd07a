//! The end of the process where it cannot go on.

/// The exit codes of `remotegpu` (cli/exits.py): the program differs from the recording, and it cannot start.
pub const DIVERGED: i32 = 65;
pub const SOFTWARE: i32 = 70;

/// Ends the process with one sentence: neither hangs nor runs what the program has registered for its end.
pub fn stop(code: i32, sentence: &str) -> ! {
    eprintln!("remotegpu: trace: {sentence}");
    // SAFETY: never returns.
    unsafe { libc::_exit(code) }
}
