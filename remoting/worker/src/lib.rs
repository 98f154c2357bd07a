//! The worker: executes the commands of one session on a libcuda that it loads by path. And the gateway, a program of its own
//! that hands data connections to workers.

mod arrays;
pub mod calls;
pub mod command;
pub mod completer;
mod completions;
mod contexts;
pub mod control;
mod copies;
mod current;
mod dispatch;
pub mod driver;
pub mod frames;
mod gates;
pub mod gateway;
#[rustfmt::skip]
pub mod generated;
mod graphs;
pub mod helpers;
mod image_rules;
pub mod images;
mod late_copies;
mod launch_events;
mod launch_shape;
mod layout;
mod memory;
mod modules;
pub mod objects;
mod peers;
mod requests;
pub mod rules;
pub mod sandbox;
pub mod sched;
pub mod server;
pub mod session;
mod settings;
mod shared_events;
mod sharing;
mod slabs;
pub mod snapshot;
mod staging;
mod streams;
mod taken;
mod tensor_maps;
pub mod text;
pub mod watchdog;
mod writer;
