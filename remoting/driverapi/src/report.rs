//! Writes a program's unsupported requests to the file that `REMOTEGPU_REPORT` names. Each request is written at once,
//! so that `remotegpu run --report` also counts processes that are killed. Without the variable nothing is written.

use crate::caller;
use crate::errors::CUDA_ERROR_NOT_SUPPORTED;
use crate::nvml::NVML_ERROR_NOT_SUPPORTED;
use crate::proc_address::PROC_TABLE;
use crate::types::{CUresult, CUuuid};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reports that the process uses CUDA.
pub fn started() {
    tell("started", "", "", "", None);
}

/// Reports a function, or a use of one, that returned `CUDA_ERROR_NOT_SUPPORTED`.
pub fn refused(name: &str) {
    tell("refused", name, &CUDA_ERROR_NOT_SUPPORTED.to_string(), reason(name), None);
}

/// Reports an attribute or option for which a function failed.
pub fn refused_value(function: &str, value: u32, code: CUresult) {
    tell("refused value", &format!("{function} of {value}"), &code.to_string(), "", None);
}

/// Reports a call of a private table's slot that is not provided.
pub fn refused_slot(table: u32, slot: usize) {
    let name = format!("{table:08x} slot {slot}");
    tell("refused slot", &name, &CUDA_ERROR_NOT_SUPPORTED.to_string(), "", Some(caller::module_outside));
}

/// Reports a call that failed because the program's mirrored memory would exceed the limit of this setting.
pub fn beyond(setting: &str, code: CUresult) {
    tell("beyond", setting, &code.to_string(), "", None);
}

/// Reports a function of NVML that returned `NVML_ERROR_NOT_SUPPORTED`.
pub fn refused_nvml(name: &str) {
    tell("refused by NVML", name, &NVML_ERROR_NOT_SUPPORTED.to_string(), "", None);
}

/// Reports a name that `cuGetProcAddress` did not find, for a program built for `version`. An exported symbol is not
/// reported: programs that request it in place of its base name also find it by `dlsym`.
pub fn unknown_function(name: &str, version: u32) {
    if !is_exported(name) {
        tell("unknown function", name, &version.to_string(), "", Some(caller::module_outside));
    }
}

fn is_exported(name: &str) -> bool {
    PROC_TABLE.iter().any(|entry| entry.symbol == name || entry.per_thread == Some(name))
}

/// Reports a private table that `cuGetExportTable` did not find.
pub fn unknown_table(uuid: &CUuuid) {
    let hex: String = uuid.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let reason = if is_of_the_profiler(uuid) { "the profiler is not provided" } else { "" };
    tell("unknown table", &hex, "", reason, Some(caller::module_outside));
}

/// The table that CUPTI requests for recording. Without it CUPTI's functions return 999. Measured: CUPTI of CUDA 13.0
/// (torch 2.11), and of 13.2 (torch 2.15).
const OF_THE_PROFILER: [u8; 16] = *b"\x2c\x8e\x0a\xd8\x07\x10\xab\x4e\x90\xdd\x54\x71\x9f\xe5\xf7\x4b";

fn is_of_the_profiler(uuid: &CUuuid) -> bool {
    uuid.bytes == OF_THE_PROFILER
}

/// Returns the message to print for a table that is not found, or `None`. It is returned once for each process, and
/// only for the profiler's table.
pub fn said_of_table(uuid: &CUuuid) -> Option<&'static str> {
    static SAID: AtomicBool = AtomicBool::new(false);
    let first = is_of_the_profiler(uuid) && !SAID.swap(true, Ordering::Relaxed);
    first.then_some(
        "kernels are not recorded: CUPTI, NVIDIA's profiling library, needs a private interface of the driver that is not \
         provided; the profile shows what the CPU does (torch.profiler: leave ProfilerActivity.CUDA out), and the program \
         is not affected",
    )
}

/// Returns the reason for which the function table refuses a function, or "" if the function is not refused.
fn reason(symbol: &str) -> &'static str {
    let base = symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    PROC_TABLE.iter().find(|entry| entry.symbol == base).and_then(|entry| entry.refused).unwrap_or("")
}

/// Appends a line to the report in one write, so that lines of several threads and processes do not mix.
fn tell(event: &str, name: &str, detail: &str, reason: &str, module: Option<fn() -> Option<String>>) {
    static PATH: OnceLock<Option<OsString>> = OnceLock::new();
    let Some(path) = PATH.get_or_init(|| std::env::var_os("REMOTEGPU_REPORT")) else { return };
    let module = module.and_then(|module| module()).unwrap_or_default();
    // An error of the report must not affect the program.
    if let Ok(mut file) = OpenOptions::new().append(true).open(path) {
        let _ = file.write_all(line(std::process::id(), event, name, detail, reason, &module).as_bytes());
    }
}

/// Formats a line with tabs between its fields. Names come from the program and may contain any byte, so they are
/// escaped.
fn line(process: u32, event: &str, name: &str, detail: &str, reason: &str, module: &str) -> String {
    format!("{process}\t{event}\t{}\t{detail}\t{reason}\t{}\n", name.escape_default(), module.escape_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_those_of_the_function_table() {
        assert_eq!(reason("cuGraphAddBatchMemOpNode"), "stream memory operations are not provided in graphs");
        assert_eq!(reason("cuStreamBeginCaptureToCig_ptsz"), "CUDA in graphics is not provided");
        assert_eq!(reason("cuMemAlloc_v2"), "");
        assert_eq!(reason("cuEventCreate with CU_EVENT_INTERPROCESS"), "");
    }

    #[test]
    fn the_profiler_is_spoken_of_once() {
        assert_eq!(said_of_table(&CUuuid { bytes: [1; 16] }), None);
        assert!(said_of_table(&CUuuid { bytes: OF_THE_PROFILER }).is_some());
        assert_eq!(said_of_table(&CUuuid { bytes: OF_THE_PROFILER }), None);
    }

    #[test]
    fn exported_symbols_are_not_missing() {
        assert!(is_exported("cuGraphInstantiateWithParams_ptsz") && is_exported("cuMemAlloc_v2"));
        assert!(!is_exported("cuTravelInTime") && !is_exported("cuTravelInTime_ptsz") && !is_exported(""));
    }

    #[test]
    fn a_line_stays_one_line_of_six_fields() {
        let text = line(7, "unknown function", "a\tb\nc", "12000", "", "lib\tx.so");
        assert_eq!(text, "7\tunknown function\ta\\tb\\nc\t12000\t\tlib\\tx.so\n");
    }
}
