//! Tensor maps. The device's driver encodes them, because only the driver knows their format.

use crate::driver::{Driver, Result};
use crate::session::commands::Session;
use protocol::TensorMap;

impl Session {
    /// Encodes a tensor map with the driver in a context, and replies with it.
    pub fn tensor_map(
        &mut self,
        seq: u64,
        context: u64,
        make: impl FnOnce(&Driver) -> Result<TensorMap>,
    ) -> Result<()> {
        self.enter(context)?;
        let map = make(&self.driver)?;
        self.reply_with(seq, 0, &map, &[]);
        Ok(())
    }
}
