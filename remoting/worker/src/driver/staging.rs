//! Page-locked buffers that copies pass through, in a pool for each context.
//!
//! A copy from pageable memory may block until the stream reaches it, and an allocation of page-locked memory may block
//! too. Neither may happen on the thread that feeds the GPU. Therefore all copies use buffers of this pool, which
//! helper threads allocate.

use super::{Driver, Handle, Result};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The room in a buffer for a frame's fixed fields, which precede its bytes.
const FIELDS: usize = 4 << 10;
pub const SMALL: usize = (64 << 10) + FIELDS;
pub const LARGE: usize = protocol::BULK_CHUNK + FIELDS;

/// Limit in bytes on the page-locked memory of one context: the send window, and room for copies to the host.
pub const LIMIT: usize = protocol::SEND_WINDOW as usize + 16 * LARGE;

#[derive(Debug, Default)]
struct Inner {
    small: Vec<Handle>,
    large: Vec<Handle>,
    lent: usize,
    bytes: usize,
    growing: bool,
    closed: bool,
}

/// A number of buffers that a helper allocates for a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growth {
    pub size: usize,
    pub count: usize,
}

/// A pool of page-locked buffers. It is reference-counted because threads of stripes hold buffers too.
#[derive(Debug, Clone, Default)]
pub struct Pool(Arc<Mutex<Inner>>);

impl Pool {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a buffer of at least `len` bytes. Returns `None` if no such buffer is free.
    pub fn take(&self, len: usize) -> Option<Buffer> {
        let mut inner = self.inner();
        if inner.closed {
            return None;
        }
        let (memory, capacity) = match len {
            0..=SMALL => match inner.small.pop() {
                Some(memory) => (memory, SMALL),
                None => (inner.large.pop()?, LARGE),
            },
            _ => (inner.large.pop()?, LARGE),
        };
        if len > capacity {
            inner.large.push(memory);
            return None;
        }
        inner.lent += 1;
        Some(Buffer { memory, capacity, len, pool: self.clone() })
    }

    /// Returns the size of all buffers in bytes, in use or not.
    pub fn bytes(&self) -> u64 {
        self.inner().bytes as u64
    }

    /// Returns the growth that a pool needs after `take` found no buffer. Returns `None` if the pool is already
    /// growing, or if the growth would exceed `room` or the limit.
    pub fn grow(&self, len: usize, room: u64) -> Option<Growth> {
        let mut inner = self.inner();
        let growth = match len {
            0..=SMALL => Growth { size: SMALL, count: 32 },
            _ => Growth { size: LARGE, count: 4 },
        };
        let more = growth.size * growth.count;
        if inner.growing || inner.closed || inner.bytes + more > LIMIT || more as u64 > room {
            return None;
        }
        inner.growing = true;
        Some(growth)
    }

    pub fn add(&self, size: usize, buffers: Vec<Handle>) {
        let mut inner = self.inner();
        inner.growing = false;
        inner.bytes += size * buffers.len();
        if size == SMALL { inner.small.extend(buffers) } else { inner.large.extend(buffers) }
    }

    /// Closes the pool. Returns all of its memory, or `None` while some of it is in use or being allocated.
    pub fn close(&self) -> Option<Vec<Handle>> {
        let mut inner = self.inner();
        inner.closed = true;
        if inner.lent > 0 || inner.growing {
            return None;
        }
        let mut all = std::mem::take(&mut inner.small);
        all.append(&mut inner.large);
        Some(all)
    }
}

/// A piece of page-locked memory with one owner. When it is dropped, the memory returns to the pool.
#[derive(Debug)]
pub struct Buffer {
    memory: Handle,
    capacity: usize,
    len: usize,
    pool: Pool,
}

impl Buffer {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: `memory` is `capacity >= len` bytes of initialised page-locked memory that only this buffer owns. It
        // is not read while a copy into it is pending (`completer` keeps the buffer until then).
        unsafe { std::slice::from_raw_parts(self.memory.raw().cast::<u8>(), self.len) }.get(range).unwrap_or_default()
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`. `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.memory.raw().cast::<u8>(), self.len) }
    }

    /// Returns the driver's address of the byte at `offset`, or `None` if fewer than `len` bytes follow it.
    pub fn address(&self, offset: usize, len: usize) -> Option<Handle> {
        (offset.checked_add(len)? <= self.len).then(|| Handle(self.memory.0 + offset))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut inner = self.pool.inner();
        inner.lent -= 1;
        if self.capacity == SMALL { inner.small.push(self.memory) } else { inner.large.push(self.memory) }
    }
}

/// Page-locked memory of a helper thread that belongs to no pool. [`Scratch::free`] must be called to free it.
pub struct Scratch {
    memory: Handle,
    len: usize,
}

impl Scratch {
    /// Allocates `len` bytes. The context must be current.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(driver: &Driver, len: usize) -> Result<Scratch> {
        Ok(Scratch { memory: driver.host_alloc(len)?, len })
    }

    /// Returns the address for the driver. While a copy of the driver is pending, `bytes` must not be called.
    pub fn handle(&self) -> Handle {
        self.memory
    }

    /// Returns the first `len` bytes, or all bytes if there are fewer.
    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: `memory` is `self.len` bytes of page-locked memory, which the driver has initialised and only this
        // value has. `&mut self` makes the access unique, and no copy of the driver is pending (`Scratch::handle`).
        unsafe { std::slice::from_raw_parts_mut(self.memory.raw().cast::<u8>(), len.min(self.len)) }
    }

    /// Frees the memory. The context must be current.
    ///
    /// # Errors
    /// The driver's error.
    pub fn free(self, driver: &Driver) -> Result<()> {
        driver.host_free(self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool_with(size: usize, count: usize, memory: &mut Vec<u8>) -> Pool {
        *memory = vec![0; size * count];
        let base = memory.as_mut_ptr().expose_provenance();
        let pool = Pool::default();
        pool.add(size, (0..count).map(|i| Handle(base + i * size)).collect());
        pool
    }

    #[test]
    fn buffers_return_when_dropped() {
        let mut memory = Vec::new();
        let pool = pool_with(SMALL, 1, &mut memory);
        let mut buffer = pool.take(3).unwrap();
        buffer.bytes_mut().copy_from_slice(b"abc");
        assert_eq!(buffer.bytes(1..3), b"bc");
        assert!(buffer.bytes(1..4).is_empty() && buffer.address(1, 3).is_none());
        assert!(pool.take(1).is_none());
        drop(buffer);
        assert!(pool.take(1).is_some());
    }

    #[test]
    fn a_pool_closes_when_nothing_is_lent() {
        let mut memory = Vec::new();
        let pool = pool_with(SMALL, 2, &mut memory);
        let buffer = pool.take(1).unwrap();
        assert_eq!(pool.close(), None);
        assert!(pool.take(1).is_none(), "closed");
        drop(buffer);
        assert_eq!(pool.close().unwrap().len(), 2);
    }

    #[test]
    fn growth_is_asked_once_and_bounded() {
        let pool = Pool::default();
        let mut asked = 0;
        while let Some(growth) = pool.grow(LARGE, u64::MAX) {
            assert_eq!(pool.grow(LARGE, u64::MAX), None, "one at a time");
            asked += growth.size * growth.count;
            pool.add(growth.size, vec![Handle::NULL; growth.count]);
        }
        assert_eq!(Pool::default().grow(LARGE, LARGE as u64), None, "no room");
        assert!(asked <= LIMIT && asked >= protocol::SEND_WINDOW as usize);
    }

    #[test]
    fn nothing_longer_than_the_largest_buffer_is_lent() {
        let mut memory = Vec::new();
        let pool = pool_with(LARGE, 1, &mut memory);
        assert!(pool.take(LARGE + 1).is_none());
        assert!(pool.take(LARGE).is_some());
    }
}
