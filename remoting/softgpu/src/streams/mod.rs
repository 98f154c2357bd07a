pub mod conditions;
pub mod copy;
pub mod copying;
pub mod queue;
pub mod shared_event;
pub mod stream;
pub mod work;
