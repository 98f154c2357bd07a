
pub mod door;
