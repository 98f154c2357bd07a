//! Reserves address ranges, and maps and releases memory of the GPU, through the driver.

use crate::driver::{Driver, Result};
use driverapi::errors::*;
use protocol::SlabMove;

/// Address hints for the driver: the upper 16 bits of ranges that few programs use.
pub const HINTS: [u64; 7] = [0x7000, 0x6000, 0x5000, 0x4000, 0x3000, 0x2000, 0x1000];
const SIZES: [u64; 4] = [1 << 40, 1 << 38, 1 << 36, 1 << 34];

/// Reserves the largest range that leaves the driver enough addresses for its own use.
pub fn reserve(driver: &Driver, attempt: usize, granularity: u64) -> Result<(u64, u64)> {
    let mut last = CUDA_ERROR_OUT_OF_MEMORY;
    for size in SIZES {
        for i in 0..HINTS.len() {
            let hint = HINTS[(attempt + i) % HINTS.len()] << 32;
            match driver.address_reserve(size, granularity, hint) {
                Ok(base) if leaves_room(driver, size, granularity) => return Ok((base, size)),
                Ok(base) => driver.address_free(base, size)?,
                Err(code) => last = code,
            }
        }
    }
    Err(last)
}

/// Reserves exactly this range.
///
/// # Errors
/// Fails if the driver uses a part of the range.
pub fn reserve_at(driver: &Driver, base: u64, size: u64, granularity: u64) -> Result<()> {
    let reserved = driver.address_reserve(size, granularity, base)?;
    if reserved == base {
        return Ok(());
    }
    driver.address_free(reserved, size)?;
    Err(CUDA_ERROR_OUT_OF_MEMORY)
}

fn leaves_room(driver: &Driver, size: u64, granularity: u64) -> bool {
    driver.address_reserve(size / 4, granularity, 0).and_then(|base| driver.address_free(base, size / 4)).is_ok()
}

/// Allocates memory of the device, maps it and makes it accessible. After an error, nothing stays allocated or mapped.
pub fn map(driver: &Driver, address: u64, size: u64, device: i32) -> Result<u64> {
    place(driver, driver.memory_create(size, device)?, address, size, device)
}

/// Maps memory and makes it accessible. After an error, the memory is released.
pub fn place(driver: &Driver, memory: u64, address: u64, size: u64, device: i32) -> Result<u64> {
    if let Err(code) = driver.memory_map(address, size, memory) {
        let _ = driver.memory_release(memory);
        return Err(code);
    }
    if let Err(code) = driver.memory_allow(address, size, device) {
        let _ = unmap(driver, address, size, memory);
        return Err(code);
    }
    Ok(memory)
}

/// Moves a mapping to another address. After an error, the mapping is still at its old address.
pub fn show_elsewhere(driver: &Driver, memory: u64, c: &SlabMove, device: i32) -> Result<()> {
    driver.memory_map(c.to, c.size, memory)?;
    if let Err(code) = driver.memory_allow(c.to, c.size, device) {
        let _ = driver.memory_unmap(c.to, c.size);
        return Err(code);
    }
    driver.memory_unmap(c.from, c.size)
}

pub fn unmap(driver: &Driver, address: u64, size: u64, memory: u64) -> Result<()> {
    let unmapped = driver.memory_unmap(address, size);
    driver.memory_release(memory).and(unmapped)
}
