//! Connections to appliances: their control service, and the data connections of sessions.
//!
//! One attempt of an operation takes at most [`limits::TIMEOUT`]. In a pod it may take [`limits::POLICY_DELAY`] longer,
//! because the network may refuse the first connections. Some operations take longer:
//! - A call of the control service is retried while the appliance restarts, and after the lease has moved.
//! - The first call of a pod's program waits for the appliance (see [`first`]).
//! - [`open_session`] waits without limit while the share is suspended.
//! - [`open_lease`] returns at once. Its request may wait without limit, while the appliance reports the reasons.
//!
//! Each error has a message of one line with the cause, the endpoint and the next step. Calls of the control service
//! run on a new thread of this library that handles no signals, so the calling thread may run an async runtime.

pub mod address;
mod answers;
mod control;
mod data;
mod dial;
mod error;
mod first;
mod handed;
mod lease;
mod limits;
mod local;
mod offload;
mod pod;
mod share;
mod shares;
mod thread;
mod tls;

pub use crate::program::descriptors::open_fds;
pub use answers::{DeviceInfo, DeviceState, Environment, Hello, Process, SessionTicket};
pub use control::{device_state, open_session};
pub use data::{Carrier, open_data, open_data_over, open_memory, open_stripe, reopen_data};
pub use error::{ConnectError, ErrorKind};
pub use first::{Patience, hello, offload_hello};
pub use handed::Asking;
pub use lease::{Access, Event, Lease, LeaseWish, Site, SiteGpu, open_lease, site};
pub use offload::{Wish, close_offload_session, open_offload_session};
pub use share::{Ca, Claim, Share};
pub use shares::shares;
pub use thread::no_thread;
