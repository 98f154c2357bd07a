//! A session: this process's connection to its worker on one appliance.
//!
//! The commands of all threads form one sequence, numbered under the lock of the outbox. A command that no thread waits
//! for is buffered. It is sent with the next command that a thread waits for, when the buffer is full, or within about
//! 100 us. A thread that waits reads the connection itself ([`parts::wait`]). A background thread reads only while no
//! other thread waits.
//!
//! `state` defines the session's fields, and `parts` their types. Each other file implements one group of operations.
//! The order of the locks is in `crate::locks`.

mod across;
mod callbacks;
mod calls;
mod copies;
mod faults;
mod fences;
mod opening;
mod parts;
mod pending;
mod receive;
mod ring;
mod send;
mod sessions;
mod shared_memory;
mod start;
mod state;
mod stripes;

pub use opening::Opening;
pub use parts::arena::Arena;
pub use parts::device_box::DeviceBox;
pub use parts::host_box::{HostBox, load, store};
pub use parts::host_calls::in_callback;
pub use parts::ranges::Ranges;
pub use parts::reached::Reason;
pub use parts::reconnect::{Reconnect, Retry};
pub use parts::sharing::file as shared_file;
pub use parts::streams::Known;
pub use parts::wait::{Reply, Slot, lock};
pub use pending::PeerSource;
pub use sessions::{is_any_waiting, is_unsettled, mint, owner_of, say_goodbye};
pub use state::{News, Progress, Session};
pub use stripes::wanted_stripes;
