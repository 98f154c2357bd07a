pub mod config;
pub mod context;
pub mod device;
pub mod driver;
pub mod handles;
pub mod model;
pub mod signals;
