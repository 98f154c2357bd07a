//! A libcuda.so.1 that writes down what a program asks the driver below and what it answers (`record`), or answers as
//! was written down (`replay`). The format: `docs/trace-format.md`.
//!
//! `stub` has the exported functions, and a generated table describes their arguments. `below` finds the driver.
//! `remotegpu trace` puts this library in front of it. It must not know client, worker or software GPU: only the table.

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
