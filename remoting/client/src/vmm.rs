//! Virtual memory management: addresses that the program reserves and maps memory to by itself.
//!
//! An allocation is quota until it is mapped; the worker makes its memory where it is mapped. So an allocation has at
//! most one place: mapping it a second time, or in parts, is refused.

use crate::call::Code;
use crate::context::{Context, Live};
use crate::devices::{self, Device};
use crate::handles::{Kind, Table};
use crate::memory::Piece;
use crate::session::lock;
use driverapi::errors::*;
use driverapi::types::CUmemAllocationProp;
use protocol::{SlabMap, SlabUnmap};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

static ALLOCATIONS: Table<Allocation> = Table::new(Kind::Memory);

pub struct Allocation {
    pub handle: usize,
    pub live: Arc<Live>,
    pub size: u64,
    pub properties: Properties,
    state: Mutex<Place>,
}

/// What the program asked for; its pointer means nothing here.
#[derive(Clone, Copy)]
pub struct Properties(pub CUmemAllocationProp);

// SAFETY: the one pointer inside is never followed.
unsafe impl Send for Properties {}
// SAFETY: as above.
unsafe impl Sync for Properties {}

#[derive(Default)]
struct Place {
    /// How often the handle is held by the program.
    held: u32,
    was_mapped: bool,
}

struct Mapping {
    size: u64,
    allocation: Arc<Allocation>,
    accessible: bool,
}

struct Reservation {
    size: u64,
    live: Arc<Live>,
}

#[derive(Default)]
struct Space {
    reservations: BTreeMap<u64, Reservation>,
    mappings: BTreeMap<u64, Mapping>,
}

static SPACE: Mutex<Space> = Mutex::new(Space { reservations: BTreeMap::new(), mappings: BTreeMap::new() });

impl Drop for Allocation {
    /// The last holder is gone and nothing is mapped: the quota returns.
    fn drop(&mut self) {
        if Context::is_live(&self.live) {
            // A session that has failed has no quota to return.
            let _ = self.live.device.memory.put_back_quota(&self.live, self.size);
        }
    }
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`, `CUDA_ERROR_OUT_OF_MEMORY` if there are no such addresses.
pub fn reserve(live: &Arc<Live>, size: u64, align: u64, wanted: u64) -> Result<u64, Code> {
    let arena = live.session.arena();
    if size == 0 || size % arena.granularity() != 0 || (align != 0 && !align.is_power_of_two()) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let placed = |address: u64| address % align.max(arena.granularity()) == 0 && arena.take_at(address, size);
    let address = match wanted {
        0 => arena.take(size, align),
        address if placed(address) => Some(address),
        // The wish is only that.
        _ => arena.take(size, align),
    };
    let address = address.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    lock(&SPACE).reservations.insert(address, Reservation { size, live: Arc::clone(live) });
    Ok(address)
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for what is no reservation, or one with mappings.
pub fn free(address: u64, size: u64) -> Result<(), Code> {
    let mut space = lock(&SPACE);
    let known = space.reservations.get(&address).is_some_and(|reservation| reservation.size == size);
    if !known || space.mappings.range(address..address + size).next().is_some() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if let Some(reservation) = space.reservations.remove(&address) {
        reservation.live.session.arena().put_back(address, size);
    }
    Ok(())
}

/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` beyond the share.
pub fn create(device: &'static Device, size: u64, properties: CUmemAllocationProp) -> Result<Arc<Allocation>, Code> {
    let live = device.primary.live().or_else(|_| crate::context::current())?;
    if size == 0 || size % live.session.arena().granularity() != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if live.device.ordinal != device.ordinal {
        return Err(CUDA_ERROR_INVALID_DEVICE);
    }
    device.memory.take_quota(&live, size)?;
    let state = Mutex::new(Place { held: 1, ..Place::default() });
    let properties = Properties(properties);
    ALLOCATIONS
        .insert(|handle| Arc::new(Allocation { handle, live, size, properties, state }))
        .ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`.
pub fn get(handle: u64) -> Result<Arc<Allocation>, Code> {
    devices::all()?;
    ALLOCATIONS.get(handle as usize).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`.
pub fn release(handle: u64) -> Result<(), Code> {
    let allocation = get(handle)?;
    let mut place = lock(&allocation.state);
    place.held -= 1;
    if place.held == 0 {
        ALLOCATIONS.remove(allocation.handle);
    }
    Ok(())
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` outside a reservation or over a mapping, `CUDA_ERROR_NOT_SUPPORTED` for a second place.
pub fn map(address: u64, size: u64, offset: u64, handle: u64) -> Result<(), Code> {
    let allocation = get(handle)?;
    let end = address.checked_add(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let mut space = lock(&SPACE);
    let reserved = space.reservations.range(..=address).next_back();
    let inside = reserved.is_some_and(|(start, reservation)| end <= start + reservation.size);
    let before = space.mappings.range(..end).next_back();
    let taken = before.is_some_and(|(start, mapping)| start + mapping.size > address);
    if size == 0 || !inside || taken || offset.checked_add(size).is_none_or(|end| end > allocation.size) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut place = lock(&allocation.state);
    if place.was_mapped || size != allocation.size {
        return crate::call::refused("cuMemMap of an allocation in parts or for the second time");
    }
    let live = &allocation.live;
    live.session.post(0, &SlabMap { device: live.device.index, address, size })?;
    place.was_mapped = true;
    drop(place);
    space.mappings.insert(address, Mapping { size, allocation, accessible: false });
    Ok(())
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the range is not exactly some mappings, or the code of work that failed.
pub fn unmap(address: u64, size: u64) -> Result<(), Code> {
    let mut space = lock(&SPACE);
    let starts = covered(&space, address, size)?;
    let lives: Vec<_> = starts.iter().map(|start| Arc::clone(&space.mappings[start].allocation.live)).collect();
    for live in &lives {
        // Nothing may use the memory any more.
        if !live.is_idle() {
            live.synchronise()?;
        }
    }
    for start in starts {
        if let Some(mapping) = space.mappings.remove(&start) {
            let session = &mapping.allocation.live.session;
            session.post(0, &SlabUnmap { address: start, size: mapping.size })?;
        }
    }
    Ok(())
}

/// The mappings that a range consists of.
fn covered(space: &Space, address: u64, size: u64) -> Result<Vec<u64>, Code> {
    let end = address.checked_add(size).filter(|_| size > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let mut next = address;
    let mut starts = Vec::new();
    for (start, mapping) in space.mappings.range(address..end) {
        if *start != next {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        starts.push(*start);
        next += mapping.size;
    }
    if next == end { Ok(starts) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the range is not exactly some mappings.
pub fn set_access(address: u64, size: u64, ordinal: i32, accessible: bool) -> Result<(), Code> {
    let mut space = lock(&SPACE);
    for start in covered(&space, address, size)? {
        if let Some(mapping) = space.mappings.get_mut(&start) {
            if mapping.allocation.live.device.ordinal != ordinal {
                return Err(CUDA_ERROR_INVALID_DEVICE);
            }
            mapping.accessible = accessible;
        }
    }
    Ok(())
}

/// May this device use the memory at an address?
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` where nothing is mapped.
pub fn access(address: u64, ordinal: i32) -> Result<bool, Code> {
    let space = lock(&SPACE);
    let (_, mapping) = mapping_at(&space, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok(mapping.accessible && mapping.allocation.live.device.ordinal == ordinal)
}

/// The allocation that is mapped at an address, held once more.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` where nothing is mapped, or what is was released.
pub fn retain(address: u64) -> Result<usize, Code> {
    let space = lock(&SPACE);
    let (_, mapping) = mapping_at(&space, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let mut place = lock(&mapping.allocation.state);
    if place.held == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    place.held += 1;
    Ok(mapping.allocation.handle)
}

fn mapping_at(space: &Space, address: u64) -> Option<(u64, &Mapping)> {
    let (start, mapping) = space.mappings.range(..=address).next_back()?;
    (address - start < mapping.size).then_some((*start, mapping))
}

/// The memory around an address that is mapped without a gap, and its context.
pub fn find(address: u64) -> Option<(Piece, Arc<Live>)> {
    let space = lock(&SPACE);
    let (mut start, mapping) = mapping_at(&space, address)?;
    let live = Arc::clone(&mapping.allocation.live);
    let mut end = start + mapping.size;
    while let Some((before, mapping)) = space.mappings.range(..start).next_back()
        && before + mapping.size == start
    {
        start = *before;
    }
    while let Some(mapping) = space.mappings.get(&end) {
        end += mapping.size;
    }
    let size = end - start;
    Some((Piece { address: start, asked: size, size, context: live.id, pool: 0 }, live))
}
