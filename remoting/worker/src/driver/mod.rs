//! The driver: a libcuda that is loaded by path, with typed calls and no policy.
//!
//! Handles are numbers, so that threads can exchange them. Every handle that the rest of the crate holds came from this
//! driver, and is removed from the tables of `objects` before the handle is destroyed. That makes the calls of this
//! folder sound.

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
