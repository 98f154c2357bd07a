//! A stream as the destination of commands.

use super::context::Live;
use std::sync::Arc;

/// A stream to which commands are sent, and its context.
#[derive(Clone)]
pub struct Target {
    pub live: Arc<Live>,
    pub stream_id: u64,
    pub flags: u32,
    pub priority: i32,
}
