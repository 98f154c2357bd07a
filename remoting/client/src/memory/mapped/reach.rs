//! The ways in which memory of the program gets a mirror: on the kernel's own device, or on another device that this
//! device can access.

use super::super::budget;
use super::super::host::{self, HostKind, HostRange};
use super::makers::Makers;
use super::one::Mapped;
use super::{COUNT, MIRROR, Mirror, NoMirror, Room};
use crate::Code;
use crate::devices::context::{self, Live};
use crate::devices::{self, Access};
use crate::program::log;
use crate::session::{HostBox, Session, is_unsettled};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

static MAKERS: Makers = Makers::new();

pub(super) fn check_room(kind: HostKind, most: usize, more: usize) -> Result<(), NoMirror> {
    if budget::of(kind).allows(most, more) { Ok(()) } else { Err(NoMirror::Budget { most }) }
}

/// Waits for all contexts of a session. The caller must not hold the mirror lock, because a host function may need it.
pub(super) fn settle(session: &Arc<Session>) -> Result<(), Code> {
    context::all_live()
        .iter()
        .filter(|live| Arc::ptr_eq(&live.session, session))
        .try_for_each(|live| live.synchronise())
}

/// Waits for streams' writes to memory that is about to be read.
fn settle_writes(host: usize, size: usize) -> Result<(), Code> {
    let unsettled = is_unsettled(&HostBox::linear(host, size as u64));
    if unsettled { context::all_live().iter().try_for_each(|live| live.synchronise()) } else { Ok(()) }
}

/// Ensures that the device of `live` has memory of the program at the program's address.
///
/// # Errors
/// The reason why the device cannot have the memory.
pub fn reach(live: &Arc<Live>, range: &HostRange) -> Result<(), NoMirror> {
    let is_there = || MIRROR.lock().has(live, range);
    if is_there() { Ok(()) } else { MAKERS.make(is_there, || try_to_reach(live, range)) }
}

/// Like [`reach`]. Returns false if other threads changed the mirrors meanwhile, so that more device memory is necessary
/// than was taken before.
fn try_to_reach(live: &Arc<Live>, range: &HostRange) -> Result<bool, NoMirror> {
    let (start, len) = (range.start as u64, range.size as u64);
    let arena = live.session.arena();
    // `elsewhere`: whether a mirror is in the way, and whether it belongs to another GPU.
    let (owner, elsewhere, more, missing) = {
        let mirror = MIRROR.lock();
        if mirror.has(live, range) {
            return Ok(true);
        }
        if !(arena.is_pinned(start) || range.kind == HostKind::Created && arena.contains(start)) {
            return Err(NoMirror::Elsewhere);
        }
        let other = |place: usize| !std::ptr::eq(mirror.all[place].live.device, live.device);
        let old = mirror.shorter(live, range).map_or(0, |place| mirror.all[place].shadow.len());
        let elsewhere = mirror.in_the_way(live, range).map(other).max();
        (mirror.owner(live, range), elsewhere, range.size - old, mirror.granules.missing(live, start, len))
    };
    if let Some(owner) = owner {
        // Both devices use the same mirror, because work of one may wait for writes of the other.
        while !try_to_reach(&owner, range)? {}
        return show(live, &owner, range.start).map(|()| true).map_err(NoMirror::Failed);
    }
    settle_writes(range.start, range.size).map_err(NoMirror::Failed)?;
    let most = budget::of(range.kind).most(live, range.size).map_err(NoMirror::Failed)?;
    if elsewhere == Some(true) {
        log::error_unless_repeated(
            "a GPU takes page-locked memory that kernels use in place from another GPU, which waits for both; kernels that \
             wait for each other there never end (docs/page-locked-memory.md)",
        );
    }
    if elsewhere.is_none() {
        check_room(range.kind, most, more)?;
    }
    let mut room = Room::default();
    room.take(live, missing).map_err(NoMirror::Failed)?;
    // Last, because other threads may launch meanwhile.
    if elsewhere.is_some() {
        settle(&live.session).map_err(NoMirror::Failed)?;
    }
    let mirror = &mut *MIRROR.lock();
    // Another thread may have made the mirror, or have freed the memory. Freed memory may have no pages.
    if mirror.has(live, range) || host::find(range.start) != Some(*range) {
        return Ok(true);
    }
    if elsewhere.is_none() && mirror.in_the_way(live, range).next().is_some() {
        return Ok(false);
    }
    loop {
        let Some(place) = mirror.in_the_way(live, range).next() else { break };
        mirror.end(place, &mut room).map_err(NoMirror::Failed)?;
    }
    if !room.has(live.device, mirror.granules.missing(live, start, len)) {
        return Ok(false);
    }
    if let Some(place) = mirror.shorter(live, range) {
        return mirror.grow(place, live, range, most, &mut room).map(|()| true);
    }
    check_room(range.kind, most, range.size)?;
    mirror.granules.take(live, start, len, &mut room)?;
    mirror.add(live, range, start, None, &mut room).map(|()| true).map_err(NoMirror::Failed)
}

/// Lets the device of `live` use the mirror of another device for the memory that starts at `host`.
fn show(live: &Arc<Live>, owner: &Live, host: usize) -> Result<(), Code> {
    let access = Access::new(live.device, owner.device)?;
    let mirror = &mut *MIRROR.lock();
    let is_it = |mapped: &&mut Mapped| mapped.host == host && std::ptr::eq(mapped.live.device, owner.device);
    // Another thread may already have done this, or have freed the memory.
    if let Some(mapped) = mirror.all.iter_mut().find(is_it).filter(|mapped| !mapped.is_reached_by(live)) {
        mapped.reached_by.push(access);
    }
    Ok(())
}

/// Lets the device of `live` use another device's mirrors of registered memory. Only mirrors that one of `words` points
/// into are used, and only if the device can access their memory.
///
/// # Errors
/// The session's sticky error.
pub fn show_registered(live: &Arc<Live>, words: impl Iterator<Item = usize>) -> Result<(), Code> {
    let is_elsewhere = |mapped: &&Mapped| {
        let other = mapped.live.device;
        let reaches = || !std::ptr::eq(other, live.device) && live.device.can_reach(other);
        mapped.piece.is_some() && mapped.is_of(&live.session) && reaches() && !mapped.is_reached_by(live)
    };
    if COUNT.load(SeqCst) == 0 || devices::all()?.len() < 2 {
        return Ok(());
    }
    let there: Vec<_> = {
        let mirror = MIRROR.lock();
        let all = mirror.all.iter().filter(is_elsewhere);
        all.map(|mapped| (Arc::clone(&mapped.live), mapped.host, mapped.device, mapped.shadow.len() as u64)).collect()
    };
    if there.is_empty() {
        return Ok(());
    }
    let words: Vec<u64> = words.map(|word| word as u64).collect();
    let is_named = |device: u64, size: u64| words.iter().any(|word| word.wrapping_sub(device) < size);
    let named = there.iter().filter(|(_, _, device, size)| is_named(*device, *size));
    named.into_iter().try_for_each(|(owner, host, ..)| show(live, owner, *host))
}

/// Creates a mirror of registered memory, if it has none.
///
/// # Errors
/// The reason why there can be no mirror.
pub fn register(live: &Arc<Live>, range: &HostRange) -> Result<(), NoMirror> {
    let is_there = || is_registered(&MIRROR.lock(), range);
    if is_there() { Ok(()) } else { MAKERS.make(is_there, || try_to_register(live, range).map(|()| true)) }
}

fn is_registered(mirror: &Mirror, range: &HostRange) -> bool {
    mirror.all.iter().any(|mapped| mapped.host == range.start)
}

fn try_to_register(live: &Arc<Live>, range: &HostRange) -> Result<(), NoMirror> {
    settle_writes(range.start, range.size).map_err(NoMirror::Failed)?;
    let most = budget::of(range.kind).most(live, range.size).map_err(NoMirror::Failed)?;
    check_room(range.kind, most, range.size)?;
    let mut room = Room::default();
    let device = room.allocate(live, range.size as u64).map_err(NoMirror::Failed)?;
    let mirror = &mut *MIRROR.lock();
    if is_registered(mirror, range) || host::find(range.start) != Some(*range) {
        return Ok(());
    }
    check_room(range.kind, most, range.size)?;
    room.use_piece(device);
    mirror.add(live, range, device, Some(device), &mut room).map_err(NoMirror::Failed)
}

/// Creates the mirror of a module's variable, which the device already has. The device's bytes are copied to the host.
///
/// # Errors
/// The reason why there can be no mirror.
pub fn take_in(live: &Arc<Live>, range: &HostRange) -> Result<(), NoMirror> {
    let most = budget::of(range.kind).most(live, range.size).map_err(NoMirror::Failed)?;
    let mirror = &mut *MIRROR.lock();
    check_room(range.kind, most, range.size)?;
    let HostRange { start: host, size, kind, .. } = *range;
    let stream_id = mirror.carrier(live).map_err(NoMirror::Failed)?.stream_id;
    let mut mapped = Mapped::new(live, (host, size), kind, host as u64, None);
    mapped.fetch(stream_id).and_then(|()| mapped.follow(stream_id, 0)).map_err(NoMirror::Failed)?;
    mirror.push(mapped);
    Ok(())
}
