//! Memory that processes on this machine share (`cuIpcGetMemHandle`).
//!
//! Memory of `cuMemAlloc` is plain memory of the process until its first export. Then a file replaces it, and other
//! processes map the file. They keep the memory after the exporter frees it. Only the exporter's device is charged.

use super::state::Driver;
use crate::check;
use crate::ffi::R;
use crate::memory::allocations::Kind;
use crate::memory::arena::{self, PAGE};
use crate::memory::backing::Backing;
use crate::memory::process_handle::{self, ProcessHandle};
use crate::memory::shared_memory::Import;
use crate::streams::context::Context;
use crate::streams::queue::Marker;
use driverapi::errors::*;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

/// A lock that one call at a time holds, so that no memory is exported or imported twice.
static CALLS: Mutex<()> = Mutex::new(());

impl Driver {
    /// Exports the allocation that contains an address, and returns a handle for other processes.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the address is not in memory of `cuMemAlloc`.
    pub fn export_memory(&self, address: u64) -> R<ProcessHandle> {
        let _one = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let exportable = self.memory.find(address).filter(|a| a.kind == Kind::Device && !a.freeing);
        let allocation = exportable.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let device = self.devices[allocation.device].uuid;
        let known = self.memory.shared().exports.get(&allocation.id).cloned();
        let backing = match known {
            Some(backing) => backing,
            None => {
                self.wait_for_all();
                let len = allocation.len.next_multiple_of(PAGE);
                let backing = Arc::new(Backing::create(len, device)?);
                backing.take_over(allocation.base, len)?;
                if let Some(checker) = check::checker() {
                    checker.exempt(allocation.base);
                }
                self.memory.shared().exports.insert(allocation.id, Arc::clone(&backing));
                backing
            }
        };
        ProcessHandle::of(process_handle::Kind::Memory, device, backing.file()?, allocation.len)
    }

    /// Maps memory that another process exported, and returns the address.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_CONTEXT` for memory of this process and for memory that another context has open,
    /// `CUDA_ERROR_INVALID_HANDLE` if the handle names no memory.
    pub fn import_memory(&self, context: &Context, handle: &ProcessHandle) -> R<u64> {
        let _one = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.devices.iter().find(|device| device.uuid.bytes == handle.device.bytes);
        let device = device.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if handle.process == std::process::id() {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        if let Some(open) = self.memory.shared().imports.values_mut().find(|open| open.inode == handle.inode) {
            if open.context != context.id {
                return Err(CUDA_ERROR_INVALID_CONTEXT);
            }
            open.times += 1;
            return Ok(open.base);
        }
        let invalid = |_| CUDA_ERROR_INVALID_HANDLE;
        let (backing, len) = Backing::import(handle.open()?.as_fd(), device.uuid).map_err(invalid)?;
        if handle.len.next_multiple_of(PAGE) != len {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let base = self.memory.arena().take(len, PAGE)?;
        let shown = backing.map(base, len, 0);
        let kind = Kind::Imported;
        if let Err(code) = shown.and_then(|()| self.memory.adopt(base, handle.len, kind, device.ordinal, context.id)) {
            arena::unmap(base, len)?;
            self.memory.arena().give_back(base, len);
            return Err(code);
        }
        let id = self.memory.find(base).ok_or(CUDA_ERROR_INVALID_VALUE)?.id;
        if device.ordinal != context.device.ordinal {
            context.device.map.insert(base, handle.len);
        }
        let import = Import { inode: handle.inode, base, context: context.id, times: 1 };
        self.memory.shared().imports.insert(id, import);
        Ok(base)
    }

    /// Closes imported memory. The last close waits for all work and unmaps the memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if no imported memory is open at this address.
    pub fn close_imported(&self, address: u64) -> R {
        let _one = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = self.memory.find(address).filter(|a| a.kind == Kind::Imported && a.base == address);
        let allocation = opened.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if let Some(open) = self.memory.shared().imports.get_mut(&allocation.id)
            && open.times > 1
        {
            open.times -= 1;
            return Ok(());
        }
        self.wait_for_all();
        self.memory.release(address, |a| a.id == allocation.id).map(drop)
    }

    /// Waits for all work, because memory is about to be moved or unmapped.
    fn wait_for_all(&self) {
        self.contexts.all().iter().flat_map(|context| context.ends()).for_each(|end: Marker| end.wait());
    }
}
