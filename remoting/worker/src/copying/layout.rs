//! The layout of a packed box of bytes in device memory. Pure.

use crate::driver::Result;
use driverapi::errors::*;
use protocol::Extent;

/// The largest size of a copy in bytes. It keeps every sum in this file within 64 bits.
const MAX: u64 = 1 << 48;

/// A part of a copy that is itself a box. `host` and `device` are offsets from the start of the packed form and of the
/// target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub host: u64,
    pub device: u64,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

impl Piece {
    pub fn bytes(&self) -> u64 {
        self.width * self.height * self.depth
    }

    pub fn is_linear(&self) -> bool {
        self.height == 1 && self.depth == 1
    }
}

/// A checked extent, with as few dimensions as possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub width: u64,
    pub height: u64,
    pub depth: u64,
    pub pitch: u64,
    pub slice: u64,
}

impl Layout {
    /// Checks an extent and computes its layout.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if rows or slices overlap, or if a size exceeds `MAX`.
    pub fn new(e: &Extent) -> Result<Layout> {
        let Extent { width, height, depth, pitch, slice } = *e;
        if width == 0 || height == 0 || depth == 0 {
            return Ok(Layout { width: 0, height: 1, depth: 1, pitch: 0, slice: 0 });
        }
        let product = |a: u64, b: u64| a.checked_mul(b).filter(|p| *p <= MAX).ok_or(CUDA_ERROR_INVALID_VALUE);
        product(product(width, height)?, depth)?;
        let (pitch, slice) = (if height == 1 { width } else { pitch }, if depth == 1 { 0 } else { slice });
        let rows = product(height, pitch)?;
        product(depth, slice)?;
        if pitch < width || (depth > 1 && slice < rows - (pitch - width)) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(match (pitch == width, slice == rows) {
            _ if height == 1 && depth == 1 => Layout::linear(width),
            (true, _) if depth == 1 => Layout::linear(width * height),
            (true, true) => Layout::linear(width * height * depth),
            (true, false) => Layout { width: width * height, height: depth, depth: 1, pitch: slice, slice: 0 },
            (false, true) => Layout { width, height: height * depth, depth: 1, pitch, slice: 0 },
            (false, false) => Layout { width, height, depth, pitch, slice },
        })
    }

    pub fn linear(width: u64) -> Layout {
        Layout { width, height: 1, depth: 1, pitch: width, slice: 0 }
    }

    /// Returns the number of bytes in the packed form.
    pub fn bytes(&self) -> u64 {
        self.width * self.height * self.depth
    }

    /// Returns the number of bytes in device memory from the first to the last byte of the box.
    pub fn span(&self) -> u64 {
        if self.bytes() == 0 { 0 } else { (self.depth - 1) * self.slice + (self.height - 1) * self.pitch + self.width }
    }

    /// Returns the boxes (at most five) that make up `len` bytes of the packed form, starting at `offset`.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if some of these bytes are outside the box.
    pub fn pieces(&self, offset: u64, len: u64) -> Result<Vec<Piece>> {
        let end = offset.checked_add(len).filter(|end| *end <= self.bytes()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (mut at, mut pieces) = (offset, Vec::new());
        while at < end {
            let rest = end - at;
            let (slice_bytes, in_row) = (self.width * self.height, at % self.width);
            let (in_slice, row) = (at % slice_bytes, at % slice_bytes / self.width);
            let device = at / slice_bytes * self.slice + row * self.pitch + in_row;
            let piece = |width, height, depth| Piece { host: at - offset, device, width, height, depth };
            let piece = if in_row != 0 || rest < self.width {
                piece(rest.min(self.width - in_row), 1, 1)
            } else if in_slice != 0 || rest < slice_bytes {
                piece(self.width, (rest / self.width).min(self.height - row), 1)
            } else {
                piece(self.width, self.height, rest / slice_bytes)
            };
            at += piece.bytes();
            pieces.push(piece);
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Converts an offset in the packed form into an offset in device memory, according to the definition of `Extent`.
    fn device_offset(e: &Extent, packed: u64) -> u64 {
        let (x, row) = (packed % e.width, packed / e.width);
        row / e.height * e.slice + row % e.height * e.pitch + x
    }

    #[test]
    fn pieces_cover_exactly_the_bytes_asked_for() {
        for (width, height, depth, gap, rows) in [
            (1, 1, 1, 0, 0),
            (5, 3, 2, 0, 0),
            (5, 3, 2, 2, 0),
            (5, 3, 4, 0, 1),
            (7, 4, 3, 1, 2),
            (4, 1, 6, 3, 1),
            (3, 5, 1, 1, 0),
        ] {
            let pitch = width + gap;
            let extent = Extent { width, height, depth, pitch, slice: pitch * (height + rows) };
            let layout = Layout::new(&extent).unwrap();
            let total = width * height * depth;
            assert_eq!(layout.bytes(), total);
            assert_eq!(layout.span(), device_offset(&extent, total - 1) + 1);
            for offset in 0..=total {
                for len in 0..=total - offset {
                    let pieces = layout.pieces(offset, len).unwrap();
                    assert!(pieces.len() <= 5);
                    let mut next = offset;
                    for p in pieces {
                        assert_eq!(p.host, next - offset);
                        for i in 0..p.bytes() {
                            let (x, row) = (i % p.width, i / p.width);
                            let device = p.device + row / p.height * layout.slice + row % p.height * layout.pitch + x;
                            assert_eq!(device, device_offset(&extent, next + i), "{extent:?} {offset}+{len}");
                        }
                        next += p.bytes();
                    }
                    assert_eq!(next, offset + len);
                }
                assert!(layout.pieces(offset, total - offset + 1).is_err());
            }
        }
    }

    #[test]
    fn impossible_boxes_are_refused() {
        let e = |width, height, depth, pitch, slice| Extent { width, height, depth, pitch, slice };
        for bad in [
            e(5, 2, 1, 4, 0),
            e(5, 2, 2, 5, 9),
            e(u64::MAX, 2, 1, u64::MAX, 0),
            e(1, u64::MAX, u64::MAX, 1, 1),
            e(1, 2, 1, u64::MAX, 0),
            e(1 << 40, 1 << 9, 1, 1 << 40, 0),
        ] {
            assert_eq!(Layout::new(&bad), Err(CUDA_ERROR_INVALID_VALUE), "{bad:?}");
        }
        assert_eq!(Layout::new(&e(0, 9, 9, 0, 0)).unwrap().bytes(), 0);
    }
}
