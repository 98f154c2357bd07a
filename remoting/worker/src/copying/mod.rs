//! Copies: between client and device, and on the device.
//!
//! `layout` computes where the bytes of a box lie (pure), `driver::staging` is the page-locked memory that they pass
//! through, `stripes` are additional connections for large copies, `striping` uses them. Called by `order::dispatch`.
//! `memory` decides which memory may be accessed.

pub mod arrays;
pub mod copies;
pub mod late_copies;
pub mod layout;
pub mod shared_copies;
pub mod stripes;
pub mod striping;
pub mod tensor_maps;
