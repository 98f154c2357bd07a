//! Lookup of the stream for a handle. Many CUDA functions exist once for each kind of default stream.

use super::handles::id;
use crate::driver::{self, driver};
use crate::ffi::R;
use crate::streams::stream::Stream;
use driverapi::constants::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
use driverapi::errors::*;
use driverapi::types::CUstream;
use std::ptr;

/// The default stream that a null handle means.
#[derive(Clone, Copy)]
pub enum DefaultStream {
    Legacy,
    PerThread,
}

impl DefaultStream {
    /// Returns the stream of a handle. Fails if its context has faulted.
    pub fn resolve(self, handle: CUstream) -> R<Stream> {
        let stream = self.resolve_even_if_faulted(handle)?;
        stream.context.check()?;
        Ok(stream)
    }

    /// Returns the stream of a handle, even if its context has faulted. A default stream belongs to the current
    /// context. Other streams have their own context, so the calling thread needs none.
    pub fn resolve_even_if_faulted(self, handle: CUstream) -> R<Stream> {
        let current = driver::current_even_if_faulted;
        match (handle, self) {
            (CU_STREAM_LEGACY, _) => Ok(Stream::legacy(current()?)),
            (CU_STREAM_PER_THREAD, _) => Ok(Stream::per_thread(current()?)),
            (handle, DefaultStream::Legacy) if handle.is_null() => Ok(Stream::legacy(current()?)),
            (handle, DefaultStream::PerThread) if handle.is_null() => Ok(Stream::per_thread(current()?)),
            (handle, _) => Ok((*driver()?.streams.get(id(handle)).ok_or(CUDA_ERROR_INVALID_HANDLE)?).clone()),
        }
    }

    pub fn stream(self) -> R<Stream> {
        self.resolve(ptr::null_mut())
    }
}
