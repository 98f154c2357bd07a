//! The entry points of `libnvidia-ml.so.1`: the queries of management tools. NVML shows the machine's devices, whatever
//! CUDA_VISIBLE_DEVICES says, and only the calling process. Queries that a CPU cannot answer (temperature, power, fans)
//! are not supported, which tools show as N/A.

#![allow(non_snake_case)]

mod hardware;
mod info;
mod links;
mod refused;
mod system;

use crate::ffi::Out;
use driverapi::nvml::*;
use driverapi::report;
use hardware::Card;
use std::ffi::{c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The error is the `nvmlReturn_t` that the program sees.
type N<T = ()> = Result<T, nvmlReturn_t>;

/// The number of initialisations of NVML that no shutdown has undone.
static USERS: AtomicUsize = AtomicUsize::new(0);

macro_rules! nvml_entry_points {
    () => {};
    ($(#[$meta:meta])* fn $name:ident | $alias:ident $arguments:tt $body:block $($rest:tt)*) => {
        $crate::nvml::nvml_entry_point! { $(#[$meta])* $name $arguments $body }
        $crate::nvml::nvml_entry_point! { $(#[$meta])* $alias $arguments $body }
        $crate::nvml::nvml_entry_points! { $($rest)* }
    };
    ($(#[$meta:meta])* fn $name:ident $arguments:tt $body:block $($rest:tt)*) => {
        $crate::nvml::nvml_entry_point! { $(#[$meta])* $name $arguments $body }
        $crate::nvml::nvml_entry_points! { $($rest)* }
    };
}

macro_rules! nvml_entry_point {
    ($(#[$meta:meta])* $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> ::driverapi::nvml::nvmlReturn_t {
            $crate::nvml::edge(stringify!($name), move || $body)
        }
    };
}

use {nvml_entry_point, nvml_entry_points};

fn edge(name: &str, body: impl FnOnce() -> N) -> nvmlReturn_t {
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

fn initialised() -> N {
    if USERS.load(Ordering::Acquire) == 0 { Err(NVML_ERROR_UNINITIALIZED) } else { Ok(()) }
}

fn card(device: nvmlDevice_t) -> N<Card> {
    initialised()?;
    hardware::cards().into_iter().find(|card| card.handle() == device).ok_or(NVML_ERROR_INVALID_ARGUMENT)
}

fn put<T>(out: Out<T>, value: T) -> N {
    out.set(value).map_err(|_| NVML_ERROR_INVALID_ARGUMENT)
}

fn put_text(out: Out<c_char>, text: &str, size: c_uint) -> N {
    if text.len() >= size as usize {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    out.set_text(text, size as usize).map_err(|_| NVML_ERROR_INVALID_ARGUMENT)
}

/// Answers a query that exists for every device and that no CPU can answer.
fn no_answer(device: nvmlDevice_t) -> N {
    card(device)?;
    Err(NVML_ERROR_NOT_SUPPORTED)
}
