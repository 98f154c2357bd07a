//! Attributes of streams. They are hints to a driver's scheduler and caches; a stream keeps them, nothing follows them.

use crate::call::{Code, DefaultStream, input, write};
use crate::session::lock;
use crate::stream::{self, Target};
use crate::stream_exports;
use driverapi::attributes::{
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, CU_LAUNCH_ATTRIBUTE_PRIORITY, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
};
use driverapi::errors::*;
use driverapi::types::{CUlaunchAttributeValue, CUstream};
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::Mutex;

type Bytes = [u8; 64];

/// By lane and attribute.
static VALUES: Mutex<BTreeMap<(u64, c_uint), Bytes>> = Mutex::new(BTreeMap::new());

stream_exports! {
    fn cuStreamGetAttribute | cuStreamGetAttribute_ptsz(
        stream: CUstream,
        attribute: c_uint,
        value: *mut CUlaunchAttributeValue,
    ) |default| {
        let target = stream::resolve(stream, default)?;
        check(attribute)?;
        write(value, CUlaunchAttributeValue { pad: get(&target, attribute) })
    }

    fn cuStreamSetAttribute | cuStreamSetAttribute_ptsz(
        stream: CUstream,
        attribute: c_uint,
        value: *const CUlaunchAttributeValue,
    ) |default| {
        let target = stream::resolve(stream, default)?;
        check(attribute)?;
        let bytes = input(value)?.pad;
        lock(&VALUES).insert((target.lane, attribute), bytes);
        Ok(())
    }

    fn cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz(to: CUstream, from: CUstream) |default| {
        copy(to, from, default)
    }
}

fn check(attribute: c_uint) -> Result<(), Code> {
    let known = matches!(
        attribute,
        CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
            | CU_LAUNCH_ATTRIBUTE_PRIORITY
            | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
            | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
    );
    if known { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

fn get(target: &Target, attribute: c_uint) -> Bytes {
    if let Some(bytes) = lock(&VALUES).get(&(target.lane, attribute)) {
        return *bytes;
    }
    let mut bytes = [0; 64];
    let initial: u32 = match attribute {
        CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => 1,
        CU_LAUNCH_ATTRIBUTE_PRIORITY => target.priority as u32,
        _ => 0,
    };
    bytes[..4].copy_from_slice(&initial.to_le_bytes());
    bytes
}

fn copy(to: CUstream, from: CUstream, default: DefaultStream) -> Result<(), Code> {
    let (to, from) = (stream::resolve(to, default)?, stream::resolve(from, default)?);
    let mut values = lock(&VALUES);
    let copied: Vec<_> = values.range((from.lane, 0)..=(from.lane, c_uint::MAX)).map(|(k, v)| (k.1, *v)).collect();
    values.extend(copied.into_iter().map(|(attribute, bytes)| ((to.lane, attribute), bytes)));
    Ok(())
}
