//! What became of memory that host and device both have a copy of.

use protocol::MIRROR_WORD as WORD;

/// The first word that host and device wrote, each another value, since both had `old`. The device wrote all of it.
pub fn written_by_both(old: &[u8], host: &[u8], device: &[u8]) -> Option<usize> {
    if host == old {
        return None;
    }
    let words = (0..old.len()).step_by(WORD).map(|at| at..(at + WORD).min(old.len()));
    let mut lost =
        words.filter(|word| host[word.clone()] != old[word.clone()] && host[word.clone()] != device[word.clone()]);
    lost.next().map(|word| word.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::differences;
    use std::ops::Range;

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
