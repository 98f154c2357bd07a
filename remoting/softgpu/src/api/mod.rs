//! The entry points of `libcuda.so.1`, in files by subject. Their names, arguments and meaning are CUDA's.
//!
//! There is one file for each group of the CUDA driver API's functions, so there are more than twenty. `refused` has
//! the functions that exist and are refused. Called by programs, or by a worker that loaded this library. The files
//! read arguments and store results; `process`, `memory`, `kernels` and `streams` do the work. What PTX means is
//! `engine`'s.

#![allow(non_snake_case)]

mod arrays;
mod capturing;
mod contexts;
mod copying;
mod devices;
mod fills;
mod graph_execs;
mod graph_nodes;
mod graphs;
mod host_memory;
mod ipc;
mod kernels;
mod launching;
mod libraries;
mod linking;
mod lookup;
mod managed;
mod memory;
mod memory_operations;
mod modules;
mod old_launches;
mod pointers;
mod pools;
pub mod refused;
mod stream_attributes;
mod streams;
mod tensor_maps;
mod virtual_memory;

use crate::ffi::R;
use crate::process::driver::{self, driver};
use crate::streams::stream::Stream;
use driverapi::constants::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
use driverapi::errors::*;
use driverapi::types::CUstream;
use std::ffi::c_void;
use std::ptr;

/// Defines exported functions whose bodies return `R`. Two names may share a body: CUDA exports every ABI it ever
/// had, and some never changed.
macro_rules! entry_points {
    () => {};
    ($(#[$meta:meta])* fn $name:ident | $alias:ident $arguments:tt $body:block $($rest:tt)*) => {
        $crate::api::entry_point! { $(#[$meta])* $name $arguments $body }
        $crate::api::entry_point! { $(#[$meta])* $alias $arguments $body }
        $crate::api::entry_points! { $($rest)* }
    };
    ($(#[$meta:meta])* fn $name:ident $arguments:tt $body:block $($rest:tt)*) => {
        $crate::api::entry_point! { $(#[$meta])* $name $arguments $body }
        $crate::api::entry_points! { $($rest)* }
    };
}

macro_rules! entry_point {
    ($(#[$meta:meta])* $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> ::driverapi::types::CUresult {
            let code = $crate::ffi::entry(stringify!($name), move || $body);
            if code != 0 {
                $crate::ffi::failed(stringify!($name), code, &[$(::driverapi::refusals::word(&$argument)),*]);
            }
            code
        }
    };
}

/// Like `entry_points`, for functions that exist twice: the second name takes a null stream for the calling thread's
/// default stream. The bodies see which as `$default`.
macro_rules! stream_entry_points {
    ($default:ident;) => {};
    ($default:ident; $(#[$meta:meta])* fn $name:ident / $twin:ident $arguments:tt $body:block $($rest:tt)*) => {
        $crate::api::stream_entry_point! { $(#[$meta])* $default = Legacy, $name $arguments $body }
        $crate::api::stream_entry_point! { $(#[$meta])* $default = PerThread, $twin $arguments $body }
        $crate::api::stream_entry_points! { $default; $($rest)* }
    };
}

macro_rules! stream_entry_point {
    ($(#[$meta:meta])* $default:ident = $kind:ident, $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> ::driverapi::types::CUresult {
            let $default = $crate::api::DefaultStream::$kind;
            let code = $crate::ffi::entry(stringify!($name), move || $body);
            if code != 0 {
                $crate::ffi::failed(stringify!($name), code, &[$(::driverapi::refusals::word(&$argument)),*]);
            }
            code
        }
    };
}

pub(crate) use {entry_point, entry_points, stream_entry_point, stream_entry_points};

/// The meaning of a null stream.
#[derive(Clone, Copy)]
enum DefaultStream {
    Legacy,
    PerThread,
}

impl DefaultStream {
    /// The stream a handle names, for work in its context.
    fn resolve(self, handle: CUstream) -> R<Stream> {
        let stream = self.resolve_even_if_faulted(handle)?;
        stream.context.check()?;
        Ok(stream)
    }

    /// The stream a handle names, even in a context that has faulted. A default stream is the current context's; any
    /// other one says itself where it is, and the calling thread needs no context.
    fn resolve_even_if_faulted(self, handle: CUstream) -> R<Stream> {
        let current = driver::current_even_if_faulted;
        match (handle, self) {
            (CU_STREAM_LEGACY, _) => Ok(Stream::legacy(current()?)),
            (CU_STREAM_PER_THREAD, _) => Ok(Stream::per_thread(current()?)),
            (handle, DefaultStream::Legacy) if handle.is_null() => Ok(Stream::legacy(current()?)),
            (handle, DefaultStream::PerThread) if handle.is_null() => Ok(Stream::per_thread(current()?)),
            (handle, _) => Ok((*driver()?.streams.get(id(handle)).ok_or(CUDA_ERROR_INVALID_HANDLE)?).clone()),
        }
    }

    fn stream(self) -> R<Stream> {
        self.resolve(ptr::null_mut())
    }
}

/// The number a handle stands for.
fn id(handle: *mut c_void) -> usize {
    handle.addr()
}

fn handle(id: usize) -> *mut c_void {
    ptr::without_provenance_mut(id)
}

/// Reserved words that have to be 0.
fn no_flags(flags: u64) -> R {
    if flags == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}
