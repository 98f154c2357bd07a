//! Comparison of the host's and the device's changes to mirrored memory.

use protocol::{MIRROR_WORD as WORD, without};
use std::ops::Range;

/// Returns the position of the first word that both host and device changed from `old`, to different values. `device`
/// contains only bytes that the device wrote.
pub fn written_by_both(old: &[u8], host: &[u8], device: &[u8]) -> Option<usize> {
    if host == old {
        return None;
    }
    let words = (0..old.len()).step_by(WORD).map(|at| at..(at + WORD).min(old.len()));
    let mut lost =
        words.filter(|word| host[word.clone()] != old[word.clone()] && host[word.clone()] != device[word.clone()]);
    lost.next().map(|word| word.start)
}

/// Pairs each run with its bytes. `bytes` contains the bytes of all runs, one after another.
pub fn with_bytes<'a>(
    runs: &'a [Range<usize>],
    mut bytes: &'a [u8],
) -> impl Iterator<Item = (&'a Range<usize>, &'a [u8])> {
    runs.iter().map(move |run| {
        let (now, rest) = bytes.split_at(run.len());
        bytes = rest;
        (run, now)
    })
}

/// Returns the runs that the device wrote, and their bytes, without the ranges `later` that the host has sent since.
pub fn unsent(runs: &[Range<usize>], bytes: &[u8], later: &[Range<usize>]) -> (Vec<Range<usize>>, Vec<u8>) {
    let (mut left, mut kept) = (Vec::new(), Vec::new());
    for (run, now) in with_bytes(runs, bytes) {
        for piece in without(vec![run.clone()], later) {
            kept.extend_from_slice(&now[piece.start - run.start..piece.end - run.start]);
            left.push(piece);
        }
    }
    (left, kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::differences;

    #[test]
    fn what_the_host_sent_later_is_not_taken_from_the_device() {
        let bytes: Vec<u8> = (0..16).collect();
        let runs = [4..12, 20..28];
        assert_eq!(unsent(&runs, &bytes, &[]), (runs.to_vec(), bytes.clone()));
        let (left, kept) = unsent(&runs, &bytes, &[8..12, 16..24, 40..44]);
        assert_eq!((left, kept), (vec![4..8, 24..28], vec![0, 1, 2, 3, 12, 13, 14, 15]));
        assert_eq!(unsent(&runs, &bytes, std::slice::from_ref(&(0..99))), (vec![], vec![]));
    }

    #[test]
    fn a_word_that_both_wrote_is_found() {
        let found = |host: &[u8], device: &[u8]| {
            let runs = differences(&[0; 12], device);
            let within = |run: &Range<usize>| {
                let lost = written_by_both(&[0; 12][run.clone()], &host[run.clone()], &device[run.clone()]);
                lost.map(|at| run.start + at)
            };
            runs.iter().find_map(within)
        };
        let (first, second, both) = ([[1; 4], [0; 4]], [[0; 4], [1; 4]], [[1; 4], [2; 4]]);
        let image = |words: [[u8; 4]; 2]| [words.as_flattened(), &[0; 4]].concat();
        assert_eq!(found(&image(first), &image(second)), None);
        assert_eq!(found(&image(first), &image(first)), None);
        assert_eq!(found(&image(first), &[0; 12]), None);
        assert_eq!(found(&image(second), &image(both)), Some(4));
    }
}
