//! The parts of a session: its queues and buffers, and records of the worker's reports.
//!
//! The other files of `session` call these parts. No part uses the type `Session`. If a part needs a service of the
//! session, its caller passes that service (`receiver::Incoming`, `jobs::Jobs`).

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
pub mod reached;
pub mod receiver;
pub mod reconnect;
pub mod sharing;
pub mod streams;
pub mod stripe;
pub mod wait;
pub mod wake;
