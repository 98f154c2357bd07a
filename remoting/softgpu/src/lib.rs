
pub mod engine;
