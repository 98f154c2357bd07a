//! Attributes of streams. They are hints to a driver's scheduler and caches. The client stores them, but they have no
//! effect.

use crate::Code;
use crate::boundary::{input, write};
use crate::objects::stream::{self, AttributeValue, Target};
use crate::stream_exports;
use driverapi::attributes::{
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, CU_LAUNCH_ATTRIBUTE_PRIORITY, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
};
use driverapi::errors::*;
use driverapi::types::{CUlaunchAttributeValue, CUstream};
use std::ffi::c_uint;

stream_exports! {
    fn cuStreamGetAttribute | cuStreamGetAttribute_ptsz(
        stream: CUstream,
        attribute: c_uint,
        value: *mut CUlaunchAttributeValue,
    ) |default| {
        let target = stream::find(stream, default)?;
        check(attribute)?;
        write(value, CUlaunchAttributeValue { pad: get(&target, attribute) })
    }

    fn cuStreamSetAttribute | cuStreamSetAttribute_ptsz(
        stream: CUstream,
        attribute: c_uint,
        value: *const CUlaunchAttributeValue,
    ) |default| {
        let target = stream::find(stream, default)?;
        check(attribute)?;
        target.set_attribute(attribute, input(value)?.pad);
        Ok(())
    }

    fn cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz(to: CUstream, from: CUstream) |default| {
        stream::find(to, default)?.copy_attributes(&stream::find(from, default)?);
        Ok(())
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

/// Returns the attribute's value, or its default if it was never set.
fn get(target: &Target, attribute: c_uint) -> AttributeValue {
    target.attribute(attribute).unwrap_or_else(|| {
        let mut value = [0; 64];
        let initial: u32 = match attribute {
            CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => 1,
            CU_LAUNCH_ATTRIBUTE_PRIORITY => target.priority as u32,
            _ => 0,
        };
        value[..4].copy_from_slice(&initial.to_le_bytes());
        value
    })
}
