//! Tracks the context that is current on the sequencer's thread.

use crate::driver::{Driver, Handle, Result};
use std::cell::Cell;

/// The context that is current on the sequencer's thread.
#[derive(Default)]
pub struct CurrentContext(Cell<Handle>);

impl CurrentContext {
    pub fn set(&self, driver: &Driver, context: Handle) -> Result<()> {
        if self.0.get() != context {
            driver.set_current(context)?;
            self.0.set(context);
        }
        Ok(())
    }
}
