//! Attributes of streams: hints to a scheduler and to caches that a stream keeps and nothing follows.

use super::entry::stream_entry_points;
use crate::ffi::{In, Out, R};
use crate::streams::stream::Stream;
use driverapi::attributes::*;
use driverapi::errors::*;
use driverapi::types::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A stream by its context and its own number, which default streams have in common.
type Key = (usize, usize, CUlaunchAttributeID);

type Value = [u8; 64];

fn kept() -> MutexGuard<'static, BTreeMap<Key, Value>> {
    static KEPT: Mutex<BTreeMap<Key, Value>> = Mutex::new(BTreeMap::new());
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(stream: &Stream, attribute: CUlaunchAttributeID) -> Key {
    (stream.context.id, stream.id, attribute)
}

/// Forgets the attributes of a stream that is gone.
pub fn forget(stream: &Stream) {
    kept().retain(|(context, id, _), _| (*context, *id) != (stream.context.id, stream.id));
}

/// Returns the value that holds if nothing was set.
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

/// The attributes that streams have.
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
        // SAFETY: every bit pattern is a valid value of bytes.
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
