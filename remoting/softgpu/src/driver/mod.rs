//! The driver as a whole: the tables of all that has a handle, and what calls do with several of these at a time.
//!
//! `life` is the one driver of the process and the current context of each thread, `state` its tables. The other files
//! are operations: on `contexts`, on memory (`arrays`, `peers`, `pooled`, `shared_memory`, `virtual_memory`), on code
//! (`loading`, `launching`) and on streams (`copying`, `performing`, `conditions`). Called by `api` and `nvml`, which
//! hold nothing themselves; the modules below it do not know it.

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
