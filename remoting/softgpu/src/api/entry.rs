//! The form of an exported function: no panic and no error leaves it but as a code.

/// Defines exported functions whose bodies return `R`. Two names may share a body: CUDA exports every ABI it ever
/// had, and some never changed.
macro_rules! entry_points {
    () => {};
    ($(#[$meta:meta])* fn $name:ident | $alias:ident $arguments:tt $body:block $($rest:tt)*) => {
        $crate::api::entry::entry_point! { $(#[$meta])* $name $arguments $body }
        $crate::api::entry::entry_point! { $(#[$meta])* $alias $arguments $body }
        $crate::api::entry::entry_points! { $($rest)* }
    };
    ($(#[$meta:meta])* fn $name:ident $arguments:tt $body:block $($rest:tt)*) => {
        $crate::api::entry::entry_point! { $(#[$meta])* $name $arguments $body }
        $crate::api::entry::entry_points! { $($rest)* }
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
        $crate::api::entry::stream_entry_point! { $(#[$meta])* $default = Legacy, $name $arguments $body }
        $crate::api::entry::stream_entry_point! { $(#[$meta])* $default = PerThread, $twin $arguments $body }
        $crate::api::entry::stream_entry_points! { $default; $($rest)* }
    };
}

macro_rules! stream_entry_point {
    ($(#[$meta:meta])* $default:ident = $kind:ident, $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> ::driverapi::types::CUresult {
            let $default = $crate::api::default_stream::DefaultStream::$kind;
            let code = $crate::ffi::entry(stringify!($name), move || $body);
            if code != 0 {
                $crate::ffi::failed(stringify!($name), code, &[$(::driverapi::refusals::word(&$argument)),*]);
            }
            code
        }
    };
}

pub(super) use {entry_point, entry_points, stream_entry_point, stream_entry_points};
