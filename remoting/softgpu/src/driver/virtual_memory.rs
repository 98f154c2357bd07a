//! Virtual memory management: physical memory, reserved addresses, and mappings of physical memory at these addresses.

use super::state::Driver;
use crate::check;
use crate::ffi::R;
use crate::memory::allocations::{Allocation, Kind};
use crate::memory::arena::{self, GRANULARITY};
use crate::memory::backing::Backing;
use crate::memory::physical::Physical;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::CUmemLocation;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

/// The context number of mappings. They belong to no context and outlive all of them.
const NO_CONTEXT: usize = 0;

fn on_device(ordinal: usize) -> CUmemLocation {
    CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal as i32 }
}

impl Driver {
    pub fn create_physical(&self, id: usize, device: usize, len: u64, shareable: bool) -> R {
        if len == 0 || !len.is_multiple_of(GRANULARITY) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.devices[device].charge(len)?;
        let backing = match &self.frames {
            Some(frames) => frames.take(device, len).map(Backing::Part),
            None => Backing::create(len, self.devices[device].uuid),
        };
        let backing = backing.inspect_err(|_| self.devices[device].discharge(len))?;
        self.insert_physical(id, on_device(device), len, backing, (shareable, false));
        Ok(())
    }

    /// Creates physical memory on the host. No device is charged.
    pub fn create_on_host(&self, id: usize, location: CUmemLocation, len: u64) -> R {
        if len == 0 || !len.is_multiple_of(GRANULARITY) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let backing = Backing::create(len, self.devices[0].uuid)?;
        self.insert_physical(id, location, len, backing, (false, false));
        Ok(())
    }

    fn insert_physical(&self, id: usize, location: CUmemLocation, len: u64, backing: Backing, kind: (bool, bool)) {
        let (references, released) = (AtomicUsize::new(1), AtomicBool::new(false));
        let (shareable, imported) = kind;
        let device = if location.type_ == CU_MEM_LOCATION_TYPE_DEVICE { location.id as usize } else { 0 };
        let physical = Physical { id, device, len, shareable, location, imported, backing, references, released };
        self.physical.insert(id, Arc::new(physical));
    }

    /// Returns a file descriptor for memory that was created as shareable.
    pub fn export_physical(&self, id: usize) -> R<OwnedFd> {
        let physical = self.physical(id)?;
        if physical.shareable { physical.backing.export() } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    /// Imports memory that another process exported. The memory may be on any of this process's devices.
    pub fn import_physical(&self, id: usize, file: BorrowedFd<'_>) -> R {
        let mut found = self.devices.iter().filter_map(|d| Some((d.ordinal, Backing::import(file, d.uuid).ok()?)));
        let (device, (backing, len)) = found.next().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.insert_physical(id, on_device(device), len, backing, (true, true));
        Ok(())
    }

    /// Returns the memory of a handle that the program has not released. Released memory that is still mapped has no
    /// handle.
    pub fn physical(&self, id: usize) -> R<Arc<Physical>> {
        self.physical.get(id).filter(|p| !p.released.load(Ordering::Acquire)).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    pub fn retain_physical(&self, id: usize) -> R {
        let physical = self.physical.get(id).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        physical.references.fetch_add(1, Ordering::AcqRel);
        physical.released.store(false, Ordering::Release);
        Ok(())
    }

    pub fn release_physical(&self, id: usize) -> R {
        let physical = self.physical(id)?;
        if physical.references.fetch_sub(1, Ordering::AcqRel) == 1 {
            physical.released.store(true, Ordering::Release);
            self.drop_physical_if_unused(&physical);
        }
        Ok(())
    }

    fn drop_physical_if_unused(&self, physical: &Physical) {
        let mapped = |a: &Allocation| a.kind.physical() == Some(physical.id);
        if physical.released.load(Ordering::Acquire)
            && self.memory.all_where(mapped).is_empty()
            && self.physical.remove(physical.id).is_some()
            && !physical.imported
            && !physical.is_host()
        {
            self.devices[physical.device].discharge(physical.len);
        }
    }

    fn reservations(&self) -> MutexGuard<'_, std::collections::HashMap<u64, u64>> {
        self.reservations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a range of addresses. It starts at `hint` if the profile follows hints and that range is free.
    pub fn reserve_addresses(&self, len: u64, align: u64, hint: u64) -> R<u64> {
        let align = align.max(GRANULARITY);
        if len == 0 || !len.is_multiple_of(GRANULARITY) || len > 1 << 46 || !align.is_power_of_two() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut arena = self.memory.arena();
        let wanted = self.config.profile.honours_hints && hint != 0 && hint.is_multiple_of(align);
        let base = if wanted && hint < 1 << 47 && arena.take_at(hint, len) { hint } else { arena.take(len, align)? };
        self.reservations().insert(base, len);
        Ok(base)
    }

    pub fn free_addresses(&self, base: u64, len: u64) -> R {
        let mut reservations = self.reservations();
        if reservations.get(&base) != Some(&len) || self.memory.overlaps(base, len) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        reservations.remove(&base);
        self.memory.arena().give_back(base, len);
        Ok(())
    }

    pub fn map_physical(&self, base: u64, len: u64, offset: u64, id: usize) -> R {
        let physical = self.physical(id)?;
        let reserved =
            self.reservations().iter().any(|(&at, &size)| base >= at && base - at <= size && len <= size - (base - at));
        let fits = offset.checked_add(len).is_some_and(|end| end <= physical.len);
        if len == 0 || [base, len, offset].iter().any(|v| v % GRANULARITY != 0) || !reserved || !fits {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let kind = if physical.is_host() { Kind::MappedHost { handle: id } } else { Kind::Mapped { handle: id } };
        self.memory.adopt(base, len, kind, physical.device, NO_CONTEXT)?;
        if let Some(checker) = check::checker().filter(|_| !physical.imported && !physical.is_host()) {
            checker.mapped(base, len, id, offset);
        }
        physical.backing.map(base, len, offset).inspect_err(|_| {
            let _ = self.memory.release(base, |_| true);
        })
    }

    /// Returns the mappings that together fill `[base, base + len)` exactly.
    fn mappings(&self, base: u64, len: u64) -> R<Vec<Allocation>> {
        let end = base.checked_add(len).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let mapped = self
            .memory
            .all_where(|a| a.kind.physical().is_some() && a.base >= base && a.base < end && a.base + a.len <= end);
        if len == 0 || mapped.iter().map(|a| a.len).sum::<u64>() != len {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(mapped)
    }

    /// Unmaps a range at once. A kernel that still uses the range faults.
    pub fn unmap_physical(&self, base: u64, len: u64) -> R {
        for mapping in self.mappings(base, len)? {
            self.memory.release(mapping.base, |a| a.id == mapping.id)?;
            arena::unmap(mapping.base, mapping.len)?;
            self.memory.open_to_host(mapping.base, false);
            if let Some(handle) = mapping.kind.physical()
                && let Some(physical) = self.physical.get(handle)
            {
                self.drop_physical_if_unused(&physical);
            }
        }
        Ok(())
    }

    /// Sets a device's access to a mapping. The CPU has no read-only device pages, so read access also allows writes.
    pub fn set_access(&self, base: u64, len: u64, device: usize, flags: CUmemAccess_flags) -> R {
        let map = &self.devices[device].map;
        for mapping in self.mappings(base, len)? {
            map.remove(mapping.base);
            match flags {
                CU_MEM_ACCESS_FLAGS_PROT_NONE => (),
                CU_MEM_ACCESS_FLAGS_PROT_READ | CU_MEM_ACCESS_FLAGS_PROT_READWRITE => {
                    map.insert(mapping.base, mapping.len)
                }
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            }
        }
        Ok(())
    }

    /// Sets the bounds of an allocation in mapped memory that several allocations share. Kernels that use the
    /// allocation can access no other bytes. If `len` is 0, the allocation that starts at `address` has ended.
    pub fn bound(&self, address: u64, len: u64) -> R {
        let mapping = self.memory.find(address).filter(|mapping| mapping.kind.physical().is_some());
        let mapping = mapping.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if len > mapping.base + mapping.len - address {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.devices.iter().for_each(|device| {
            device.map.bound(address, len);
        });
        Ok(())
    }

    /// Allows the program to access host memory that is mapped. The pages are always in the process, so only the flag
    /// changes.
    pub fn set_host_access(&self, base: u64, len: u64, flags: CUmemAccess_flags) -> R {
        let mappings = self.mappings(base, len)?;
        let known = flags <= CU_MEM_ACCESS_FLAGS_PROT_READWRITE && flags != 2;
        if !known || mappings.iter().any(|mapping| !mapping.kind.is_host()) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for mapping in mappings {
            self.memory.open_to_host(mapping.base, flags != CU_MEM_ACCESS_FLAGS_PROT_NONE);
        }
        Ok(())
    }

    /// Returns the access of a device to mapped memory. If `device` is `None`, returns the access of the program on the
    /// host.
    pub fn access(&self, address: u64, device: Option<usize>) -> R<CUmemAccess_flags> {
        let mapping = self.memory.find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if mapping.kind.physical().is_none() || device.is_none() && !mapping.kind.is_host() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let granted = match device {
            Some(device) => self.devices[device].map.covers(address),
            None => self.memory.is_open_to_host(mapping.base),
        };
        Ok(if granted { CU_MEM_ACCESS_FLAGS_PROT_READWRITE } else { CU_MEM_ACCESS_FLAGS_PROT_NONE })
    }

    /// Returns the handle of the physical memory that is mapped at an address.
    pub fn physical_at(&self, address: u64) -> R<usize> {
        self.memory.find(address).and_then(|a| a.kind.physical()).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}
