//! The end of the process: ends its sessions, then writes the last statistics.

use crate::program::{process, report};
use crate::session;

/// Runs when the process ends or the library is unloaded, after the program's exit handlers.
extern "C" fn finish() {
    if process::end() {
        let _ = std::panic::catch_unwind(|| {
            session::say_goodbye();
            report::write_last();
        });
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;
