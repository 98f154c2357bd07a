//! The entry points for stream attributes. The attributes are hints for a scheduler and caches. They are stored but
//! have no effect.

use super::entry::stream_entry_points;
use crate::ffi::{In, Out, R};
use crate::streams::stream::Stream;
use driverapi::attributes::*;
use driverapi::errors::*;
use driverapi::types::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The key of an attribute: the context's id, the stream's number in it and the attribute.
type Key = (usize, usize, CUlaunchAttributeID);

type Value = [u8; 64];

fn kept() -> MutexGuard<'static, BTreeMap<Key, Value>> {
    static KEPT: Mutex<BTreeMap<Key, Value>> = Mutex::new(BTreeMap::new());
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(stream: &Stream, attribute: CUlaunchAttributeID) -> Key {
    (stream.context.id, stream.id, attribute)
}

/// Removes the attributes of a destroyed stream.
pub fn forget(stream: &Stream) {
    kept().retain(|(context, id, _), _| (*context, *id) != (stream.context.id, stream.id));
}

/// Returns an attribute's default value.
fn initial(stream: &Stream, attribute: CUlaunchAttributeID) -> Value {
    let number = match attribute {
        CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => CU_SYNC_POLICY_AUTO,
        CU_LAUNCH_ATTRIBUTE_PRIORITY => stream.priority,
        _ => 0,
    };
    let mut value = [0; 64];
    value[..4].copy_from_slice(&number.to_le_bytes());
    value
}

const CU_SYNC_POLICY_AUTO: i32 = 1;

/// Checks that streams have this attribute.
fn check(attribute: CUlaunchAttributeID) -> R {
    match attribute {
        CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        | CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
        | CU_LAUNCH_ATTRIBUTE_PRIORITY
        | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
        | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN => Ok(()),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

stream_entry_points! { default;
    fn cuStreamGetAttribute / cuStreamGetAttribute_ptsz(
        stream: CUstream, attribute: CUlaunchAttributeID, value: Out<CUlaunchAttributeValue>,
    ) {
        let stream = default.resolve(stream)?;
        check(attribute)?;
        let set = kept().get(&key(&stream, attribute)).copied();
        value.set(CUlaunchAttributeValue { pad: set.unwrap_or_else(|| initial(&stream, attribute)) })
    }

    fn cuStreamSetAttribute / cuStreamSetAttribute_ptsz(
        stream: CUstream, attribute: CUlaunchAttributeID, value: In<CUlaunchAttributeValue>,
    ) {
        let stream = default.resolve(stream)?;
        check(attribute)?;
        // SAFETY: `pad` is a byte array, and every bit pattern is valid for it.
        let value = unsafe { value.get()?.pad };
        kept().insert(key(&stream, attribute), value);
        Ok(())
    }

    fn cuStreamCopyAttributes / cuStreamCopyAttributes_ptsz(target: CUstream, source: CUstream) {
        let (target, source) = (default.resolve(target)?, default.resolve(source)?);
        let mut kept = kept();
        let set: Vec<_> = kept.range(key(&source, 0)..=key(&source, u32::MAX)).map(|((_, _, a), v)| (*a, *v)).collect();
        kept.extend(set.into_iter().map(|(attribute, value)| (key(&target, attribute), value)));
        Ok(())
    }
}
