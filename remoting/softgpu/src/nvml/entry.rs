//! Macros that define the entry points of NVML, and helpers that look up devices and store results.

use super::hardware::{self, Card};
use crate::ffi::Out;
use driverapi::nvml::*;
use driverapi::report;
use std::ffi::{c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The result of a function behind an entry point. The error is the `nvmlReturn_t` that the program receives.
pub type N<T = ()> = Result<T, nvmlReturn_t>;

/// The number of initialisations of NVML minus the number of shutdowns.
pub static USERS: AtomicUsize = AtomicUsize::new(0);

macro_rules! nvml_entry_points {
    () => {};
    ($(#[$meta:meta])* fn $name:ident | $alias:ident $arguments:tt $body:block $($rest:tt)*) => {
        $crate::nvml::entry::nvml_entry_point! { $(#[$meta])* $name $arguments $body }
        $crate::nvml::entry::nvml_entry_point! { $(#[$meta])* $alias $arguments $body }
        $crate::nvml::entry::nvml_entry_points! { $($rest)* }
    };
    ($(#[$meta:meta])* fn $name:ident $arguments:tt $body:block $($rest:tt)*) => {
        $crate::nvml::entry::nvml_entry_point! { $(#[$meta])* $name $arguments $body }
        $crate::nvml::entry::nvml_entry_points! { $($rest)* }
    };
}

macro_rules! nvml_entry_point {
    ($(#[$meta:meta])* $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> ::driverapi::nvml::nvmlReturn_t {
            $crate::nvml::entry::edge(stringify!($name), move || $body)
        }
    };
}

pub(super) use {nvml_entry_point, nvml_entry_points};

pub fn edge(name: &str, body: impl FnOnce() -> N) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => NVML_SUCCESS,
        Ok(Err(code)) => {
            if code == NVML_ERROR_NOT_SUPPORTED {
                report::refused_nvml(name);
            }
            code
        }
        Err(_) => NVML_ERROR_UNKNOWN,
    }
}

pub fn initialised() -> N {
    if USERS.load(Ordering::Acquire) == 0 { Err(NVML_ERROR_UNINITIALIZED) } else { Ok(()) }
}

pub fn card(device: nvmlDevice_t) -> N<Card> {
    initialised()?;
    hardware::cards().into_iter().find(|card| card.handle() == device).ok_or(NVML_ERROR_INVALID_ARGUMENT)
}

pub fn put<T>(out: Out<T>, value: T) -> N {
    out.set(value).map_err(|_| NVML_ERROR_INVALID_ARGUMENT)
}

pub fn put_text(out: Out<c_char>, text: &str, size: c_uint) -> N {
    if text.len() >= size as usize {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    out.set_text(text, size as usize).map_err(|_| NVML_ERROR_INVALID_ARGUMENT)
}

/// Refuses a query that exists for every device but has no meaning for a CPU.
pub fn no_answer(device: nvmlDevice_t) -> N {
    card(device)?;
    Err(NVML_ERROR_NOT_SUPPORTED)
}
