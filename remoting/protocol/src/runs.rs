//! What became of memory that both ends have a copy of: the stretches of words in which two images of it differ.

use crate::message::MIRROR_WORD;
use std::ops::Range;

/// Most of the memory has not changed, which is told by this much at once.
const PAGE: usize = 4096;

/// The stretches of words in which two images of the same memory differ.
pub fn differences(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let pages = old.chunks(PAGE).zip(new.chunks(PAGE)).enumerate();
    for (page, (old, new)) in pages.filter(|(_, (old, new))| old != new) {
        for (index, (a, b)) in old.chunks(MIRROR_WORD).zip(new.chunks(MIRROR_WORD)).enumerate() {
            let start = page * PAGE + index * MIRROR_WORD;
            match runs.last_mut() {
                _ if a == b => {}
                Some(last) if last.end == start => last.end += b.len(),
                _ => runs.push(start..start + b.len()),
            }
        }
    }
    runs
}

/// What is left of a run without these others.
pub fn without<'a>(run: &Range<usize>, others: impl Iterator<Item = &'a Range<usize>>) -> Vec<Range<usize>> {
    let mut left = vec![run.clone()];
    for other in others.filter(|other| other.start < run.end && run.start < other.end) {
        let cut = |piece: Range<usize>| {
            let (before, after) = (piece.start..piece.end.min(other.start), piece.start.max(other.end)..piece.end);
            [before, after].into_iter().filter(|rest| rest.start < rest.end)
        };
        left = left.into_iter().flat_map(cut).collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_runs_of_words() {
        let old = [0u8; 18];
        let mut new = old;
        assert!(differences(&old, &new).is_empty());
        new[5] = 1;
        new[8] = 1;
        new[17] = 1;
        assert_eq!(differences(&old, &new), [4..12, 16..18]);
        new.fill(1);
        assert_eq!(differences(&old, &new).first(), Some(&(0..18)));
        let (old, mut new) = ([0u8; 3 * PAGE], [0u8; 3 * PAGE]);
        new[PAGE - 1..=PAGE].fill(1);
        assert!(differences(&old, &new).iter().eq([&(PAGE - 4..PAGE + 4)]));
    }

    #[test]
    fn what_is_left_of_a_run_is_every_byte_of_no_other() {
        let run = 4..20;
        let cases: [&[(usize, usize)]; 8] = [
            &[],
            &[(0, 4), (20, 24)],
            &[(0, 8)],
            &[(16, 40)],
            &[(8, 12)],
            &[(4, 20)],
            &[(0, 40)],
            &[(6, 8), (8, 9), (12, 30), (5, 7)],
        ];
        for others in cases {
            let others: Vec<Range<usize>> = others.iter().map(|(start, end)| *start..*end).collect();
            let left: Vec<usize> = without(&run, others.iter()).into_iter().flatten().collect();
            let oracle: Vec<usize> = run.clone().filter(|at| others.iter().all(|other| !other.contains(at))).collect();
            assert_eq!(left, oracle, "{others:?}");
        }
    }
}
