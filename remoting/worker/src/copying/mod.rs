//! Copies: between client and device, and on the device.
//!
//! `layout` says where the bytes of a box lie (pure), `staging` is the page-locked memory that they pass through, `stripes`
//! are further connections for large ones. Called by `order::dispatch`. Which memory may be touched is `memory`'s.

pub mod arrays;
pub mod copies;
pub mod late_copies;
pub mod layout;
pub mod staging;
pub mod stripes;
pub mod tensor_maps;
