//! Vector clocks. A track is a queue or a branch of a graph. A point on a track is an operation or a part of an
//! operation.

/// The number of low bits of an epoch that count the parts of an operation. Each release starts a new part.
pub const PARTS: u32 = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Point {
    pub track: u32,
    pub epoch: u64,
}

impl Point {
    /// Returns the end of the operation that contains this point.
    pub fn end(self) -> Point {
        Point { epoch: self.epoch | ((1 << PARTS) - 1), ..self }
    }
}

/// A vector clock. For each track it has the latest epoch that has happened before.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Clock(Vec<u64>);

impl Clock {
    pub fn has(&self, point: Point) -> bool {
        self.0.get(point.track as usize).is_some_and(|&epoch| point.epoch <= epoch)
    }

    pub fn add(&mut self, point: Point) {
        let track = point.track as usize;
        if self.0.len() <= track {
            self.0.resize(track + 1, 0);
        }
        self.0[track] = self.0[track].max(point.epoch);
    }

    pub fn covers(&self, other: &Clock) -> bool {
        let at = |track: usize| self.0.get(track).copied().unwrap_or(0);
        other.0.iter().enumerate().all(|(track, &epoch)| epoch <= at(track))
    }

    pub fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, &epoch) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(epoch);
        }
    }
}

/// A step of a graph: the indices of the earlier steps that it waits for, and the event that it records or waits for.
#[derive(Default)]
pub struct Step {
    pub after: Vec<usize>,
    pub records: Option<usize>,
    pub waits: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(track: u32, epoch: u64) -> Point {
        Point { track, epoch }
    }

    #[test]
    fn a_join_has_what_either_has_and_nothing_else() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.add(point(0, 5));
        b.add(point(2, 7));
        assert!(!a.covers(&b) && !b.covers(&a));
        a.join(&b);
        assert!(a.covers(&b) && a.has(point(0, 5)) && a.has(point(2, 7)));
        assert!(!a.has(point(0, 6)) && !a.has(point(1, 1)) && !a.has(point(3, 1)));
    }

    #[test]
    fn an_operations_end_has_all_its_parts() {
        let begin = point(1, 3 << PARTS);
        let mut clock = Clock::default();
        clock.add(begin.end());
        assert!(clock.has(point(1, (3 << PARTS) + 9)) && !clock.has(point(1, 4 << PARTS)));
    }
}
