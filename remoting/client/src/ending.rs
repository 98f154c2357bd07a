//! The end of the process: its sessions end, then its last statistics are written.

use crate::program::{process, report};
use crate::session;

/// Runs when the process ends or the library is unloaded, after the handlers of the program.
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
