//! Device code: images, modules, launches of their kernels, and graphs that are launched as one.
//!
//! `images` holds those that the client sent, `shared_code` those that the appliance keeps for a tenant; `image_rules`
//! reads the launch rules that an image states. Called by `order::dispatch`.

pub(crate) mod graphs;
pub(crate) mod image_rules;
pub mod images;
pub(crate) mod launch_shape;
pub(crate) mod modules;
pub(crate) mod shared_code;
