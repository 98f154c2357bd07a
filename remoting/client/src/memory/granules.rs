//! Device memory at addresses of page-locked memory. A granule is the unit in which the worker maps memory. Several
//! allocations may lie in one granule.

use super::mapped::{NoMirror, Room};
use crate::Code;
use crate::devices::context::Live;
use std::collections::BTreeMap;
use std::sync::Arc;

struct Granule {
    /// A context of the device that backs the granule.
    live: Arc<Live>,
    mirrors: usize,
}

pub struct Granules(BTreeMap<u64, Granule>);

/// Returns the starts of the granules of `size` bytes at `start`.
fn of(start: u64, size: u64, granularity: u64) -> impl Iterator<Item = u64> {
    (start / granularity * granularity..start + size).step_by(granularity as usize)
}

/// Returns the start and end of the part of `size` bytes at `start` that lies in a granule.
fn part(granule: u64, granularity: u64, start: u64, size: u64) -> (u64, u64) {
    (start.max(granule), (start + size).min(granule + granularity))
}

impl Granules {
    pub const fn new() -> Granules {
        Granules(BTreeMap::new())
    }

    /// Returns the bytes of quota that [`Granules::take`] uses for these addresses. Granules of other devices count,
    /// because they must become free first.
    pub fn missing(&self, live: &Live, start: u64, size: u64) -> u64 {
        let granularity = live.session.arena().granularity();
        let is_there = |granule: &u64| self.0.get(granule).is_some_and(|it| std::ptr::eq(it.live.device, live.device));
        of(start, size, granularity).filter(|granule| !is_there(granule)).count() as u64 * granularity
    }

    /// Ensures that the device of `live` has memory at all of these addresses, which lie in its arena. `room` has the
    /// quota that is [missing](Granules::missing).
    ///
    /// # Errors
    /// The reason why it cannot. Nothing stays mapped then.
    pub fn take(&mut self, live: &Arc<Live>, start: u64, size: u64, room: &mut Room) -> Result<(), NoMirror> {
        let granularity = live.session.arena().granularity();
        for granule in of(start, size, granularity) {
            let taken = self.take_one(live, granule, granularity, room).and_then(|()| {
                let (at, end) = part(granule, granularity, start, size);
                live.device.memory.bound_at(live, at, end - at).map_err(NoMirror::Failed)
            });
            if let Err(why) = taken {
                if granule > start {
                    self.release(live, start, granule - start, room).map_err(NoMirror::Failed)?;
                }
                return Err(why);
            }
        }
        Ok(())
    }

    fn take_one(&mut self, live: &Arc<Live>, granule: u64, granularity: u64, room: &mut Room) -> Result<(), NoMirror> {
        match self.0.get_mut(&granule) {
            Some(there) if std::ptr::eq(there.live.device, live.device) => there.mirrors += 1,
            Some(_) => return Err(NoMirror::Elsewhere),
            None => {
                room.use_quota(live.device, granularity);
                live.device.memory.map_at(live, granule, granularity).map_err(NoMirror::Failed)?;
                self.0.insert(granule, Granule { live: Arc::clone(live), mirrors: 1 });
            }
        }
        Ok(())
    }

    /// Releases the granules that [`Granules::take`] took for these addresses. Nothing may use the addresses any more.
    /// `room` gets the quota of those that became free.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn release(&mut self, live: &Arc<Live>, start: u64, size: u64, room: &mut Room) -> Result<(), Code> {
        let granularity = live.session.arena().granularity();
        for granule in of(start, size, granularity) {
            let Some(there) = self.0.get_mut(&granule) else { continue };
            there.mirrors -= 1;
            if there.mirrors == 0 {
                self.0.remove(&granule);
                room.add(live, granularity);
                live.device.memory.unmap_at(live, granule, granularity)?;
            } else {
                live.device.memory.bound_at(live, part(granule, granularity, start, size).0, 0)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn granules_are_those_that_the_bytes_touch() {
        let granules = |start, size| of(start, size, 16).collect::<Vec<_>>();
        assert_eq!(granules(32, 1), [32]);
        assert_eq!(granules(47, 2), [32, 48]);
        assert_eq!(granules(33, 31), [32, 48]);
        assert_eq!(granules(33, 32), [32, 48, 64]);
    }
}
