//! Creates and destroys the driver's objects of a context. Both may block for long, so helper threads do it.

use crate::driver::staging::{Growth, LARGE, SMALL};
use crate::driver::{Driver, Handle, Result};
use protocol::ContextCreate;

/// The first page-locked buffers of a new context, so that its first copies need not wait for an allocation.
const FIRST: [Growth; 2] = [Growth { size: SMALL, count: 16 }, Growth { size: LARGE, count: 2 }];

/// The driver's objects that a context has from its creation.
pub struct Created {
    pub handle: Handle,
    pub internal: Handle,
    pub buffers: Vec<(usize, Vec<Handle>)>,
}

pub fn create(driver: &Driver, device: i32, flags: u32, primary: bool) -> Result<Created> {
    const NON_BLOCKING: u32 = 1;
    let device = driver.device(device)?;
    let handle = if primary { driver.primary_retain(device, flags)? } else { driver.context_create(flags, device)? };
    driver.set_current(handle)?;
    // The stream has the highest priority, because commands wait for memory that is zeroed in it.
    let internal = driver.stream_create(NON_BLOCKING, i32::MIN)?;
    let buffers = FIRST.iter().map(|g| Ok((g.size, allocate(driver, g)?))).collect::<Result<_>>()?;
    Ok(Created { handle, internal, buffers })
}

/// Returns the context `warm` if it fits the request. Otherwise destroys it and creates a new context.
pub fn create_or_take(driver: &Driver, warm: Option<Created>, c: &ContextCreate) -> Result<Created> {
    match warm {
        Some(warm) if c.primary && c.device == 0 && c.flags == 0 => return Ok(warm),
        Some(warm) => {
            destroy(driver, warm.handle, warm.internal, warm.buffers.into_iter().flat_map(|(_, all)| all), true, 0)?
        }
        None => {}
    }
    create(driver, c.device as i32, c.flags, c.primary)
}

pub fn allocate(driver: &Driver, growth: &Growth) -> Result<Vec<Handle>> {
    (0..growth.count).map(|_| driver.host_alloc(growth.size)).collect()
}

pub fn destroy(
    driver: &Driver,
    handle: Handle,
    internal: Handle,
    buffers: impl IntoIterator<Item = Handle>,
    primary: bool,
    device: i32,
) -> Result<()> {
    driver.set_current(handle)?;
    buffers.into_iter().try_for_each(|buffer| driver.host_free(buffer))?;
    driver.stream_destroy(internal)?;
    driver.set_current(Handle::NULL)?;
    if primary { driver.primary_release(driver.device(device)?) } else { driver.context_destroy(handle) }
}
