//! Copies and fills: the ranges that they access, and checks of these ranges.

use crate::check::{self, Operation};
use crate::engine::watch::{Access, Watch};
use crate::ffi::R;
use crate::memory::allocations::{Kind, Memory};
use crate::memory::arena::{self, Pattern};
use driverapi::errors::CUDA_ERROR_INVALID_VALUE;

/// The kind of memory that a copy function states for an address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Host,
    Device,
    /// The address determines the kind of memory.
    Unified,
}

/// One end of a copy: rows of bytes. `pitch` is the distance between rows and `slice` the distance between slices, in
/// bytes.
#[derive(Clone, Copy)]
pub struct End {
    pub place: Place,
    pub address: u64,
    pub pitch: u64,
    pub slice: u64,
}

impl End {
    pub fn line(place: Place, address: u64) -> End {
        End { place, address, pitch: 0, slice: 0 }
    }

    fn check(&self, extent: Extent, access: Access, checked: &Operation) {
        for z in 0..extent.depth {
            for y in 0..extent.height {
                checked.touch(access, self.address + z * self.slice + y * self.pitch, extent.width);
            }
        }
    }
}

#[derive(Clone, Copy)]
pub struct Extent {
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

impl Extent {
    pub fn line(width: u64) -> Extent {
        Extent { width, height: 1, depth: 1 }
    }

    pub fn is_empty(self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    pub fn bytes(self) -> Option<u64> {
        self.width.checked_mul(self.height)?.checked_mul(self.depth).filter(|&n| n <= isize::MAX as u64)
    }
}

/// The kind of memory at one end of a copy, found from the address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Device,
    Pinned,
    /// Memory that the driver does not know. The program may free or change it after the call.
    Pageable,
}

#[derive(Clone, Copy)]
pub struct Copy {
    pub dst: End,
    pub src: End,
    pub extent: Extent,
}

/// Returns the number of bytes from the first byte to the last byte that the copy accesses, or `None` if it overflows.
fn span(end: &End, extent: Extent) -> Option<u64> {
    let rows = end.pitch.checked_mul(extent.height - 1)?;
    end.slice.checked_mul(extent.depth - 1)?.checked_add(rows)?.checked_add(extent.width)
}

pub fn locate(memory: &Memory, end: &End, extent: Extent) -> R<Found> {
    let len = span(end, extent).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let pitch_fits = (extent.height == 1 || end.pitch >= extent.width)
        && (extent.depth == 1 || end.slice >= end.pitch.saturating_mul(extent.height));
    if end.address == 0 || !pitch_fits {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let known = memory.find(end.address);
    match (&known, end.place) {
        // With unified addressing the address determines the kind, even if the function names host memory.
        (Some(allocation), _) => match memory.is_valid(end.address, len) {
            true if allocation.kind.is_host() => Ok(Found::Pinned),
            true => Ok(Found::Device),
            // A range of host memory may be longer than its registered part.
            false if matches!(allocation.kind, Kind::Registered { .. }) && end.place != Place::Device => {
                Ok(Found::Pageable)
            }
            false => Err(CUDA_ERROR_INVALID_VALUE),
        },
        (None, Place::Device) => Err(CUDA_ERROR_INVALID_VALUE),
        (None, _) if memory.is_device_address(end.address) => Err(CUDA_ERROR_INVALID_VALUE),
        (None, _) => Ok(Found::Pageable),
    }
}

impl Copy {
    /// Does the copy. If `forgets` is set, a null GPU discards the destination's contents instead.
    pub fn run(&self, forgets: bool) {
        if forgets { self.forget_target() } else { self.execute() }
    }

    pub fn execute(&self) {
        if let Some(checked) = check::current() {
            self.check(&checked);
        }
        let Extent { width, height, depth } = self.extent;
        for z in 0..depth {
            for y in 0..height {
                let at = |end: &End| end.address + z * end.slice + y * end.pitch;
                arena::copy(at(&self.dst), at(&self.src), width);
            }
        }
    }

    fn check(&self, checked: &Operation) {
        checked.name("a copy");
        self.src.check(self.extent, Access::Read, checked);
        self.dst.check(self.extent, Access::Write, checked);
    }

    fn forget_target(&self) {
        let Extent { width, height, depth } = self.extent;
        let dst = &self.dst;
        // Copy rows without gaps as one range, because a system call for each row would be slow.
        if (height == 1 || dst.pitch == width) && (depth == 1 || dst.slice == width * height) {
            return arena::forget(dst.address, width * height * depth);
        }
        for row in 0..height * depth {
            arena::forget(dst.address + row / height * dst.slice + row % height * dst.pitch, width);
        }
    }

    /// Copies the source to a private buffer. Returns the same copy from that buffer, and the buffer.
    pub fn stage(self) -> R<(Copy, Vec<u8>)> {
        let Extent { width, height, .. } = self.extent;
        let size = self.extent.bytes().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let mut bytes = vec![0u8; size as usize];
        let packed = |address| End { place: Place::Host, address, pitch: width, slice: width * height };
        let address = bytes.as_mut_ptr() as u64;
        Copy { dst: packed(address), ..self }.execute();
        Ok((Copy { src: packed(address), ..self }, bytes))
    }
}

/// A fill: rows that get a pattern.
#[derive(Clone, Copy)]
pub struct Fill {
    pub address: u64,
    pub pitch: u64,
    pub pattern: Pattern,
    /// The number of elements in a row.
    pub width: u64,
    pub height: u64,
    /// Whether a null GPU discards the range instead of writing it.
    pub forgets: bool,
    /// Whether this is a large fill with zeros that overwrites only resident pages.
    pub clears: bool,
}

impl Fill {
    pub fn run(&self) {
        if let Some(checked) = check::current() {
            self.check(&checked);
        }
        for y in 0..self.height {
            let row = self.address + y * self.pitch;
            let len = self.width * self.pattern.size();
            if self.forgets {
                arena::forget(row, len);
            } else if self.clears {
                arena::clear(row, len);
            } else {
                arena::set(row, self.pattern, self.width);
            }
        }
    }

    fn check(&self, checked: &Operation) {
        checked.name("a fill");
        for y in 0..self.height {
            checked.touch(Access::Write, self.address + y * self.pitch, self.width * self.pattern.size());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_ends_with_the_last_row_and_does_not_overflow() {
        let end = End { place: Place::Device, address: 1, pitch: 16, slice: 64 };
        assert_eq!(span(&end, Extent { width: 4, height: 3, depth: 2 }), Some(64 + 32 + 4));
        assert_eq!(span(&end, Extent { width: 4, height: u64::MAX, depth: 2 }), None);
    }

    #[test]
    fn staging_packs_the_rows() {
        let source: Vec<u8> = (0..12).collect();
        let mut target = vec![0u8; 12];
        let end = |address: *const u8, pitch| End { place: Place::Host, address: address as u64, pitch, slice: 0 };
        let copy = Copy {
            dst: end(target.as_mut_ptr(), 6),
            src: end(source.as_ptr(), 4),
            extent: Extent { width: 2, height: 2, depth: 1 },
        };
        let (staged, bytes) = copy.stage().unwrap();
        assert_eq!(bytes, [0, 1, 4, 5]);
        staged.execute();
        assert_eq!(target, [0, 1, 0, 0, 0, 0, 4, 5, 0, 0, 0, 0]);
    }
}
