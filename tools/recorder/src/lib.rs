//! A libcuda.so.1 that records a program's calls and the answers of the real driver (`record`), or replays recorded
//! answers without a driver (`replay`). `docs/trace-format.md` describes the file format.
//!
//! `stub` exports the functions, and a generated table describes their arguments. `below` finds the real driver.
//! `remotegpu trace` makes the program load this library in place of the driver. This crate depends only on the table,
//! never on the client, the worker or the software GPU.

#![allow(non_snake_case)]

mod arguments;
mod arrivals;
mod below;
mod callbacks;
mod copies;
mod functions_generated;
mod memory;
mod mode;
mod names;
mod output;
mod record;
pub mod recording;
mod registers;
mod replay;
mod signature;
mod stub;
mod threads;
pub mod value;
