//! The memory of one device as this process sees it: slabs that the worker mapped, and the pieces handed out of them.
//! Decides where things lie; `device` asks for slabs and gives them back.

use crate::session::{Ranges, mint};
use std::collections::BTreeMap;

/// Pieces start and end at multiples of this, as CUDA's own allocations do.
pub const PIECE_ALIGN: u64 = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub address: u64,
    /// Bytes the program asked for.
    pub asked: u64,
    /// Bytes taken.
    pub size: u64,
    /// The context that allocated it, and the pool if it came from one.
    pub context: u64,
    pub pool: u64,
    /// A number that no other memory of the process gets; 0 for a piece that is not an allocation by itself.
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
    /// Bytes of slabs.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Bytes of pieces, those that wait to be reclaimed included.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes of slabs without a piece.
    pub fn idle(&self) -> u64 {
        self.idle
    }

    /// Hands out a piece of the slabs that are there; `None` if none has room.
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

    /// Removes the piece that starts here, which the program has freed. Its bytes are not reused before
    /// [`Heap::reclaim`].
    pub fn forget(&mut self, address: u64) -> Option<Piece> {
        self.pieces.remove(&address)
    }

    /// Gives the program a forgotten piece again, for other use.
    pub fn hand_out_again(&mut self, piece: Piece) {
        self.pieces.insert(piece.address, piece);
    }

    /// Frees the bytes of a piece that nothing uses any more.
    pub fn reclaim(&mut self, piece: &Piece) {
        let (start, slab) = self.slab_of(piece.address);
        slab.used -= piece.size;
        let bounds = (start, start + slab.size);
        let is_idle = if slab.used == 0 { slab.size } else { 0 };
        self.idle += is_idle;
        self.used -= piece.size;
        self.free.insert(piece.address, piece.size, bounds);
    }

    /// Takes out slabs without a piece, largest first, as long as more than `keep` bytes of such slabs remain.
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

    /// The piece that holds an address.
    pub fn find(&self, address: u64) -> Option<&Piece> {
        let (_, piece) = self.pieces.range(..=address).next_back()?;
        (address - piece.address < piece.size).then_some(piece)
    }

    /// The slab that holds an address, and its size.
    pub fn slab(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, slab) = self.slabs.range(..=address).next_back()?;
        (address - start < slab.size).then_some((start, slab.size))
    }

    /// The starts of the pieces for which `which` holds.
    pub fn select(&self, which: impl Fn(&Piece) -> bool) -> Vec<u64> {
        self.pieces.values().filter(|piece| which(piece)).map(|piece| piece.address).collect()
    }

    /// Every piece lies in a slab: `place` takes them out of slabs only, and `release_idle` leaves slabs with pieces.
    fn slab_of(&mut self, address: u64) -> (u64, &mut Slab) {
        let (&start, slab) = self.slabs.range_mut(..=address).next_back().expect("a piece lies in a slab");
        (start, slab)
    }
}

#[cfg(test)]
#[path = "heap_tests.rs"]
mod tests;
