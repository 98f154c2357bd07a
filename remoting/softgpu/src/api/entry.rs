//! The macros that define exported functions. An exported function returns an error code, and no panic leaves it.

/// Defines exported functions whose bodies return `R`. Two names may share a body, because CUDA exports all older
/// versions of a function and some versions have the same arguments.
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

/// Defines functions that exist in two forms. In the second form a null stream means the calling thread's own default
/// stream. A body reads the form from `$default`.
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
