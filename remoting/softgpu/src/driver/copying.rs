//! Execution of copies and fills: at once, or in stream order.

use super::performing::How;
use super::state::Driver;
use crate::ffi::R;
use crate::memory::copy::{Copy, End, Extent, Fill, Found, Place, locate};
use crate::streams::stream::Stream;
use crate::work::Work;
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;
use std::time::Duration;

/// Whether the call may return before the copy or fill is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Sync,
    Async,
}

/// The maximum number of bytes that a null GPU really writes in a fill or a copy within device memory. A longer range
/// is discarded instead: it then reads as zeros and uses no memory of the host.
const KEPT_BY_NULL: u64 = 1 << 20;
/// The minimum size of a zero fill that skips pages which were never written. A worker zeroes all new memory, and also
/// clears a process's memory before the next process gets it. Such a fill then takes some milliseconds, as on a GPU.
const MANY_ZEROS: u64 = 64 << 20;

impl Driver {
    /// Whether this is a null GPU and `bytes` is too many for it to write.
    fn forgets(&self, bytes: Option<u64>) -> bool {
        self.model().null && bytes.is_none_or(|bytes| bytes > KEPT_BY_NULL)
    }

    /// Checks a copy of a graph. Returns true if a null GPU must discard the destination instead of writing it.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for addresses that are invalid for a copy.
    pub fn check_copy(&self, copy: &Copy) -> R<bool> {
        if copy.extent.is_empty() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let dst = locate(&self.memory, &copy.dst, copy.extent)?;
        let src = locate(&self.memory, &copy.src, copy.extent)?;
        Ok(dst == Found::Device && src == Found::Device && self.forgets(copy.extent.bytes()))
    }

    /// Checks a fill, and returns it with the flags that say how this GPU executes it.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for addresses that are invalid for a fill.
    pub fn check_fill(&self, fill: Fill) -> R<Fill> {
        Ok(self.locate_fill(fill)?.0)
    }

    fn locate_fill(&self, fill: Fill) -> R<(Fill, Found)> {
        let Fill { address, pitch, pattern, width, height, .. } = fill;
        let bytes = width.checked_mul(pattern.size()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let extent = Extent { width: bytes, height, depth: 1 };
        let found = locate(&self.memory, &End { pitch, ..End::line(Place::Device, address) }, extent)?;
        if !address.is_multiple_of(pattern.size()) || height > 1 && !pitch.is_multiple_of(pattern.size()) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let clears = found == Found::Device && height == 1 && pattern.is_zero() && bytes >= MANY_ZEROS;
        Ok((Fill { forgets: self.forgets(extent.bytes()), clears, ..fill }, found))
    }

    pub fn copy(&self, copy: Copy, mode: Mode, stream: &Stream) -> R {
        if copy.extent.is_empty() {
            return Ok(());
        }
        let dst = locate(&self.memory, &copy.dst, copy.extent)?;
        let src = locate(&self.memory, &copy.src, copy.extent)?;
        let within_device = dst == Found::Device && src == Found::Device;
        let within_host = dst != Found::Device && src != Found::Device;
        let forgets = within_device && self.forgets(copy.extent.bytes());
        if mode == Mode::Sync {
            self.check_waiting_call(stream)?;
        } else if self.capture(stream, || Work::Copy { copy, forgets })? {
            return Ok(());
        }
        // A synchronous copy whose function names host memory is complete when it returns, even if the address is a
        // device's.
        let as_host = [copy.dst.place, copy.src.place].contains(&Place::Host);
        if dst == Found::Pageable || within_host || mode == Mode::Sync && (!within_device || as_host) {
            return stream.run(move || {
                copy.run(forgets);
                Ok(())
            });
        }
        if src == Found::Pageable {
            let (copy, bytes) = copy.stage()?;
            return stream
                .start(move || {
                    copy.execute();
                    drop(bytes);
                    Ok(())
                })
                .map(drop);
        }
        self.perform(Work::Copy { copy, forgets }, How::AtOnce, stream).map(drop)
    }

    /// Fills rows with a pattern. A synchronous fill of page-locked memory is complete when the call returns, as CUDA
    /// documents ("API synchronization behavior" of the driver API).
    pub fn set(&self, fill: Fill, mode: Mode, stream: &Stream) -> R {
        if fill.width == 0 || fill.height == 0 {
            return Ok(());
        }
        let (fill, found) = self.locate_fill(fill)?;
        if mode == Mode::Sync {
            self.check_waiting_call(stream)?;
        }
        let waits = Duration::from_micros(self.config.profile.fill_micros);
        if mode == Mode::Async && !waits.is_zero() {
            if self.capture(stream, || Work::Fill(fill))? {
                return Ok(());
            }
            let fill = move || {
                std::thread::sleep(waits);
                Work::Fill(fill).run()
            };
            return stream.enqueue(fill).map(drop);
        }
        match (mode, found) {
            (Mode::Sync, Found::Pinned) => stream.run(move || Work::Fill(fill).run()),
            _ => self.perform(Work::Fill(fill), How::AtOnce, stream).map(drop),
        }
    }
}
