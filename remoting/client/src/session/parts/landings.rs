//! A list of the host memory ranges that copies from the device have written. The kernel does not track the writes of a
//! worker on this machine, so the session records their ranges here.

use super::host_box::HostBox;
use super::wait::lock;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The maximum number of ranges. Further ranges are merged into the last one.
const MOST: usize = 1024;

#[derive(Default)]
pub struct Landings {
    is_wanted: AtomicBool,
    places: Mutex<Vec<Range<usize>>>,
}

impl Landings {
    pub fn note(&self, landed: &HostBox) {
        if !self.is_wanted.load(SeqCst) {
            return;
        }
        let (start, end) = landed.span();
        let mut places = lock(&self.places);
        let is_full = places.len() == MOST;
        match places.last_mut().filter(|_| is_full) {
            Some(last) => *last = last.start.min(start)..last.end.max(end),
            None => places.push(start..end),
        }
    }

    pub fn take(&self) -> Vec<Range<usize>> {
        self.is_wanted.store(true, SeqCst);
        std::mem::take(&mut *lock(&self.places))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_landed_is_forgotten_and_little_is_kept() {
        let landings = Landings::default();
        landings.note(&HostBox::linear(1, 1));
        assert_eq!(landings.take(), []);
        landings.note(&HostBox { base: 100, width: 4, height: 3, depth: 1, pitch: 16, slice: 48 });
        assert_eq!(landings.take(), std::slice::from_ref(&(100..136)));
        (0..5000).for_each(|i| landings.note(&HostBox::linear(1000 + 10 * (i % 4000), 10)));
        let places = landings.take();
        assert_eq!(places.len(), MOST);
        assert!((1000..41000).all(|at| places.iter().any(|place| place.contains(&at))));
        assert_eq!(landings.take(), []);
    }
}
