//! Virtual memory management: addresses that the program reserves, and memory that it maps there.
//!
//! Creating an allocation only takes quota; the worker allocates its memory when it is first mapped. An unmapped
//! allocation keeps its address (it is *parked*) while the program holds its handle. It is moved if it is mapped
//! elsewhere, or if other memory is mapped over its address. To map an allocation at a second address at the same time,
//! the session imports its own export. Mapping only a part is refused. Host memory (`host`) is page-locked memory of
//! this process where it is mapped.

mod host;

pub use host::User;

use crate::Code;

use crate::devices::context::{self, Context, Live};
use crate::devices::handles::{Kind, Table};
use crate::devices::memory::{Piece, synchronous};
use crate::devices::ticket::Token;
use crate::devices::{self, Access, Device, unreachable_device};
use crate::locks::{Ordered, Rank};
use crate::memory::host::HostRange;
use crate::session::mint;
use driverapi::constants::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
use driverapi::errors::*;
use driverapi::types::CUmemAllocationProp;
use host::Pages;
use protocol::{Exported, SlabExport, SlabImport, SlabMap, SlabMove, SlabUnmap};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

static ALLOCATIONS: Table<Allocation> = Table::new(Kind::Memory);

pub struct Allocation {
    pub handle: usize,
    /// The device that has the memory.
    pub device: &'static Device,
    /// The context in which the allocation was created.
    pub live: Arc<Live>,
    pub size: u64,
    pub properties: Properties,
    /// The pages of host memory. `None` for memory of a device. Host memory is never parked.
    pages: Option<Pages>,
    state: Ordered<State>,
}

/// The properties that the program requested. The pointer in them is never used.
#[derive(Clone, Copy)]
pub struct Properties(pub CUmemAllocationProp);

// SAFETY: the one pointer inside is never followed.
unsafe impl Send for Properties {}
// SAFETY: as above.
unsafe impl Sync for Properties {}

/// The present location of an allocation's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Home {
    Nowhere,
    /// Mapped by the program.
    Mapped,
    /// Unmapped, but still at the address where the program had mapped it.
    Parked(u64),
    /// Unmapped, and moved to an address that only this module uses.
    Hidden(u64),
}

struct State {
    /// The number of references that the program holds.
    held: u32,
    home: Home,
    /// The token of an allocation that other processes of the lease can import. The lease is then charged for it.
    shared: Option<Token>,
}

struct Mapping {
    /// An id that is unique for all memory of the process.
    id: u64,
    size: u64,
    allocation: Arc<Allocation>,
    accessible: bool,
    /// Set if the allocation was already mapped elsewhere when this mapping was made.
    again: bool,
    /// The access of other devices to the memory, by ordinal.
    readers: BTreeMap<i32, Access>,
    /// The users that may access host memory.
    users: BTreeSet<User>,
    /// The offset of the mapping in host memory, which can be mapped in parts.
    offset: u64,
}

impl Mapping {
    fn new(size: u64, offset: u64, allocation: Arc<Allocation>, again: bool) -> Mapping {
        let (readers, users) = (BTreeMap::new(), BTreeSet::new());
        Mapping { id: mint(), size, allocation, accessible: false, again, readers, users, offset }
    }

    fn host_range(&self, start: u64) -> HostRange {
        host::range(start, self.size, self.allocation.device.ordinal)
    }
}

struct Reservation {
    size: u64,
    live: Arc<Live>,
}

#[derive(Default)]
struct Space {
    reservations: BTreeMap<u64, Reservation>,
    mappings: BTreeMap<u64, Mapping>,
    parked: BTreeMap<u64, Arc<Allocation>>,
}

static SPACE: Ordered<Space> = Ordered::new(
    Rank::Space,
    Space { reservations: BTreeMap::new(), mappings: BTreeMap::new(), parked: BTreeMap::new() },
);

impl Allocation {
    fn make_memory(&self, address: u64) -> Result<(), Code> {
        let slab = SlabMap { device: self.device.index, address, size: self.size };
        self.live.session.post(0, &slab).map(drop)
    }

    fn drop_memory(&self, address: u64) -> Result<(), Code> {
        self.live.session.post(0, &SlabUnmap { address, size: self.size }).map(drop)
    }

    fn relocate(&self, from: u64, to: u64) -> Result<(), Code> {
        self.live.synchronise()?;
        self.live.session.post(0, &SlabMove { from, to, size: self.size }).map(drop)
    }

    /// Takes addresses for memory that is not mapped.
    fn hidden_place(&self) -> Result<u64, Code> {
        self.live.session.arena().take(self.size, 1).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }
}

impl Space {
    /// Moves parked memory out of a range of addresses, to an address that only this module uses.
    fn evict(&mut self, address: u64, size: u64) -> Result<(), Code> {
        let before = self.parked.range(..address).next_back();
        let reaches_in = before.filter(|(start, parked)| *start + parked.size > address).map(|(start, _)| *start);
        let inside = self.parked.range(address..address + size).map(|(start, _)| *start);
        for start in reaches_in.into_iter().chain(inside).collect::<Vec<_>>() {
            if let Some(allocation) = self.parked.remove(&start) {
                let hidden = allocation.hidden_place()?;
                allocation.relocate(start, hidden)?;
                allocation.state.lock().home = Home::Hidden(hidden);
            }
        }
        Ok(())
    }

    /// Frees the memory of an unmapped allocation whose handle the program has released.
    fn discard(&mut self, allocation: &Allocation, home: Home) -> Result<(), Code> {
        match home {
            Home::Nowhere | Home::Mapped => Ok(()),
            Home::Parked(address) => {
                self.parked.remove(&address);
                allocation.drop_memory(address)
            }
            Home::Hidden(address) => {
                allocation.drop_memory(address)?;
                allocation.live.session.arena().put_back(address, allocation.size);
                Ok(())
            }
        }
    }
}

impl Drop for Allocation {
    /// Returns the quota. There is no reference and no mapping any more.
    fn drop(&mut self) {
        if self.pages.is_none() && Context::is_live(&self.live) && self.state.lock().shared.is_none() {
            // A failed session has no quota to return.
            let _ = self.device.memory.put_back_quota(&self.live, self.size);
        }
    }
}

/// Reserves `size` bytes of addresses, at `wanted` if they are free, and returns the first one.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`, or `CUDA_ERROR_OUT_OF_MEMORY` if there are no free addresses.
pub fn reserve(live: &Arc<Live>, size: u64, align: u64, wanted: u64) -> Result<u64, Code> {
    let arena = live.session.arena();
    if size == 0 || !size.is_multiple_of(arena.granularity()) || (align != 0 && !align.is_power_of_two()) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let placed = |address: u64| address.is_multiple_of(align.max(arena.granularity())) && arena.take_at(address, size);
    let address = match wanted {
        0 => arena.take(size, align),
        address if placed(address) => Some(address),
        // The wanted address is only a hint.
        _ => arena.take(size, align),
    };
    let address = address.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    SPACE.lock().reservations.insert(address, Reservation { size, live: Arc::clone(live) });
    Ok(address)
}

/// Frees a reservation of addresses.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if this is not a reservation, or if it contains mappings.
pub fn free(address: u64, size: u64) -> Result<(), Code> {
    let mut space = SPACE.lock();
    let known = space.reservations.get(&address).is_some_and(|reservation| reservation.size == size);
    if !known || space.mappings.range(address..address + size).next().is_some() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    space.evict(address, size)?;
    if let Some(reservation) = space.reservations.remove(&address) {
        reservation.live.session.arena().put_back(address, size);
    }
    Ok(())
}

/// Creates memory of a device.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if the share has no room.
pub fn create(device: &'static Device, size: u64, properties: CUmemAllocationProp) -> Result<Arc<Allocation>, Code> {
    let live = context::of_device(device)?;
    if size == 0 || !size.is_multiple_of(live.session.arena().granularity()) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    device.memory.take_quota(&live, size)?;
    insert(live, device, size, properties, None)
}

/// Creates host memory. The share is charged only when a device has a mirror of it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`, `CUDA_ERROR_OUT_OF_MEMORY`, or `CUDA_ERROR_NOT_SUPPORTED` if the arena's addresses are
/// not reserved in this process.
pub fn create_on_host(size: u64, properties: CUmemAllocationProp) -> Result<Arc<Allocation>, Code> {
    let live = context::any()?;
    let arena = live.session.arena();
    if size == 0 || !size.is_multiple_of(arena.granularity()) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if !arena.is_reserved() {
        return crate::boundary::refused(
            "cuMemCreate of host memory where the program has taken the devices' addresses",
        )
        .and(Err(CUDA_ERROR_NOT_SUPPORTED));
    }
    let (pages, device) = (Pages::new(size)?, live.device);
    insert(live, device, size, properties, Some(pages))
}

fn insert(
    live: Arc<Live>,
    device: &'static Device,
    size: u64,
    properties: CUmemAllocationProp,
    pages: Option<Pages>,
) -> Result<Arc<Allocation>, Code> {
    let state = Ordered::new(Rank::Allocation, State { held: 1, home: Home::Nowhere, shared: None });
    let properties = Properties(properties);
    ALLOCATIONS
        .insert(|handle| Arc::new(Allocation { handle, device, live, size, properties, pages, state }))
        .ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// Exports an allocation. Returns the token by which other processes of the lease can import it, and the allocation.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for memory that was not created for export, `CUDA_ERROR_OUT_OF_MEMORY` if the lease has
/// reached its limit of exports.
pub fn export(handle: u64) -> Result<(Token, Arc<Allocation>), Code> {
    let allocation = get(handle)?;
    if allocation.pages.is_some() {
        return crate::boundary::refused("cuMemExportToShareableHandle of host memory")
            .and(Err(CUDA_ERROR_NOT_SUPPORTED));
    }
    if allocation.properties.0.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let token = share(&allocation, &SPACE.lock())?;
    Ok((token, allocation))
}

/// Returns the token of an allocation. The first call exports it.
fn share(allocation: &Arc<Allocation>, space: &Space) -> Result<Token, Code> {
    let mut state = allocation.state.lock();
    if let Some(token) = state.shared {
        return Ok(token);
    }
    let address = match state.home {
        Home::Parked(address) | Home::Hidden(address) => address,
        Home::Mapped => {
            let mapped = space.mappings.iter().find(|(_, mapping)| Arc::ptr_eq(&mapping.allocation, allocation));
            mapped.map(|(address, _)| *address).ok_or(CUDA_ERROR_INVALID_VALUE)?
        }
        Home::Nowhere => {
            let address = allocation.hidden_place()?;
            allocation.make_memory(address)?;
            state.home = Home::Hidden(address);
            address
        }
    };
    let live = &allocation.live;
    let exported: Exported = live.session.call(0, &SlabExport { address })?.success()?.decode()?;
    allocation.device.memory.move_quota_to_lease(allocation.size);
    state.shared = Some(exported.token);
    Ok(exported.token)
}

/// Imports memory that this or another process of the lease exported. Returns the handle of a new allocation.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if no process has it any more, `CUDA_ERROR_OUT_OF_MEMORY` if there are no free addresses.
pub fn import(device: &'static Device, token: Token, properties: CUmemAllocationProp, size: u64) -> Result<u64, Code> {
    let live = context::of_device(device)?;
    if size == 0 || !size.is_multiple_of(live.session.arena().granularity()) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let address = live.session.arena().take(size, 1).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    let slab = SlabImport { device: device.index, address, size, token };
    if let Err(code) = place(&live, &slab) {
        live.session.arena().put_back(address, size);
        return Err(if code == CUDA_ERROR_INVALID_HANDLE { CUDA_ERROR_INVALID_VALUE } else { code });
    }
    let state = Ordered::new(Rank::Allocation, State { held: 1, home: Home::Hidden(address), shared: Some(token) });
    let properties = Properties(properties);
    let made = ALLOCATIONS
        .insert(|handle| Arc::new(Allocation { handle, device, live, size, properties, pages: None, state }));
    made.map(|allocation| allocation.handle as u64).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

fn place(live: &Live, slab: &SlabImport) -> Result<(), Code> {
    live.session.call(0, slab)?.success().map(drop)
}

/// Returns the allocation with this handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if there is none.
pub fn get(handle: u64) -> Result<Arc<Allocation>, Code> {
    devices::all()?;
    ALLOCATIONS.get(handle as usize).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Drops one reference to an allocation. Its memory is freed when it is also unmapped.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if there is no such allocation.
pub fn release(handle: u64) -> Result<(), Code> {
    let allocation = get(handle)?;
    let mut space = SPACE.lock();
    let mut state = allocation.state.lock();
    state.held -= 1;
    if state.held > 0 {
        return Ok(());
    }
    ALLOCATIONS.remove(allocation.handle);
    let home = state.home;
    drop(state);
    space.discard(&allocation, home)
}

/// Maps an allocation at reserved addresses.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the range is not inside a reservation or overlaps a mapping,
/// `CUDA_ERROR_NOT_SUPPORTED` for a part of device memory, `CUDA_ERROR_OUT_OF_MEMORY` for a second address if the lease
/// has reached its limit of exports.
pub fn map(address: u64, size: u64, offset: u64, handle: u64) -> Result<(), Code> {
    let allocation = get(handle)?;
    let end = address.checked_add(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let mut space = SPACE.lock();
    let reserved = space.reservations.range(..=address).next_back();
    let inside = reserved.is_some_and(|(start, reservation)| end <= start + reservation.size);
    let before = space.mappings.range(..end).next_back();
    let taken = before.is_some_and(|(start, mapping)| start + mapping.size > address);
    if size == 0 || !inside || taken || offset.checked_add(size).is_none_or(|end| end > allocation.size) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if allocation.pages.is_some() {
        let granularity = allocation.live.session.arena().granularity();
        if ![address, size, offset].iter().all(|each| each.is_multiple_of(granularity)) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        space.evict(address, size)?;
        space.mappings.insert(address, Mapping::new(size, offset, allocation, false));
        return Ok(());
    }
    let home = allocation.state.lock().home;
    if size != allocation.size {
        return crate::boundary::refused("cuMemMap of an allocation in parts");
    }
    let again = home == Home::Mapped;
    if again {
        let token = share(&allocation, &space)?;
        space.evict(address, size)?;
        place(&allocation.live, &SlabImport { device: allocation.device.index, address, size, token })?;
    } else if home == Home::Parked(address) {
        space.parked.remove(&address);
    } else {
        space.evict(address, size)?;
        // The moved memory may have been the allocation's own parked memory, so its location is read again.
        let home = allocation.state.lock().home;
        match home {
            Home::Nowhere | Home::Mapped => allocation.make_memory(address)?,
            Home::Parked(from) => {
                allocation.relocate(from, address)?;
                space.parked.remove(&from);
            }
            Home::Hidden(from) => {
                allocation.relocate(from, address)?;
                allocation.live.session.arena().put_back(from, size);
            }
        }
    }
    allocation.state.lock().home = Home::Mapped;
    space.mappings.insert(address, Mapping::new(size, 0, allocation, again));
    Ok(())
}

/// Unmaps a range, after all work that may use it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the range does not consist of whole mappings, or the code of failed work.
pub fn unmap(address: u64, size: u64) -> Result<(), Code> {
    let mut space = SPACE.lock();
    let starts = covered(&space, address, size)?;
    let lives: Vec<_> = starts.iter().map(|start| Arc::clone(&space.mappings[start].allocation.live)).collect();
    for live in &lives {
        // Unfinished work may still use the memory.
        if !live.is_idle() {
            live.synchronise()?;
        }
    }
    for start in starts {
        synchronous::forget(start);
        let of_host = space.mappings.get(&start).filter(|mapping| mapping.allocation.pages.is_some());
        if let Some(mapping) = of_host {
            let hidden = if mapping.users.is_empty() { Ok(()) } else { host::hide(&mapping.host_range(start)) };
            space.mappings.remove(&start);
            hidden?;
            continue;
        }
        if let Some(Mapping { allocation, again, .. }) = space.mappings.remove(&start) {
            if again {
                allocation.drop_memory(start)?;
                continue;
            }
            let mut state = allocation.state.lock();
            if state.held > 0 {
                state.home = Home::Parked(start);
                drop(state);
                space.parked.insert(start, allocation);
            } else {
                state.home = Home::Nowhere;
                drop(state);
                allocation.drop_memory(start)?;
            }
        }
    }
    Ok(())
}

/// Returns the starts of the mappings that a range consists of.
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

/// Gives a device access to the mappings of a range, or withdraws it. `None` stands for the program.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if the range does not consist of whole mappings, or if the program would access device
/// memory. `CUDA_ERROR_INVALID_DEVICE` for a device that cannot access the memory.
pub fn set_access(address: u64, size: u64, device: Option<&'static Device>, accessible: bool) -> Result<(), Code> {
    let mut ended = Vec::new();
    let given = set_access_in(&mut SPACE.lock(), address, size, device, accessible, &mut ended);
    // The end of an access waits for work, and other threads need the lock for each address.
    ended.into_iter().map(Access::end).fold(given, Result::and)
}

/// Like [`set_access`], under the lock. `ended` gets the accesses that are to be ended.
fn set_access_in(
    space: &mut Space,
    address: u64,
    size: u64,
    device: Option<&'static Device>,
    accessible: bool,
    ended: &mut Vec<Access>,
) -> Result<(), Code> {
    let starts = covered(space, address, size)?;
    if device.is_none() && starts.iter().any(|start| space.mappings[start].allocation.pages.is_none()) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    for start in starts {
        let Some(mapping) = space.mappings.get_mut(&start) else { continue };
        let range = mapping.host_range(start);
        let user = device.map_or(User::Host, |device| User::Device(device.ordinal));
        if let Some(pages) = &mapping.allocation.pages {
            pages.allow(&range, mapping.offset, &mut mapping.users, (user, accessible))?;
            continue;
        }
        let Some(device) = device else { continue };
        let owner = mapping.allocation.device;
        if owner.ordinal == device.ordinal {
            mapping.accessible = accessible;
        } else if !accessible {
            ended.extend(mapping.readers.remove(&device.ordinal));
        } else if let Entry::Vacant(reader) = mapping.readers.entry(device.ordinal) {
            reader.insert(Access::new(device, owner).map_err(unreachable_device)?);
        }
    }
    Ok(())
}

/// Returns whether this device, or the program, may access the memory at an address.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if nothing is mapped there, or if `user` is the program and the memory is a device's.
pub fn access(address: u64, user: User) -> Result<bool, Code> {
    let space = SPACE.lock();
    let (_, mapping) = mapping_at(&space, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if mapping.allocation.pages.is_some() {
        return Ok(mapping.users.contains(&user));
    }
    let User::Device(ordinal) = user else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let own = mapping.allocation.device.ordinal == ordinal;
    Ok(if own { mapping.accessible } else { mapping.readers.contains_key(&ordinal) })
}

/// Adds a reference to the allocation that is mapped at an address, and returns its handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if nothing is mapped there, or if the program has released its handle.
pub fn retain(address: u64) -> Result<usize, Code> {
    let space = SPACE.lock();
    let (_, mapping) = mapping_at(&space, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let mut state = mapping.allocation.state.lock();
    if state.held == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    state.held += 1;
    Ok(mapping.allocation.handle)
}

fn mapping_at(space: &Space, address: u64) -> Option<(u64, &Mapping)> {
    let (start, mapping) = space.mappings.range(..=address).next_back()?;
    (address - start < mapping.size).then_some((*start, mapping))
}

/// Returns the mapping that contains an address, and its device. Adjacent mappings are not merged, because a program
/// may query the size of its mapping in order to unmap it.
pub fn mapping(address: u64) -> Option<(Piece, &'static Device)> {
    let space = SPACE.lock();
    let (start, mapping) = mapping_at(&space, address)?;
    Some((piece(start, mapping.size, &mapping.allocation.live, mapping.id), mapping.allocation.device))
}

/// Returns the host memory that is mapped at an address, and the id of its mapping.
pub fn host_mapping(address: u64) -> Option<(HostRange, u64)> {
    let space = SPACE.lock();
    let (start, mapping) = mapping_at(&space, address)?;
    mapping.allocation.pages.is_some().then(|| (mapping.host_range(start), mapping.id))
}

fn piece(address: u64, size: u64, live: &Live, id: u64) -> Piece {
    Piece { address, asked: size, size, context: live.id, pool: 0, id }
}

/// Returns the device memory that contains an address, together with adjacent mappings, and its context.
pub fn find(address: u64) -> Option<(Piece, Arc<Live>)> {
    let space = SPACE.lock();
    let of_device = |mapping: &Mapping| mapping.allocation.pages.is_none();
    let (mut start, mapping) = mapping_at(&space, address).filter(|(_, mapping)| of_device(mapping))?;
    let live = Arc::clone(&mapping.allocation.live);
    let mut end = start + mapping.size;
    while let Some((before, mapping)) = space.mappings.range(..start).next_back()
        && before + mapping.size == start
        && of_device(mapping)
    {
        start = *before;
    }
    while let Some(mapping) = space.mappings.get(&end).filter(|mapping| of_device(mapping)) {
        end += mapping.size;
    }
    Some((piece(start, end - start, &live, 0), live))
}
