//! Copies between client and device, and on the device.
//!
//! `layout` computes where the bytes of a box are in memory (pure). `driver::staging` is the page-locked memory that
//! copies pass through. `stripes` are additional connections for large copies, and `striping` uses them. `memory`
//! decides which memory a copy may access. `order::dispatch` calls this folder.

pub mod arrays;
pub mod copies;
pub mod late_copies;
pub mod layout;
pub mod shared_copies;
pub mod stripes;
pub mod striping;
pub mod tensor_maps;
