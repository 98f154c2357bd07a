//! Typed wrappers of the driver's functions. They contain no policy.

use super::handle::{Handle, Result};
use super::pages::Pages;
use super::{Functions, Raw, Table};
use driverapi::arrays::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC};
use driverapi::attributes::{
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, CU_POINTER_ATTRIBUTE_IS_MANAGED,
};
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};

const PORTABLE: u32 = 1;
/// Limit on the number of written ranges in one answer of the driver.
const MOST_PARTS: usize = 1024;

pub struct Driver {
    pub(super) table: Table,
    /// The functions that the client's generated calls use.
    pub functions: Functions,
}

impl Driver {
    /// Loads the library at `path`.
    ///
    /// # Errors
    /// A message of one line.
    pub fn open(path: &str) -> std::result::Result<Driver, String> {
        let c_path = CString::new(path).map_err(|_| format!("{path:?} is no file name"))?;
        // SAFETY: the name is NUL-terminated. The operator asked to run the initialisers of this library with --driver.
        let library = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: dlerror returns null or a NUL-terminated message that is valid until the next dl call of this
            // thread.
            let reason = unsafe { libc::dlerror().as_ref().map(|m| CStr::from_ptr(m).to_string_lossy().into_owned()) };
            return Err(format!("cannot load the CUDA driver {path}: {}", reason.unwrap_or_default()));
        }
        // SAFETY: the library is open and the name is NUL-terminated.
        let mut find = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
        // SAFETY: the library is a libcuda, so its versioned symbols have CUDA's signatures. It is never closed.
        let (table, functions) = unsafe { (Table::load(&mut find), Functions::load(&mut find)) };
        Ok(Driver { table, functions })
    }

    /// Makes a driver of the caller's own functions, for tests.
    pub fn from_table(table: Table) -> Driver {
        Driver { table, functions: Functions::default() }
    }

    pub fn init(&self) -> Result<()> {
        call!(self.init(0))
    }
    pub fn version(&self) -> Result<i32> {
        get!(self.driver_version(0))
    }
    pub fn device_count(&self) -> Result<i32> {
        get!(self.device_count(0))
    }
    pub fn device(&self, ordinal: i32) -> Result<i32> {
        get!(self.device_get(0, ordinal))
    }
    pub fn device_name(&self, device: i32) -> Result<String> {
        let mut name = [0; 256];
        call!(self.device_name(name.as_mut_ptr(), name.len() as i32 - 1, device))?;
        let bytes: Vec<u8> = name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
    pub fn device_uuid(&self, device: i32) -> Result<[u8; 16]> {
        get!(self.device_uuid([0; 16], device))
    }
    pub fn device_memory(&self, device: i32) -> Result<usize> {
        get!(self.device_memory(0, device))
    }
    pub fn device_reaches(&self, device: i32, peer: i32) -> Result<bool> {
        get!(self.device_reaches(0, device, peer)).map(|reaches| reaches != 0)
    }
    pub fn device_peer_attribute(&self, attribute: u32, device: i32, peer: i32) -> Result<i32> {
        get!(self.device_peer_attribute(0, attribute, device, peer))
    }
    pub fn device_attribute(&self, attribute: u32, device: i32) -> Result<i32> {
        get!(self.device_attribute(0, attribute, device))
    }

    pub fn primary_retain(&self, device: i32, flags: u32) -> Result<Handle> {
        // The flags of an active primary context cannot change. Different flags are no reason to refuse the context.
        let _ = call!(self.primary_set_flags(device, flags));
        get!(self.primary_retain(null_mut(), device)).map(Handle::from)
    }
    pub fn primary_release(&self, device: i32) -> Result<()> {
        call!(self.primary_release(device))
    }
    pub fn context_create(&self, flags: u32, device: i32) -> Result<Handle> {
        match get!(self.context_create(null_mut(), flags, device)) {
            Err(CUDA_ERROR_NOT_SUPPORTED) => get!(self.context_create_v4(null_mut(), null_mut(), flags, device)),
            other => other,
        }
        .map(Handle::from)
    }
    pub fn context_destroy(&self, context: Handle) -> Result<()> {
        call!(self.context_destroy(context.raw()))
    }
    pub fn set_current(&self, context: Handle) -> Result<()> {
        call!(self.context_set_current(context.raw()))
    }
    /// Sets a limit of the current context.
    pub fn context_set_limit(&self, limit: u32, value: u64) -> Result<()> {
        call!(self.context_set_limit(limit, value as usize))
    }
    /// Waits until the current context is idle. It blocks, so it is called only if the context is known to be idle.
    pub fn context_synchronize(&self) -> Result<()> {
        call!(self.context_synchronize())
    }

    pub fn granularity(&self, device: i32) -> Result<usize> {
        get!(self.granularity(0, &pinned_on(device), 0))
    }
    pub fn address_reserve(&self, size: u64, alignment: u64, hint: u64) -> Result<u64> {
        get!(self.address_reserve(0, size as usize, alignment as usize, hint, 0))
    }
    pub fn address_free(&self, base: u64, size: u64) -> Result<()> {
        call!(self.address_free(base, size as usize))
    }
    /// Creates memory that other processes can import, if the device supports that.
    pub fn memory_create(&self, size: u64, device: i32) -> Result<u64> {
        let mut properties = pinned_on(device);
        if self.device_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device)? != 0 {
            properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        }
        get!(self.memory_create(0, size as usize, &properties, 0))
    }
    /// Returns the memory that is mapped at an address. The caller must release the memory once.
    pub fn memory_retain(&self, address: u64) -> Result<u64> {
        get!(self.memory_retain(0, Handle(address as usize).raw()))
    }
    pub fn memory_export(&self, memory: u64) -> Result<OwnedFd> {
        let fd = get!(self.memory_export(-1, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))?;
        // SAFETY: the driver created this descriptor, and the caller owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
    /// Imports memory from a descriptor, which may be closed afterwards.
    pub fn memory_import(&self, file: BorrowedFd<'_>) -> Result<u64> {
        let file = Handle(file.as_raw_fd() as usize).raw();
        get!(self.memory_import(0, file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
    }
    pub fn memory_release(&self, memory: u64) -> Result<()> {
        call!(self.memory_release(memory))
    }
    pub fn memory_map(&self, address: u64, size: u64, memory: u64) -> Result<()> {
        call!(self.memory_map(address, size as usize, 0, memory, 0))
    }
    pub fn memory_unmap(&self, address: u64, size: u64) -> Result<()> {
        call!(self.memory_unmap(address, size as usize))
    }
    pub fn memory_allow(&self, address: u64, size: u64, device: i32) -> Result<()> {
        self.memory_set_access(address, size, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    }
    pub fn memory_set_access(&self, address: u64, size: u64, device: i32, flags: u32) -> Result<()> {
        let access = CUmemAccessDesc { location: on(device), flags };
        call!(self.memory_set_access(address, size as usize, &access, 1))
    }
    /// Whether the driver checks bounds, and so needs to know the allocations in mapped memory.
    pub fn checks_bounds(&self) -> bool {
        self.table.memory_bound.is_some()
    }
    /// Registers an allocation for bounds checks. `size` 0 removes the allocation.
    pub fn memory_bound(&self, address: u64, size: u64) -> Result<()> {
        call!(self.memory_bound(address, size as usize))
    }
    /// Enables tracking of writes, if the driver supports it. `pagemap` is the open file `driverapi::written::PAGEMAP`.
    pub fn follow_writes(&self, pagemap: BorrowedFd<'_>) -> Result<()> {
        call!(self.writes_follow(Handle(pagemap.as_raw_fd() as usize).raw()))
    }
    /// Returns the ranges of these whole pages that were written since the last call, sorted by address. The first call
    /// returns all pages.
    pub fn written(&self, address: u64, size: u64) -> Result<Vec<Range<u64>>> {
        let (mut parts, mut count) = ([[0; 2]; MOST_PARTS], MOST_PARTS);
        call!(self.writes_taken(parts.as_mut_ptr(), &mut count, address, size as usize))?;
        Ok(parts.iter().take(count).map(|&[start, end]| start..end).collect())
    }
    /// Allocates page-locked memory that all contexts may use for copies.
    pub fn host_alloc(&self, size: usize) -> Result<Handle> {
        get!(self.host_alloc(null_mut(), size, PORTABLE)).map(Handle::from)
    }
    /// Allocates page-locked memory filled with zeros.
    pub fn host_zeros(&self, size: usize) -> Result<Handle> {
        let memory = self.host_alloc(size)?;
        // SAFETY: the driver has just allocated these bytes, and no one else has their address.
        unsafe { std::ptr::write_bytes(memory.raw().cast::<u8>(), 0, size) };
        Ok(memory)
    }
    pub fn host_free(&self, memory: Handle) -> Result<()> {
        call!(self.host_free(memory.raw()))
    }
    /// Page-locks existing memory, so that all contexts may use it for copies.
    pub fn host_register(&self, pages: &Pages) -> Result<()> {
        call!(self.host_register(Handle(pages.address()).raw(), pages.len(), PORTABLE))
    }
    pub fn host_unregister(&self, pages: &Pages) -> Result<()> {
        call!(self.host_unregister(Handle(pages.address()).raw()))
    }

    /// Copies from `host`, which must be page-locked memory of this driver. The caller must not change the bytes until
    /// the copy is complete.
    pub fn copy_to_device(&self, address: u64, host: Handle, bytes: usize, stream: Handle) -> Result<()> {
        call!(self.copy_to_device(address, host.raw(), bytes, stream.raw()))
    }
    /// Copies to `host`, under the conditions of [`Self::copy_to_device`].
    pub fn copy_to_host(&self, host: Handle, address: u64, bytes: usize, stream: Handle) -> Result<()> {
        call!(self.copy_to_host(host.raw(), address, bytes, stream.raw()))
    }
    pub fn copy_on_device(&self, to: u64, from: u64, bytes: usize, stream: Handle) -> Result<()> {
        call!(self.copy_on_device(to, from, bytes, stream.raw()))
    }
    pub fn copy_3d(&self, copy: &CUDA_MEMCPY3D, stream: Handle) -> Result<()> {
        call!(self.copy_3d(copy, stream.raw()))
    }
    pub fn set_bytes(&self, address: u64, value: u8, bytes: u64, stream: Handle) -> Result<()> {
        call!(self.set_bytes(address, value, bytes as usize, stream.raw()))
    }

    pub fn array_create(&self, asked: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<Handle> {
        get!(self.array_create(null_mut(), asked)).map(Handle::from)
    }
    pub fn array_destroy(&self, array: Handle) -> Result<()> {
        call!(self.array_destroy(array.raw()))
    }
    /// Creates a texture, or a surface if `sampling` is `None`.
    pub fn texture_create(
        &self,
        resource: &CUDA_RESOURCE_DESC,
        sampling: Option<&CUDA_TEXTURE_DESC>,
        view: Option<&CUDA_RESOURCE_VIEW_DESC>,
    ) -> Result<u64> {
        let view = view.map_or(std::ptr::null(), std::ptr::from_ref);
        match sampling {
            Some(sampling) => get!(self.texture_create(0, resource, sampling, view)),
            None => get!(self.surface_create(0, resource)),
        }
    }
    pub fn texture_destroy(&self, texture: u64, surface: bool) -> Result<()> {
        if surface { call!(self.surface_destroy(texture)) } else { call!(self.texture_destroy(texture)) }
    }

    pub fn stream_create(&self, flags: u32, priority: i32) -> Result<Handle> {
        get!(self.stream_create(null_mut(), flags, priority)).map(Handle::from)
    }
    pub fn stream_destroy(&self, stream: Handle) -> Result<()> {
        call!(self.stream_destroy(stream.raw()))
    }
    pub fn stream_query(&self, stream: Handle) -> Result<()> {
        call!(self.stream_query(stream.raw()))
    }
    pub fn stream_wait_event(&self, stream: Handle, event: Handle) -> Result<()> {
        call!(self.stream_wait_event(stream.raw(), event.raw(), 0))
    }
    pub fn event_create(&self, flags: u32) -> Result<Handle> {
        get!(self.event_create(null_mut(), flags)).map(Handle::from)
    }
    pub fn event_record(&self, event: Handle, stream: Handle, flags: u32) -> Result<()> {
        match flags {
            0 => call!(self.event_record(event.raw(), stream.raw())),
            _ => call!(self.event_record_flags(event.raw(), stream.raw(), flags)),
        }
    }
    pub fn event_query(&self, event: Handle) -> Result<()> {
        call!(self.event_query(event.raw()))
    }

    /// Returns the time from one event to the other, in milliseconds.
    pub fn event_elapsed(&self, start: Handle, end: Handle) -> Result<f32> {
        let mut milliseconds = 0.0;
        call!(self.event_elapsed(&mut milliseconds, start.raw(), end.raw())).map(|()| milliseconds)
    }

    /// Waits for an event. It blocks, so it is called only if the event is complete.
    pub fn event_synchronize(&self, event: Handle) -> Result<()> {
        call!(self.event_synchronize(event.raw()))
    }

    pub fn module_unload(&self, module: Handle) -> Result<()> {
        call!(self.module_unload(module.raw()))
    }
    pub fn module_functions(&self, module: Handle) -> Result<Vec<Handle>> {
        let count = get!(self.module_function_count(0, module.raw()))?;
        let mut functions = vec![null_mut(); count as usize];
        call!(self.module_functions(functions.as_mut_ptr(), count, module.raw()))?;
        Ok(functions.into_iter().map(Handle::from).collect())
    }
    pub fn module_global(&self, module: Handle, name: &CStr) -> Result<(u64, usize)> {
        let mut size = 0;
        let address = get!(self.module_global(0, &mut size, module.raw(), name.as_ptr()))?;
        Ok((address, size))
    }
    /// Whether this is managed memory, which host and device use at one address. Returns false if the driver cannot
    /// answer.
    pub fn is_managed(&self, address: u64) -> bool {
        const IS_MANAGED: u32 = CU_POINTER_ATTRIBUTE_IS_MANAGED;
        let mut managed = 0u32;
        let asked = call!(self.pointer_attribute((&raw mut managed).cast(), IS_MANAGED, address));
        asked.is_ok() && managed != 0
    }
    pub fn function_name(&self, function: Handle) -> Result<String> {
        let name = get!(self.function_name(null(), function.raw()))?;
        if name.is_null() {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        // SAFETY: the name is a NUL-terminated string of the driver, valid while the module is loaded.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }
    /// Loads a function's code. This may wait for running kernels.
    pub fn function_load(&self, function: Handle) -> Result<()> {
        call!(self.function_load(function.raw()))
    }
    /// Returns the offset and the size of a parameter. Fails if the function has no parameter with this index.
    pub fn function_param(&self, function: Handle, index: usize) -> Result<(usize, usize)> {
        let (mut offset, mut size) = (0, 0);
        call!(self.function_param(function.raw(), index, &mut offset, &mut size)).map(|()| (offset, size))
    }
    pub fn function_attribute(&self, function: Handle, attribute: u32) -> Result<i32> {
        get!(self.function_attribute(0, attribute, function.raw()))
    }
    pub fn set_function_attribute(&self, function: Handle, attribute: u32, value: i32) -> Result<()> {
        call!(self.set_function_attribute(function.raw(), attribute, value))
    }
    pub fn set_function_cache_config(&self, function: Handle, config: u32) -> Result<()> {
        call!(self.set_function_cache_config(function.raw(), config))
    }
    pub fn set_function_shared_mem_config(&self, function: Handle, config: u32) -> Result<()> {
        call!(self.set_function_shared_mem_config(function.raw(), config))
    }
    /// Launches a kernel. `parameters` is the kernel's packed parameter buffer.
    pub fn launch(&self, function: Handle, config: &CUlaunchConfig, parameters: &[u8]) -> Result<()> {
        let mut size = parameters.len();
        let mut extra = packed(parameters, &mut size);
        call!(self.launch(config, function.raw(), null_mut(), extra.as_mut_ptr()))
    }
}

/// Returns the `extra` argument of a launch, which points to a packed parameter buffer and its size.
pub(super) fn packed(parameters: &[u8], size: &mut usize) -> [Raw; 5] {
    [
        Handle(CU_LAUNCH_PARAM_BUFFER_POINTER).raw(),
        parameters.as_ptr().cast_mut().cast(),
        Handle(CU_LAUNCH_PARAM_BUFFER_SIZE).raw(),
        (&raw mut *size).cast(),
        null_mut(),
    ]
}

fn on(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn pinned_on(device: i32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: 0,
        location: on(device),
        win32HandleMetaData: null_mut(),
        allocFlags: CUmemAllocFlags::default(),
    }
}
