//! Mutates seeds deterministically: the same number and seeds always give the same input.

/// Values at which sizes and counts often overflow.
const EDGES: [u64; 10] = [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX];

/// The maximum size in bytes of a mutated input.
const LONGEST: usize = 1 << 16;

pub struct Mutator<'s> {
    seeds: &'s [Vec<u8>],
    state: u64,
}

impl<'s> Mutator<'s> {
    /// Creates the mutator that makes input `number` from the seeds.
    ///
    /// # Panics
    /// If there are no seeds.
    pub fn new(seeds: &'s [Vec<u8>], number: u64) -> Self {
        assert!(!seeds.is_empty());
        // SplitMix64 of the number, so that consecutive numbers give unrelated states. The state is never 0.
        let mut state = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Mutator { seeds, state: (state ^ state >> 31) | 1 }
    }

    /// Returns a seed with one to six random changes, cut to `LONGEST` bytes.
    pub fn input(mut self) -> Vec<u8> {
        let mut bytes = self.seed().to_vec();
        for _ in 0..=self.below(6) {
            self.change(&mut bytes);
        }
        bytes.truncate(LONGEST);
        bytes
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit.max(1)
    }

    fn seed(&mut self) -> &'s [u8] {
        let index = self.below(self.seeds.len());
        &self.seeds[index]
    }

    /// Returns a random range in `bytes` of at most `longest` bytes.
    fn range(&mut self, bytes: &[u8], longest: usize) -> std::ops::Range<usize> {
        let start = self.below(bytes.len() + 1);
        let len = self.below(longest.min(bytes.len() - start) + 1);
        start..start + len
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            bytes.push(self.next() as u8);
        }
        let place = self.below(bytes.len());
        match self.below(10) {
            0 => bytes[place] ^= 1 << self.below(8),
            1 => bytes[place] = self.next() as u8,
            2 | 3 => self.put_number(bytes, place),
            4 => bytes.truncate(place),
            5 => drop(bytes.drain(self.range(bytes, 64))),
            6 => {
                let copy = bytes[self.range(bytes, 256)].to_vec();
                bytes.splice(place..place, copy);
            }
            7 => {
                let other = self.seed();
                let piece = other[self.range(other, 512)].to_vec();
                let replaced = place..bytes.len().min(place + self.below(piece.len() + 1));
                bytes.splice(replaced, piece);
            }
            8 => self.exchange_words(bytes),
            _ => self.change_digits(bytes, place),
        }
    }

    /// Replaces the number at `place` by an edge value, by a number close to the old one, or by the input's length.
    fn put_number(&mut self, bytes: &mut [u8], place: usize) {
        let width = [1, 2, 4, 8][self.below(4)].min(bytes.len() - place);
        let mut word = [0; 8];
        word[..width].copy_from_slice(&bytes[place..place + width]);
        let changed = match self.below(3) {
            0 => EDGES[self.below(EDGES.len())],
            1 => u64::from_le_bytes(word).wrapping_add(self.below(9) as u64).wrapping_sub(4),
            _ => bytes.len() as u64,
        };
        bytes[place..place + width].copy_from_slice(&changed.to_le_bytes()[..width]);
    }

    /// Replaces a random word of a text by another word of it. In binary data, bytes that are letters form the words.
    fn exchange_words(&mut self, bytes: &mut Vec<u8>) {
        let words: Vec<_> = words(bytes).collect();
        if words.is_empty() {
            return;
        }
        let (from, to) = (words[self.below(words.len())].clone(), words[self.below(words.len())].clone());
        let word = bytes[from].to_vec();
        bytes.splice(to, word);
    }

    /// Replaces the first decimal number at or after `place` by an edge value. Does nothing if there is no number.
    fn change_digits(&mut self, bytes: &mut Vec<u8>, place: usize) {
        let Some(start) = (place..bytes.len()).find(|i| bytes[*i].is_ascii_digit()) else { return };
        let len = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = EDGES[self.below(EDGES.len())].to_string();
        bytes.splice(start..start + len, number.into_bytes());
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'%');
    let mut place = 0;
    std::iter::from_fn(move || {
        let start = (place..bytes.len()).find(|i| is_word(bytes[*i]))?;
        let end = (start..bytes.len()).find(|i| !is_word(bytes[*i])).unwrap_or(bytes.len());
        place = end;
        Some(start..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_makes_one_input_and_another_number_another() {
        let seeds: Vec<Vec<u8>> = vec![(0..=255).collect(), b".reg .b32 %r<10>;".repeat(9)];
        let make = |number| Mutator::new(&seeds, number).input();
        assert_eq!(make(7), make(7));
        let different: std::collections::HashSet<_> = (0..1000).map(make).collect();
        assert!(different.len() > 900, "{}", different.len());
    }

    #[test]
    fn words_are_found_between_everything_else() {
        let found: Vec<_> = words(b"  add.s32 %r1, x;").collect();
        assert_eq!(found, [2..9, 10..13, 15..16]);
    }
}
