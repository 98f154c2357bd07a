//! What became of memory that host and device both have a copy of.

use std::ops::Range;

/// Changes smaller than this are not told apart.
const WORD: usize = 4;
/// Most of the memory has not changed, which is told by this much at once.
const PAGE: usize = 4096;
/// The stretches of words in which two images of the same memory differ.
pub fn differences(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let pages = old.chunks(PAGE).zip(new.chunks(PAGE)).enumerate();
    for (page, (old, new)) in pages.filter(|(_, (old, new))| old != new) {
        for (index, (a, b)) in old.chunks(WORD).zip(new.chunks(WORD)).enumerate() {
            let start = page * PAGE + index * WORD;
            match runs.last_mut() {
                _ if a == b => {}
                Some(last) if last.end == start => last.end += b.len(),
                _ => runs.push(start..start + b.len()),
            }
        }
    }
    runs
}

/// The first word that host and device wrote, each another value, since both had `old`. `runs` is where the device did.
pub fn written_by_both(old: &[u8], host: &[u8], device: &[u8], runs: &[Range<usize>]) -> Option<usize> {
    let words = runs.iter().flat_map(|run| run.clone().step_by(WORD).map(|at| at..(at + WORD).min(run.end)));
    let mut lost =
        words.filter(|word| host[word.clone()] != old[word.clone()] && host[word.clone()] != device[word.clone()]);
    lost.next().map(|word| word.start)
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
    fn a_word_that_both_wrote_is_found() {
        let found =
            |host: &[u8], device: &[u8]| written_by_both(&[0; 12], host, device, &differences(&[0; 12], device));
        let (first, second, both) = ([[1; 4], [0; 4]], [[0; 4], [1; 4]], [[1; 4], [2; 4]]);
        let image = |words: [[u8; 4]; 2]| [words.as_flattened(), &[0; 4]].concat();
        assert_eq!(found(&image(first), &image(second)), None);
        assert_eq!(found(&image(first), &image(first)), None);
        assert_eq!(found(&image(first), &[0; 12]), None);
        assert_eq!(found(&image(second), &image(both)), Some(4));
    }
}
