//! Comparison of the host's and the device's changes to mirrored memory.

use driverapi::rules::{Rule, kept};
use protocol::{MIRROR_WORD as WORD, without};
use std::ops::Range;

/// A sent change, and the number of the command that sends it.
struct Sent {
    command: u64,
    mirror: u64,
    /// The range in the memory that this part of a mirror belongs to.
    run: Range<usize>,
}

/// The changes that the worker has not confirmed yet.
#[derive(Default)]
pub struct Unconfirmed(Vec<Sent>);

impl Unconfirmed {
    /// Adds changes, as mirrors and ranges, that a command sends.
    pub fn add(&mut self, command: u64, changes: impl IntoIterator<Item = (u64, Range<usize>)>) {
        self.0.extend(changes.into_iter().map(|(mirror, run)| Sent { command, mirror, run }));
    }

    /// Removes all changes up to this command, because the worker has applied them.
    pub fn applied(&mut self, command: u64) {
        self.0.retain(|sent| sent.command > command || !kept(Rule::MirrorConfirmed));
    }

    /// Returns the changes of a mirror that were sent and that the device may not have yet.
    pub fn later(&self, mirror: u64) -> Vec<Range<usize>> {
        let sent = self.0.iter().filter(|sent| sent.mirror == mirror && kept(Rule::MirrorVersions));
        sent.map(|sent| sent.run.clone()).collect()
    }
}

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
    fn changes_are_later_than_a_reading_until_it_contains_them() {
        let mut sent = Unconfirmed::default();
        sent.add(7, [(1, 0..4), (2, 8..12)]);
        sent.add(9, [(1, 4..8), (1, 12..16)]);
        assert_eq!(sent.later(1), [0..4, 4..8, 12..16]);
        assert_eq!((sent.later(2).len(), sent.later(3).len()), (1, 0));
        sent.applied(7);
        assert_eq!(sent.later(1), [4..8, 12..16]);
        assert_eq!(sent.later(2), []);
        sent.applied(9);
        assert_eq!(sent.later(1), []);
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
