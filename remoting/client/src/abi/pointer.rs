//! Queries about an address: `cuPointerGetAttribute` and related functions.

use crate::Code;
use crate::boundary::{input, inputs};
use crate::devices::context;
use crate::devices::memory::{Piece, find_allocation, synchronous};
use crate::devices::{self, Device};
use crate::memory::host::{self, HostKind, HostRange};
use crate::memory::pinned;
use crate::memory::vmm;
use crate::objects::pool;
use crate::{exports, module};
use driverapi::attributes::*;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::CUdeviceptr;
use std::ffi::{c_int, c_uint, c_void};

/// The memory that contains an address.
enum Memory {
    Device(&'static Device, Piece),
    Host(HostRange, u64),
}

impl Memory {
    fn start(&self) -> u64 {
        match self {
            Memory::Device(_, piece) => piece.address,
            Memory::Host(range, _) => range.start as u64,
        }
    }
}

/// The value of an attribute, in the size in which CUDA stores it.
enum Value {
    Word(u64),
    Int(u32),
}

exports! {
    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, address: CUdeviceptr) {
        devices::all()?;
        if data.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let memory = find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        store(data, &answer(&memory, attribute, address)?);
        Ok(())
    }

    fn cuPointerGetAttributes(
        count: c_uint,
        attributes: *mut c_uint,
        data: *mut *mut c_void,
        address: CUdeviceptr,
    ) {
        devices::all()?;
        let names = inputs(attributes, count as usize)?;
        let places = inputs(data, count as usize)?;
        let memory = find(address);
        for (attribute, place) in names.into_iter().zip(places) {
            let unknown = || default(attribute);
            let value = match &memory {
                Some(memory) => answer(memory, attribute, address).or_else(|_| unknown())?,
                None => unknown()?,
            };
            if !place.is_null() {
                store(place, &value);
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: *const c_void, attribute: c_uint, address: CUdeviceptr) {
        context::current()?;
        let memory = find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        synchronous::mark(memory.start(), input(value.cast::<c_uint>())? != 0);
        Ok(())
    }
}

fn find(address: CUdeviceptr) -> Option<Memory> {
    // This must come before the search in the device's allocations, because mapped memory is in both.
    let found = host::find_with_id(address as usize);
    if let Some((range, id)) = found.filter(|(range, _)| range.kind != HostKind::Created) {
        return Some(Memory::Host(range, id));
    }
    if let Some((device, piece)) = find_allocation(address) {
        return Some(Memory::Device(device, piece));
    }
    if let Some((range, id)) = vmm::host_mapping(address) {
        return Some(Memory::Host(range, id));
    }
    if let Some((piece, device)) = vmm::mapping(address) {
        return Some(Memory::Device(device, piece));
    }
    let (live, symbol, id) = module::variable_at(address)?;
    let (address, size, context) = (symbol.address, symbol.size, live.id);
    Some(Memory::Device(live.device, Piece { address, asked: size, size, context, pool: 0, id }))
}

fn answer(memory: &Memory, attribute: c_uint, address: CUdeviceptr) -> Result<Value, Code> {
    match memory {
        _ if attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => {
            Ok(Value::Int(synchronous::is_marked(memory.start()).into()))
        }
        Memory::Device(device, piece) => of_device(device, piece, attribute, address),
        Memory::Host(range, id) => of_host(range, *id, attribute, address),
    }
}

fn of_device(device: &Device, piece: &Piece, attribute: c_uint, address: CUdeviceptr) -> Result<Value, Code> {
    Ok(match attribute {
        // Memory of a pool does not belong to a context.
        CU_POINTER_ATTRIBUTE_CONTEXT if piece.pool != 0 => Value::Word(0),
        CU_POINTER_ATTRIBUTE_CONTEXT => Value::Word(context::handle_of(piece.context) as u64),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Value::Int(CU_MEMORYTYPE_DEVICE),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Value::Word(address),
        CU_POINTER_ATTRIBUTE_BUFFER_ID => Value::Word(piece.id),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Int(device.ordinal as u32),
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => Value::Word(piece.address),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE | CU_POINTER_ATTRIBUTE_MAPPING_SIZE => Value::Word(piece.asked),
        CU_POINTER_ATTRIBUTE_MAPPED => Value::Int(1),
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => Value::Int(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE),
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => Value::Word(pool::handle_of(piece.pool) as u64),
        CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Value::Word(piece.id),
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => Value::Word(0),
        // NCCL uses this to distinguish memory of cuMemAlloc from mapped memory. For mapped memory it then requests the
        // handle.
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            Value::Int(u32::from(piece.pool == 0 && find_allocation(address).is_some()))
        }
        CU_POINTER_ATTRIBUTE_IS_MANAGED
        | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => Value::Int(0),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

fn of_host(range: &HostRange, id: u64, attribute: c_uint, address: CUdeviceptr) -> Result<Value, Code> {
    let managed = range.kind.is_managed();
    Ok(match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => Value::Word(range.context as u64),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE if managed => Value::Int(CU_MEMORYTYPE_DEVICE),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Value::Int(CU_MEMORYTYPE_HOST),
        CU_POINTER_ATTRIBUTE_IS_MANAGED => Value::Int(managed.into()),
        CU_POINTER_ATTRIBUTE_HOST_POINTER => Value::Word(address),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Value::Word(mapped_address(address).ok_or(CUDA_ERROR_INVALID_VALUE)?),
        CU_POINTER_ATTRIBUTE_BUFFER_ID => Value::Word(id),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Int(range.ordinal as u32),
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Value::Word(range.start as u64),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => Value::Word(range.size as u64),
        CU_POINTER_ATTRIBUTE_MAPPED => Value::Int(1),
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => Value::Int(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE),
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => {
            Value::Int(0)
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

/// Returns the address at which the current context's device accesses memory of the program.
fn mapped_address(address: CUdeviceptr) -> Option<CUdeviceptr> {
    // Such memory has one address, even if no context is current.
    if vmm::host_mapping(address).is_some() {
        return Some(address);
    }
    pinned::known_device_pointer(&*context::current().ok()?, address)
}

/// Returns the value that `cuPointerGetAttributes` stores for memory that CUDA does not know.
fn default(attribute: c_uint) -> Result<Value, Code> {
    Ok(match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT
        | CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | CU_POINTER_ATTRIBUTE_HOST_POINTER
        | CU_POINTER_ATTRIBUTE_BUFFER_ID
        | CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | CU_POINTER_ATTRIBUTE_RANGE_SIZE
        | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
        | CU_POINTER_ATTRIBUTE_MAPPING_SIZE
        | CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        | CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
        | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Value::Word(0),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Int(CU_DEVICE_INVALID as u32),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE..=CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL => Value::Int(0),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

/// Stores a value.
///
/// # Safety
/// `to` is valid for the attribute's type.
unsafe fn store(to: *mut c_void, value: &Value) {
    // SAFETY: as the caller of the exported function vouches.
    unsafe {
        match *value {
            Value::Word(word) => to.cast::<u64>().write_unaligned(word),
            Value::Int(int) => to.cast::<c_int>().write_unaligned(int as c_int),
        }
    }
}
