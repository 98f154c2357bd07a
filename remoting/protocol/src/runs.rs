//! Changes of memory that both ends have a copy of: the ranges of words that differ between two images.

use crate::message::MIRROR_WORD;
use std::ops::Range;

/// The size of the pages that are compared first, because most of the memory is usually unchanged.
const PAGE: usize = 4096;

/// Returns the ranges of words that differ between two images of the same memory.
pub fn differences(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut add = |start: usize, len: usize| match runs.last_mut() {
        Some(last) if last.end == start => last.end += len,
        _ => runs.push(start..start + len),
    };
    let pages = old.chunks(PAGE).zip(new.chunks(PAGE)).enumerate();
    for (page, (old, new)) in pages.filter(|(_, (old, new))| old != new) {
        let ((old, old_rest), (new, new_rest)) = (old.as_chunks::<MIRROR_WORD>(), new.as_chunks());
        for (index, (a, b)) in old.iter().zip(new).enumerate() {
            if a != b {
                add(page * PAGE + index * MIRROR_WORD, MIRROR_WORD);
            }
        }
        if old_rest != new_rest {
            add(page * PAGE + old.len() * MIRROR_WORD, old_rest.len());
        }
    }
    runs
}

/// Subtracts the ranges `others` from `runs`.
pub fn without(runs: Vec<Range<usize>>, others: &[Range<usize>]) -> Vec<Range<usize>> {
    others.iter().fold(runs, |left, other| {
        if left.iter().all(|run| run.end <= other.start || other.end <= run.start) {
            return left;
        }
        let cut = |run: Range<usize>| {
            let (before, after) = (run.start..run.end.min(other.start), run.start.max(other.end)..run.end);
            [before, after].into_iter().filter(|rest| rest.start < rest.end)
        };
        left.into_iter().flat_map(cut).collect()
    })
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
            let left: Vec<usize> = without(vec![run.clone()], &others).into_iter().flatten().collect();
            let oracle: Vec<usize> = run.clone().filter(|at| others.iter().all(|other| !other.contains(at))).collect();
            assert_eq!(left, oracle, "{others:?}");
        }
    }
}
