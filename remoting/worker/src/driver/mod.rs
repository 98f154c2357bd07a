//! A libcuda, loaded by path: typed calls, no policy.
//!
//! Handles are numbers here, so that they can cross threads. Every handle that the rest of the crate holds came from
//! this driver and leaves the tables of `objects` before it is destroyed; that makes the calls of this folder sound.

#[macro_use]
mod call;

pub(crate) mod events;
#[rustfmt::skip]
mod functions_generated;
mod graphs;
mod handle;
pub mod helpers;
mod library;
pub(crate) mod loaded;
mod modules;
pub(crate) mod pages;
pub(crate) mod staging;
mod table;
mod tensor_maps;

pub use functions_generated::Functions;
pub use handle::{Code, Handle, Result, is_unhealthy};
pub use library::Driver;
pub use modules::JitOptions;
pub use table::{Raw, Table};
