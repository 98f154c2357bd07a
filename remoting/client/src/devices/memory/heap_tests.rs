use super::*;

const MIB: u64 = 1 << 20;

/// A random number generator with a seed, so that a failing run can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

#[test]
fn ranges_join_again_but_not_across_their_bounds() {
    let mut ranges = Ranges::new();
    ranges.insert(0, 1000, (0, 1000));
    let taken: Vec<_> = (0..10).map(|_| ranges.take(100, 1).unwrap()).collect();
    assert_eq!(taken, (0..10).map(|i| i * 100).collect::<Vec<_>>());
    assert_eq!(ranges.take(1, 1), None);
    for start in [300, 100, 200, 0, 900, 500, 700, 600, 800, 400] {
        ranges.insert(start, 100, (0, 1000));
    }
    assert_eq!(ranges.take(1000, 1), Some(0));
    ranges.insert(0, 500, (0, 500));
    ranges.insert(500, 500, (500, 1000));
    assert_eq!(ranges.take(501, 1), None);
}

#[test]
fn best_fit_and_alignment() {
    let mut ranges = Ranges::new();
    ranges.insert(0x100, 0x1000, (0, u64::MAX));
    ranges.insert(0x8000, 0x200, (0, u64::MAX));
    assert_eq!(ranges.take(0x180, 1), Some(0x8000));
    assert_eq!(ranges.take(0x100, 0x1000), Some(0x1000));
    assert!(!ranges.take_at(0x1080, 0x10) && ranges.take_at(0x200, 0x100));
    assert_eq!(ranges.total(), 0x1200 - 0x180 - 0x100 - 0x100);
}

#[test]
fn forgotten_pieces_are_not_reused_before_they_are_reclaimed() {
    let mut heap = Heap::default();
    heap.add_slab(0x10_0000, 4096);
    let a = heap.place(4000, 1, 0).unwrap();
    let piece = heap.forget(a).unwrap();
    assert!(heap.forget(a).is_none(), "a double free is noticed");
    assert_eq!(heap.place(512, 1, 0), None);
    heap.reclaim(&piece);
    assert_eq!(heap.place(512, 1, 0), Some(a));
}

#[test]
fn idle_slabs_are_released_down_to_the_slack() {
    let mut heap = Heap::default();
    for i in 0..4 {
        heap.add_slab(i * 16 * MIB, 16 * MIB);
    }
    let busy = heap.place(16 * MIB, 1, 0).unwrap();
    let released = heap.release_idle(32 * MIB);
    assert_eq!(released.len(), 1);
    assert!(!released.contains(&(busy, 16 * MIB)));
    assert_eq!((heap.mapped(), heap.idle()), (48 * MIB, 32 * MIB));
}

#[test]
fn pieces_never_overlap_whatever_the_order() {
    for seed in 1..40 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        let mut heap = Heap::default();
        let (mut next_slab, mut live, mut waiting) = (1 << 40, Vec::<Piece>::new(), Vec::<Piece>::new());
        for _ in 0..600 {
            match random.next(10) {
                0..=5 => {
                    let magnitude = 4 + random.next(18);
                    let asked = 1 + random.next(1 << magnitude);
                    let address = heap.place(asked, 1, 0).unwrap_or_else(|| {
                        let size = round_up(asked, 2 * MIB).unwrap();
                        heap.add_slab(next_slab, size);
                        next_slab += size;
                        heap.place(asked, 1, 0).unwrap()
                    });
                    let piece = *heap.find(address + asked - 1).unwrap();
                    assert_eq!((piece.address, piece.asked, address % PIECE_ALIGN), (address, asked, 0));
                    for other in live.iter().chain(&waiting) {
                        assert!(
                            piece.address + piece.size <= other.address || other.address + other.size <= piece.address
                        );
                    }
                    live.push(piece);
                }
                6..=7 if !live.is_empty() => {
                    let piece = live.swap_remove(random.next(live.len() as u64) as usize);
                    assert_eq!(heap.forget(piece.address), Some(piece));
                    waiting.push(piece);
                }
                8 => waiting.drain(..).for_each(|piece| heap.reclaim(&piece)),
                _ => {
                    heap.release_idle(random.next(4) * MIB);
                }
            }
            let used: u64 = live.iter().chain(&waiting).map(|piece| piece.size).sum();
            assert_eq!(heap.used(), used);
        }
        live.drain(..).chain(waiting.drain(..)).collect::<Vec<_>>().iter().for_each(|piece| heap.reclaim(piece));
        heap.release_idle(0);
        assert_eq!((heap.mapped(), heap.used()), (0, 0));
    }
}
