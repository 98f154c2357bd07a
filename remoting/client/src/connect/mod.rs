//! Connections to appliances: their control service, and the data connections of sessions.
//!
//! Every operation takes at most [`limits::TIMEOUT`], with these exceptions: [`limits::POLICY_DELAY`] more in a pod
//! whose network refuses connections; for a call of the control service, the time that an appliance takes to restart;
//! for the first call of a pod's program, the time in [`first`]. Every failure has a message of one line that names the
//! cause, the endpoint and the next step. Calls of the control service use short-lived connections, on a thread of this
//! library that handles no signals. So the calling thread may run an async runtime of its own.

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
