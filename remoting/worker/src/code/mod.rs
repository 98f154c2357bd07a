//! Device code: images, modules, what is launched of them, and graphs that are launched as one.
//!
//! `images` are those that the client sent, `shared_code` those that the appliance keeps for a tenant; `image_rules` reads
//! what an image says of its kernels. Called by `order::dispatch`.

pub(crate) mod graphs;
pub(crate) mod image_rules;
pub mod images;
pub(crate) mod launch_shape;
pub(crate) mod modules;
pub(crate) mod shared_code;
