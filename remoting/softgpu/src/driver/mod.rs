//! The driver: the tables of all objects that have a handle, and the operations that use several tables.
//!
//! `life` has the process's driver and the current context of each thread, and `state` has the tables. The other files
//! are operations on contexts (`contexts`), memory (`arrays`, `peers`, `pooled`, `shared_memory`, `virtual_memory`),
//! code (`loading`, `launching`) and streams (`copying`, `performing`, `conditions`). `api` and `nvml` call this module
//! and have no state of their own. The modules below do not use this module.

mod arrays;
mod conditions;
mod contexts;
mod copying;
mod launching;
mod life;
mod loading;
mod peers;
mod performing;
mod pooled;
mod shared_memory;
mod state;
mod virtual_memory;

pub use copying::Mode;
pub use life::{config, current, current_even_if_faulted, current_id, driver, init, pop, push};
pub use performing::How;
pub use state::Driver;
