//! The entry points that query the attributes of an address, such as `cuPointerGetAttribute`.

use super::entry::entry_points;
use super::handles::handle;
use crate::driver::{Driver, driver};
use crate::ffi::{In, Out, R};
use crate::memory::allocations::{Allocation, Kind};
use driverapi::attributes::*;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::types::*;
use std::collections::BTreeSet;
use std::ffi::{c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value with the width that CUDA writes. A boolean has 4 bytes, and some programs rely on this.
enum Value {
    Word(u32),
    Long(u64),
    Pointer(*mut c_void),
}

impl Value {
    fn write(self, out: Out<c_void>) -> R {
        match self {
            Value::Word(value) => Out::at(out.address().cast()).set(value),
            Value::Long(value) => Out::at(out.address().cast()).set(value),
            Value::Pointer(value) => Out::at(out.address().cast()).set(value),
        }
    }
}

fn is_device(kind: Kind) -> bool {
    !kind.is_host()
}

/// Whether the address is in a managed variable, which the host can use.
fn is_variable(driver: &Driver, a: &Allocation, address: u64) -> bool {
    a.kind == Kind::Globals && driver.modules.all().iter().any(|module| module.is_managed(address))
}

fn attribute(driver: &Driver, attribute: CUpointer_attribute, a: &Allocation, address: u64) -> R<Value> {
    let context = if matches!(a.kind, Kind::Pooled { .. } | Kind::Mapped { .. } | Kind::MappedHost { .. }) {
        0
    } else {
        a.context
    };
    Ok(match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => Value::Pointer(handle(context)),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            let device = is_device(a.kind) || a.kind == Kind::Managed;
            Value::Word(if device { CU_MEMORYTYPE_DEVICE } else { CU_MEMORYTYPE_HOST })
        }
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Value::Long(address),
        CU_POINTER_ATTRIBUTE_HOST_POINTER if is_device(a.kind) && !is_variable(driver, a, address) => {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        CU_POINTER_ATTRIBUTE_HOST_POINTER => Value::Long(address),
        CU_POINTER_ATTRIBUTE_BUFFER_ID => Value::Long(a.id),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Word(a.device as u32),
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => Value::Long(a.base),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE | CU_POINTER_ATTRIBUTE_MAPPING_SIZE => Value::Long(a.len),
        CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Value::Long(a.id),
        CU_POINTER_ATTRIBUTE_MAPPED => Value::Word(1),
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => Value::Long(CU_MEM_HANDLE_TYPE_NONE.into()),
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            let mapped = driver.devices.iter().any(|device| device.map.covers(address));
            let readable = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
            Value::Word(if mapped { readable } else { CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE })
        }
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => match a.kind {
            Kind::Pooled { pool } => Value::Pointer(handle(pool)),
            _ => Value::Pointer(handle(0)),
        },
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => Value::Word(u32::from(a.kind == Kind::Device)),
        CU_POINTER_ATTRIBUTE_IS_MANAGED => {
            Value::Word((a.kind == Kind::Managed || is_variable(driver, a, address)).into())
        }
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => Value::Word(synchronous().contains(&a.id).into()),
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => {
            Value::Word(0)
        }
        CU_POINTER_ATTRIBUTE_P2P_TOKENS => return Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

/// Returns the ids of the allocations that the program marked as synchronous. Ids are never reused.
fn synchronous() -> MutexGuard<'static, BTreeSet<u64>> {
    static MARKED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
    MARKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the empty value that `cuPointerGetAttributes` stores for an address that CUDA does not know.
fn nothing(attribute: CUpointer_attribute) -> R<Value> {
    Ok(match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT | CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => Value::Pointer(handle(0)),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Word(CU_DEVICE_INVALID as u32),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | CU_POINTER_ATTRIBUTE_HOST_POINTER
        | CU_POINTER_ATTRIBUTE_BUFFER_ID
        | CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | CU_POINTER_ATTRIBUTE_RANGE_SIZE
        | CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
        | CU_POINTER_ATTRIBUTE_MAPPING_SIZE
        | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
        | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Value::Long(0),
        1..=CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => Value::Word(0),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

entry_points! {
    fn cuPointerGetAttribute(data: Out<c_void>, which: CUpointer_attribute, address: CUdeviceptr) {
        let driver = driver()?;
        let allocation = driver.memory.find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        attribute(driver, which, &allocation, address)?.write(data)
    }

    fn cuPointerGetAttributes(
        count: c_uint, which: In<CUpointer_attribute>, data: In<Out<c_void>>, address: CUdeviceptr,
    ) {
        let driver = driver()?;
        let found = driver.memory.find(address);
        for (which, out) in which.list(count as usize)?.into_iter().zip(data.list(count as usize)?) {
            let value = match &found {
                // Device memory has no host pointer. This list query stores an empty value for it and does not fail.
                Some(a) if which == CU_POINTER_ATTRIBUTE_HOST_POINTER && is_device(a.kind) => {
                    attribute(driver, which, a, address).or_else(|_| nothing(which))?
                }
                Some(allocation) => attribute(driver, which, allocation, address)?,
                None => nothing(which)?,
            };
            value.write(out)?;
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: In<c_uint>, which: CUpointer_attribute, address: CUdeviceptr) {
        let found = driver()?.memory.find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        match which {
            // Nothing to do: each copy that may be asynchronous is finished or captured before its result matters.
            CU_POINTER_ATTRIBUTE_SYNC_MEMOPS if value.get()? != 0 => drop(synchronous().insert(found.id)),
            CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => drop(synchronous().remove(&found.id)),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }
}
