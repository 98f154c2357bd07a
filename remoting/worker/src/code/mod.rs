//! Device code: images, modules, launches of kernels, and executable graphs.
//!
//! `images` stores the images that the client sent, `shared_code` gets images that the appliance keeps for a tenant,
//! and `image_rules` reads the launch rules that an image states. `order::dispatch` calls this folder.

pub(crate) mod graphs;
pub(crate) mod image_rules;
pub mod images;
pub(crate) mod launch_shape;
pub(crate) mod modules;
pub(crate) mod shared_code;
