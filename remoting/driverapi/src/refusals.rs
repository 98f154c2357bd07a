//! Refused uses of CUDA, and the refusals that are printed: those that make a call fail, each once in a process.

use crate::errors::{CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED};
use crate::report;
use crate::types::CUresult;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

/// Whether every program of a framework asks for this at its start and does without. Such a refusal is not printed.
/// torch asks for the driver's error log.
#[must_use]
pub fn is_asked_in_passing(function: &str) -> bool {
    function == "cuLogsRegisterCallback"
}

/// An argument that is a value of one of CUDA's enumerations.
struct Enumerated {
    /// Without `_v2` and the like.
    functions: &'static [&'static str],
    argument: usize,
    /// The values that are answered as CUDA answers them, with an error where CUDA documents one.
    answered: &'static [RangeInclusive<u64>],
}

/// `tests/codegen/test_refusals.py` compares this with the enumerations of the newest `cuda.h`.
const ENUMERATED: &[Enumerated] = &[
    Enumerated { functions: &["cuDeviceGetAttribute"], argument: 1, answered: &[1..=161] },
    Enumerated { functions: &["cuDeviceGetP2PAttribute"], argument: 1, answered: &[1..=5] },
    Enumerated { functions: &["cuDeviceGetExecAffinitySupport"], argument: 1, answered: &[0..=0] },
    Enumerated { functions: &["cuFuncGetAttribute", "cuKernelGetAttribute"], argument: 1, answered: &[0..=15] },
    Enumerated { functions: &["cuFuncSetAttribute", "cuKernelSetAttribute"], argument: 1, answered: &[0..=15] },
    Enumerated { functions: &["cuPointerGetAttribute"], argument: 1, answered: &[1..=4, 6..=21] },
    // Only CU_POINTER_ATTRIBUTE_SYNC_MEMOPS can be set.
    Enumerated { functions: &["cuPointerSetAttribute"], argument: 1, answered: &[1..=21] },
    // Streams have an access policy window, a policy of synchronisation, a priority and memory domains.
    Enumerated { functions: &["cuStreamGetAttribute", "cuStreamSetAttribute"], argument: 1, answered: &[0..=14] },
    Enumerated {
        functions: &["cuGraphKernelNodeGetAttribute", "cuGraphKernelNodeSetAttribute"],
        argument: 1,
        answered: &[0..=12, 14..=14],
    },
    Enumerated { functions: &["cuMemPoolGetAttribute", "cuMemPoolSetAttribute"], argument: 1, answered: &[1..=14] },
    Enumerated { functions: &["cuCtxGetLimit"], argument: 1, answered: &[0..=2, 5..=9] },
    Enumerated { functions: &["cuCtxSetLimit"], argument: 0, answered: &[0..=2, 5..=9] },
    Enumerated { functions: &["cuMemRangeGetAttribute"], argument: 2, answered: &[1..=8] },
    Enumerated { functions: &["cuMemAdvise"], argument: 2, answered: &[1..=6] },
];

/// The value for which a call failed, if it is of an enumeration and not answered.
#[must_use]
fn refused_value(function: &str, arguments: &[u64]) -> Option<u32> {
    let base = without_suffixes(function);
    let row = ENUMERATED.iter().find(|row| row.functions.contains(&base))?;
    // Enumerations are four bytes wide; the rest of an argument's word has no meaning.
    let value = arguments.get(row.argument)? & 0xffff_ffff;
    if row.answered.iter().any(|range| range.contains(&value)) { None } else { u32::try_from(value).ok() }
}

/// Counts an attribute or option if it is the reason why a call failed, and has `say` print its line.
pub fn failed(function: &str, code: CUresult, arguments: &[u64], say: impl FnOnce(&str)) {
    // Programs ask again and again until it is something else.
    if code == CUDA_ERROR_NOT_READY {
        return;
    }
    let Some(value) = refused_value(function, arguments) else { return };
    report::refused_value(function, value, code);
    // The caller has reported a function that is not supported.
    if code == CUDA_ERROR_NOT_SUPPORTED {
        return;
    }
    if let Some(line) = said_of_value(function, value, code) {
        say(&line);
    }
}

/// An argument as the register that it came in; 0 for a structure.
pub fn word<T: Copy>(argument: &T) -> u64 {
    let mut word = 0;
    if size_of::<T>() <= size_of::<u64>() {
        // SAFETY: a number or a pointer, all of whose bytes are initialised, and which is at most as long as a word.
        unsafe { std::ptr::copy_nonoverlapping(argument, (&raw mut word).cast(), 1) };
    }
    word
}

fn without_suffixes(symbol: &str) -> &str {
    let base = symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    base.strip_suffix(|c: char| c.is_ascii_digit()).and_then(|rest| rest.strip_suffix("_v")).unwrap_or(base)
}

/// The line for a value that makes a call fail; once for each.
fn said_of_value(function: &str, value: u32, code: CUresult) -> Option<String> {
    first_time(&format!("{function} {value}")).then(|| {
        format!(
            "{function}: its attribute or option {value} is not provided; the program gets error {code}: use another \
             one, or a library that is built for an older CUDA"
        )
    })
}

/// The line for a slot of a private table that is called; once for each.
pub fn said_of_slot(table: u32, slot: usize) -> Option<String> {
    first_time(&format!("slot {table:08x} {slot}")).then(|| {
        let caller = crate::caller::module_outside().unwrap_or_else(|| "a library".into());
        format!(
            "slot {slot} of the private table {table:08x} is not provided; {caller}, which asks for it, gets \
             CUDA_ERROR_NOT_SUPPORTED: try another version of that library"
        )
    })
}

/// Whether this is the first question about `what`.
pub fn first_time(what: &str) -> bool {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    !told.contains(what) && told.insert(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_answered_are_not_refused_whatever_failed() {
        assert_eq!(refused_value("cuPointerGetAttribute", &[1, 2, 3]), None);
        assert_eq!(refused_value("cuPointerGetAttribute", &[1, 22, 3]), Some(22));
        assert_eq!(refused_value("cuPointerGetAttribute", &[]), None);
        assert_eq!(refused_value("cuCtxSetLimit", &[0xdead_beef_0000_0003, 0]), Some(3));
        assert_eq!(refused_value("cuStreamGetAttribute_ptsz", &[0, 16]), Some(16));
        assert_eq!(refused_value("cuMemAdvise_v2", &[0, 0, 99]), Some(99));
        assert_eq!(refused_value("cuMemAlloc_v2", &[0, 0, 99]), None);
    }

    #[test]
    fn a_line_is_said_once_for_each_value() {
        assert!(said_of_value("cuFuncGetAttribute", 17, 1).is_some());
        assert_eq!(said_of_value("cuFuncGetAttribute", 17, 1), None);
        assert!(said_of_value("cuFuncGetAttribute", 18, 1).is_some());
        assert!(said_of_slot(7, 1).is_some() && said_of_slot(7, 2).is_some() && said_of_slot(7, 1).is_none());
    }
}
