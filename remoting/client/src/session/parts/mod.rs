//! The parts of a session: queues, buffers and records of what a worker has told or was sent.
//!
//! Called by the files of `session`. No part knows the session: a part that needs something of it gets that from its
//! caller (`receiver::Incoming`, `jobs::Jobs`).

pub mod arena;
pub mod device_box;
pub mod held;
pub mod host_box;
pub mod host_calls;
pub mod jobs;
pub mod landings;
pub mod outbox;
pub mod pieces;
pub mod queues;
pub mod ranges;
pub mod receiver;
pub mod reconnect;
pub mod sharing;
pub mod streams;
pub mod stripe;
pub mod wait;
pub mod wake;
