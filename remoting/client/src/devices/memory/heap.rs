//! The memory of one device from the view of this process: slabs that the worker mapped, and the pieces that are
//! allocated from them. It only decides where pieces lie; `allocate` requests and returns slabs.

use crate::session::{Ranges, mint};
use std::collections::BTreeMap;

/// The alignment in bytes of the start and end of each piece, the same as in CUDA.
pub const PIECE_ALIGN: u64 = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub address: u64,
    /// The number of bytes that the program requested.
    pub asked: u64,
    /// The number of bytes that the piece occupies.
    pub size: u64,
    /// The ids of the context that allocated it, and of its pool (0 for none).
    pub context: u64,
    pub pool: u64,
    /// An id that is unique for all memory of the process. It is 0 for a piece that is not an allocation by itself.
    pub id: u64,
}

#[derive(Debug)]
struct Slab {
    size: u64,
    used: u64,
}

#[derive(Debug, Default)]
pub struct Heap {
    slabs: BTreeMap<u64, Slab>,
    pieces: BTreeMap<u64, Piece>,
    free: Ranges,
    mapped: u64,
    used: u64,
    idle: u64,
}

pub fn round_up(size: u64, to: u64) -> Option<u64> {
    size.checked_next_multiple_of(to)
}

impl Heap {
    /// Returns the number of bytes of all slabs.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Returns the number of bytes of all pieces, including freed pieces that are not reclaimed yet.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Returns the number of bytes of slabs without a piece.
    pub fn idle(&self) -> u64 {
        self.idle
    }

    /// Allocates a piece from the existing slabs, and returns its address. Returns `None` if no slab has room.
    pub fn place(&mut self, asked: u64, context: u64, pool: u64) -> Option<u64> {
        let size = round_up(asked, PIECE_ALIGN)?;
        let address = self.free.take(size, PIECE_ALIGN)?;
        let (_, slab) = self.slab_of(address);
        let was_idle = if slab.used == 0 { slab.size } else { 0 };
        slab.used += size;
        self.idle -= was_idle;
        self.used += size;
        self.pieces.insert(address, Piece { address, asked, size, context, pool, id: mint() });
        Some(address)
    }

    pub fn add_slab(&mut self, start: u64, size: u64) {
        self.slabs.insert(start, Slab { size, used: 0 });
        self.mapped += size;
        self.idle += size;
        self.free.insert(start, size, (start, start + size));
    }

    /// Removes the piece that starts at `address` and that the program has freed. Its bytes are not reused before
    /// [`Heap::reclaim`].
    pub fn forget(&mut self, address: u64) -> Option<Piece> {
        self.pieces.remove(&address)
    }

    /// Makes a removed piece an allocation again, because the program reuses its memory.
    pub fn hand_out_again(&mut self, piece: Piece) {
        self.pieces.insert(piece.address, piece);
    }

    /// Frees the bytes of a removed piece that no work uses any more.
    pub fn reclaim(&mut self, piece: &Piece) {
        let (start, slab) = self.slab_of(piece.address);
        slab.used -= piece.size;
        let bounds = (start, start + slab.size);
        let is_idle = if slab.used == 0 { slab.size } else { 0 };
        self.idle += is_idle;
        self.used -= piece.size;
        self.free.insert(piece.address, piece.size, bounds);
    }

    /// Removes slabs without a piece, the largest first, while more than `keep` bytes of them remain. Returns the
    /// address and size of each.
    pub fn release_idle(&mut self, keep: u64) -> Vec<(u64, u64)> {
        let mut idle: Vec<_> =
            self.slabs.iter().filter(|(_, s)| s.used == 0).map(|(&start, s)| (s.size, start)).collect();
        idle.sort_unstable();
        let mut released = Vec::new();
        while self.idle > keep
            && let Some((size, start)) = idle.pop()
        {
            self.slabs.remove(&start);
            self.free.take_at(start, size);
            self.mapped -= size;
            self.idle -= size;
            released.push((start, size));
        }
        released
    }

    /// Returns the piece that contains an address.
    pub fn find(&self, address: u64) -> Option<&Piece> {
        let (_, piece) = self.pieces.range(..=address).next_back()?;
        (address - piece.address < piece.size).then_some(piece)
    }

    /// Returns the address and size of the slab that contains an address.
    pub fn slab(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, slab) = self.slabs.range(..=address).next_back()?;
        (address - start < slab.size).then_some((start, slab.size))
    }

    /// Returns the addresses of the pieces for which `which` returns true.
    pub fn select(&self, which: impl Fn(&Piece) -> bool) -> Vec<u64> {
        self.pieces.values().filter(|piece| which(piece)).map(|piece| piece.address).collect()
    }

    /// Returns the slab of a piece. Each piece has one: `place` allocates only from slabs, and `release_idle` keeps
    /// slabs with pieces.
    fn slab_of(&mut self, address: u64) -> (u64, &mut Slab) {
        let (&start, slab) = self.slabs.range_mut(..=address).next_back().expect("a piece lies in a slab");
        (start, slab)
    }
}

#[cfg(test)]
#[path = "heap_tests.rs"]
mod tests;
