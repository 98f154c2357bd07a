//! Finds refused attributes and options of CUDA, and decides which refusals are printed. A refusal is printed if it
//! makes a call fail, once for each process.

use crate::errors::{CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED};
use crate::report;
use crate::types::CUresult;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

/// Whether frameworks call this function at every start and work without it. Such a refusal is not printed. torch
/// requests the driver's error log.
#[must_use]
pub fn is_asked_in_passing(function: &str) -> bool {
    function == "cuLogsRegisterCallback"
}

/// An argument that is a value of a CUDA enumeration.
struct Enumerated {
    /// The functions' names without suffixes such as `_v2`.
    functions: &'static [&'static str],
    argument: usize,
    /// The values that are handled as in CUDA, including the errors that CUDA documents.
    answered: &'static [RangeInclusive<u64>],
}

/// The enumeration arguments. `tests/codegen/test_refusals.py` compares the list with the enumerations of the newest
/// `cuda.h`.
const ENUMERATED: &[Enumerated] = &[
    Enumerated { functions: &["cuDeviceGetAttribute"], argument: 1, answered: &[1..=161] },
    Enumerated { functions: &["cuDeviceGetP2PAttribute"], argument: 1, answered: &[1..=5] },
    Enumerated { functions: &["cuDeviceGetExecAffinitySupport"], argument: 1, answered: &[0..=0] },
    Enumerated { functions: &["cuFuncGetAttribute", "cuKernelGetAttribute"], argument: 1, answered: &[0..=15] },
    Enumerated { functions: &["cuFuncSetAttribute", "cuKernelSetAttribute"], argument: 1, answered: &[0..=15] },
    Enumerated { functions: &["cuPointerGetAttribute"], argument: 1, answered: &[1..=4, 6..=21] },
    // Only CU_POINTER_ATTRIBUTE_SYNC_MEMOPS can be set.
    Enumerated { functions: &["cuPointerSetAttribute"], argument: 1, answered: &[1..=21] },
    // Streams support an access policy window, a synchronisation policy, a priority and memory domains.
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

/// Returns the enumeration value for which a call failed, or `None` if its function handles the value.
#[must_use]
fn refused_value(function: &str, arguments: &[u64]) -> Option<u32> {
    let base = without_suffixes(function);
    let row = ENUMERATED.iter().find(|row| row.functions.contains(&base))?;
    // Enumerations have four bytes; the upper half of an argument's word is undefined.
    let value = arguments.get(row.argument)? & 0xffff_ffff;
    if row.answered.iter().any(|range| range.contains(&value)) { None } else { u32::try_from(value).ok() }
}

/// Reports an attribute or option if it is the reason why a call failed, and passes the line to print to `say`.
pub fn failed(function: &str, code: CUresult, arguments: &[u64], say: impl FnOnce(&str)) {
    // Programs repeat a query while its result is this code.
    if code == CUDA_ERROR_NOT_READY {
        return;
    }
    let Some(value) = refused_value(function, arguments) else { return };
    report::refused_value(function, value, code);
    // The caller has already reported a function that is not supported.
    if code == CUDA_ERROR_NOT_SUPPORTED {
        return;
    }
    if let Some(line) = said_of_value(function, value, code) {
        say(&line);
    }
}

/// Returns an argument as the register word that contains it, or 0 for a structure.
pub fn word<T: Copy>(argument: &T) -> u64 {
    let mut word = 0;
    if size_of::<T>() <= size_of::<u64>() {
        // SAFETY: the argument is a number or a pointer with all bytes initialised, and at most as long as a word.
        unsafe { std::ptr::copy_nonoverlapping(argument, (&raw mut word).cast(), 1) };
    }
    word
}

fn without_suffixes(symbol: &str) -> &str {
    let base = symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    base.strip_suffix(|c: char| c.is_ascii_digit()).and_then(|rest| rest.strip_suffix("_v")).unwrap_or(base)
}

/// Returns the line to print for a value that makes a call fail, or `None` if it was returned before.
fn said_of_value(function: &str, value: u32, code: CUresult) -> Option<String> {
    first_time(&format!("{function} {value}")).then(|| {
        format!(
            "{function}: its attribute or option {value} is not provided; the program gets error {code}: use another \
             one, or a library that is built for an older CUDA"
        )
    })
}

/// Returns the line to print for a call of a missing slot of a private table, or `None` if it was returned before.
pub fn said_of_slot(table: u32, slot: usize) -> Option<String> {
    first_time(&format!("slot {table:08x} {slot}")).then(|| {
        let caller = crate::caller::module_outside().unwrap_or_else(|| "a library".into());
        format!(
            "slot {slot} of the private table {table:08x} is not provided; {caller}, which asks for it, gets \
             CUDA_ERROR_NOT_SUPPORTED: try another version of that library"
        )
    })
}

/// Whether this is the first call with `what` in this process.
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
