//! Mirrors of page-locked and managed memory, which kernels use at its address. The host's writes are sent to the
//! device before a stream gets more work. The device's writes are copied to the host when a call has waited for the
//! device.
//!
//! Memory that the library allocated has the same address on both sides, inside the arena. Registered memory has a
//! second address on the device.

mod carrier;
mod makers;
mod one;
mod reach;
mod room;
mod written;

pub use reach::{reach, register, show_registered, take_in};
pub use room::Room;

use super::budget;
use super::changes::unsent;
use super::granules::Granules;
use super::host::{self, HostKind, HostRange};
use crate::Code;
use crate::devices::context::{self, Live};
use crate::devices::memory::heap::Piece;
use crate::locks::{Ordered, Rank};
use crate::program::stats;
use crate::session::{Known, News, Session};
use carrier::{Carrier, Changes};
use driverapi::rules::{Rule, kept, kept_at};
use one::Mapped;
use protocol::MirrorRun;
use reach::{check_room, settle};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use written::Written;

/// The maximum number of separate changes of a mirror. If there are more, they are sent as one range that includes the
/// bytes between them, unless the device may be writing.
const MOST_RUNS: usize = 1024;

struct Mirror {
    all: Vec<Mapped>,
    carriers: Vec<Carrier>,
    granules: Granules,
}

/// The reason why memory has no mirror that a device can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoMirror {
    /// All mirrors together would exceed the budget.
    Budget {
        most: usize,
    },
    /// The device does not have this memory, and cannot have it at this address.
    Elsewhere,
    Failed(Code),
}

static MIRROR: Ordered<Mirror> =
    Ordered::new(Rank::Mirror, Mirror { all: Vec::new(), carriers: Vec::new(), granules: Granules::new() });
/// The number of mirrors. Programs without mirrors need only one load to know that there is none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

impl Mirror {
    fn carrier(&mut self, live: &Arc<Live>) -> Result<&mut Carrier, Code> {
        let place = match self.carriers.iter().position(|carrier| carrier.live.id == live.id) {
            Some(place) => place,
            None => {
                live.at_end(end_in);
                self.carriers.push(Carrier::new(live)?);
                self.carriers.len() - 1
            }
        };
        Ok(&mut self.carriers[place])
    }

    /// Adds a mirror in device memory that the caller took for it. If that fails, `room` gets the memory.
    fn add(
        &mut self,
        live: &Arc<Live>,
        range: &HostRange,
        device: u64,
        piece: Option<u64>,
        room: &mut Room,
    ) -> Result<(), Code> {
        let HostRange { start: host, size, kind, .. } = *range;
        let mut mapped = Mapped::new(live, (host, size), kind, device, piece);
        match self.begin(live, &mut mapped) {
            Ok(()) => self.push(mapped),
            Err(code) => {
                let _ = self.release(&mut mapped, room);
                return Err(code);
            }
        }
        Ok(())
    }

    /// Sends the host's bytes of a new mirror.
    fn begin(&mut self, live: &Arc<Live>, mapped: &mut Mapped) -> Result<(), Code> {
        mapped.take_all(0)?;
        let carrier = self.carrier(live)?;
        mapped.send(carrier.stream_id, &(0..mapped.shadow.len()))?;
        mapped.follow(carrier.stream_id, 0)?;
        carrier.sent()
    }

    fn push(&mut self, mut mapped: Mapped) {
        // The kernel reports a write only to the first mirror that asks.
        let others = self.all.iter_mut().filter(|other| other.overlaps(&mapped));
        if others.map(|other| other.written = None).count() == 0 {
            mapped.written = Written::follow(mapped.host, mapped.shadow.len(), mapped.kind);
        }
        self.all.push(mapped);
        self.recount();
    }

    /// Extends the mirror of created memory after the program mapped more memory next to it. The mirror then covers the
    /// whole range.
    fn grow(
        &mut self,
        place: usize,
        live: &Arc<Live>,
        range: &HostRange,
        most: usize,
        room: &mut Room,
    ) -> Result<(), NoMirror> {
        let old = self.all[place].shadow.len();
        check_room(range.kind, most, range.size - old)?;
        self.granules.take(live, (range.start + old) as u64, (range.size - old) as u64, room)?;
        let stream_id = self.carrier(live).map_err(NoMirror::Failed)?.stream_id;
        let mapped = &mut self.all[place];
        mapped.written = None;
        mapped.shadow.resize(range.size, 0);
        mapped.take_all(old).map_err(NoMirror::Failed)?;
        mapped.send(stream_id, &(old..range.size)).map_err(NoMirror::Failed)?;
        if mapped.is_told() {
            mapped.follow(stream_id, old).map_err(NoMirror::Failed)?;
        }
        mapped.written = Written::follow(mapped.host, mapped.shadow.len(), mapped.kind);
        self.recount();
        self.carrier(live).and_then(|carrier| carrier.sent()).map_err(NoMirror::Failed)
    }

    /// Updates the number of mirrors and the budget.
    fn recount(&self) {
        COUNT.store(self.all.len(), SeqCst);
        budget::note(self.all.iter().map(|mapped| (mapped.kind, mapped.shadow.len(), mapped.written.is_none())));
    }

    fn hold(&mut self, session: &Arc<Session>, stream_id: u64) -> Result<(), Code> {
        for carrier in self.carriers.iter_mut().filter(|carrier| Arc::ptr_eq(&carrier.live.session, session)) {
            carrier.hold(stream_id)?;
        }
        Ok(())
    }

    /// Compares a mirror with the device's bytes after all work is complete, if a setting asks for it. Logs a
    /// difference.
    ///
    /// # Errors
    /// `CUDA_ERROR_UNKNOWN` if they differ.
    fn check(&mut self, place: usize) -> Result<(), Code> {
        let live = Arc::clone(&self.all[place].live);
        let carrier = self.carriers.iter().find(|carrier| carrier.live.id == live.id);
        let Some(stream_id) = carrier.filter(|_| one::is_checked()).map(|carrier| carrier.stream_id) else {
            return Ok(());
        };
        if self.all[place].difference(stream_id).is_none() {
            return Ok(());
        }
        // Work of another thread may have written meanwhile.
        self.take_news(&live.session);
        let mapped = &self.all[place];
        mapped.difference(stream_id).map_or(Ok(()), |wrong| Err(mapped.tell_of_a_difference(&wrong)))
    }

    /// Removes a mirror that nothing uses any more, also if releasing its memory fails. `room` gets its device memory.
    fn end(&mut self, place: usize, room: &mut Room) -> Result<(), Code> {
        if kept(Rule::MirrorEnd) {
            self.take_news(&Arc::clone(&self.all[place].live.session));
        }
        let checked = self.check(place);
        let mut mapped = self.all.swap_remove(place);
        self.recount();
        // The device's writes matter only for memory that the program keeps.
        let stays = matches!(mapped.kind, HostKind::Registered | HostKind::Created);
        let is_kept = stays || host::find(mapped.host).is_some();
        let carrier = self.carriers.iter().find(|carrier| carrier.live.id == mapped.live.id);
        let is_kept = is_kept && kept(Rule::MirrorEnd);
        let fetched = carrier.filter(|_| is_kept).map_or(Ok(()), |carrier| mapped.fetch(carrier.stream_id));
        self.release(&mut mapped, room).and(fetched).and(checked)
    }

    /// Returns whether the device of `live` has this memory at its own address.
    fn has(&self, live: &Live, range: &HostRange) -> bool {
        let of = |mapped: &&Mapped| mapped.host == range.start && mapped.shadow.len() == range.size;
        self.all
            .iter()
            .filter(of)
            .any(|mapped| mapped.is_on(live) || mapped.piece.is_none() && mapped.is_reached_by(live))
    }

    /// Returns the mirrors of the session of `live` that share a granule with `range`, and their indices in `all`.
    fn beside(&self, live: &Arc<Live>, range: &HostRange) -> impl Iterator<Item = (usize, &Mapped)> {
        let (start, size) = (range.start as u64, range.size as u64);
        let granularity = live.session.arena().granularity();
        let granules = move |start: u64, size: u64| start / granularity..(start + size).div_ceil(granularity);
        let wanted = granules(start, size);
        let is_beside = move |mapped: &Mapped| {
            let has = granules(mapped.device, mapped.shadow.len() as u64);
            let shared = has.start < wanted.end && wanted.start < has.end;
            shared && mapped.piece.is_none() && mapped.is_of(&live.session)
        };
        self.all.iter().enumerate().filter(move |(_, mapped)| is_beside(mapped))
    }

    /// Returns the indices of the mirrors that must end before these addresses can get a mirror. A granule belongs to
    /// one device, and contains at most one mirror of created memory.
    fn in_the_way(&self, live: &Arc<Live>, range: &HostRange) -> impl Iterator<Item = usize> {
        let other = |mapped: &Mapped| mapped.kind == HostKind::Created && mapped.host != range.start;
        let beside = self.beside(live, range);
        beside.filter(move |(_, mapped)| other(mapped) || !mapped.is_on(live)).map(|(place, _)| place)
    }

    /// Returns the index of a mirror that has only the beginning of this memory.
    fn shorter(&self, live: &Live, range: &HostRange) -> Option<usize> {
        let is_it =
            |mapped: &Mapped| mapped.host == range.start && mapped.shadow.len() < range.size && mapped.is_on(live);
        self.all.iter().position(is_it)
    }

    /// Returns a context of another device, if only that device has mirrors in these granules and the device of `live`
    /// can access its memory.
    fn owner(&self, live: &Arc<Live>, range: &HostRange) -> Option<Arc<Live>> {
        let mut owners = self.beside(live, range).map(|(_, mapped)| &mapped.live);
        let owner = owners.next()?;
        let alone = owners.all(|other| std::ptr::eq(other.device, owner.device));
        let is_other = !std::ptr::eq(owner.device, live.device);
        (alone && is_other && live.device.can_reach(owner.device)).then(|| Arc::clone(owner))
    }

    /// Puts the device memory of a mirror into `room`.
    fn release(&mut self, mapped: &mut Mapped, room: &mut Room) -> Result<(), Code> {
        mapped.forget()?;
        match mapped.piece {
            // The memory of a variable is freed with its module.
            None if mapped.kind == HostKind::Variable => Ok(()),
            Some(piece) => {
                room.add_piece(mapped.live.device, piece);
                Ok(())
            }
            None => self.granules.release(&mapped.live, mapped.device, mapped.shadow.len() as u64, room),
        }
    }

    fn send_changes(&mut self, session: &Arc<Session>) -> Result<(), Code> {
        let Mirror { all, carriers, .. } = self;
        if all.iter().any(|mapped| mapped.written.is_some()) {
            let landings = session.take_landings();
            all.iter_mut().for_each(|mapped| mapped.note_landings(&landings));
        }
        for carrier in carriers.iter_mut().filter(|carrier| Arc::ptr_eq(&carrier.live.session, session)) {
            let (mut changes, mut any, context) = (Changes::default(), false, carrier.live.id);
            for mapped in all.iter_mut().filter(|mapped| mapped.live.id == context) {
                if !kept(Rule::MirrorCommand) {
                    carrier.send(&mut changes)?;
                }
                let mut runs = mapped.take_changes();
                // The device may be writing between the changes. This must not wait for the device, because the device
                // may wait for a later action of the program.
                if runs.len() > MOST_RUNS && session.newest_in_streams() <= carrier.fetched {
                    runs = runs.first().zip(runs.last()).map(|(a, b)| a.start..b.end).into_iter().collect();
                }
                any |= !runs.is_empty();
                for run in &runs {
                    if !mapped.is_told() {
                        mapped.send(carrier.stream_id, run)?;
                    }
                    for (mirror, at, piece) in mapped.by_parts(run) {
                        carrier.add(&mut changes, mirror, at, &mapped.shadow, &piece)?;
                    }
                }
            }
            carrier.send(&mut changes)?;
            if any {
                carrier.sent()?;
            }
        }
        Ok(())
    }

    /// Applies the worker's reports of the device's writes, except for ranges that the host has sent since.
    fn take_news(&mut self, session: &Session) {
        let Mirror { all, carriers, .. } = self;
        for News { told, bytes } in session.take_news() {
            let Some(carrier) = carriers.iter_mut().find(|carrier| carrier.live.id == told.context) else { continue };
            carrier.unconfirmed.applied(told.applied);
            let mut rest = &bytes[..];
            for part in told.parts {
                let size = part.runs.iter().map(|run| run.len as usize).sum();
                let Some((now, others)) = rest.split_at_checked(size) else { break };
                rest = others;
                // Skip a mirror that has ended.
                let found = all.iter_mut().find_map(|mapped| mapped.part(part.mirror).map(|at| (mapped, at)));
                let Some((mapped, at)) = found else { continue };
                let place = |run: &MirrorRun| {
                    let start = at.saturating_add(run.at as usize);
                    start..start.saturating_add(run.len as usize)
                };
                let runs: Vec<_> = part.runs.iter().map(place).collect();
                match carrier.unconfirmed.later(part.mirror) {
                    later if later.is_empty() => mapped.take_in(&runs, now),
                    later => {
                        let (runs, now) = unsent(&runs, now, &later);
                        mapped.take_in(&runs, &now);
                    }
                }
            }
        }
    }
}

/// Removes the mirror of the memory that starts at `host`, if there is one, after all work that may use the mirror. The
/// caller has removed the memory from [`host`], so the memory gets no new mirror.
///
/// # Errors
/// The code of failed work. The mirror is removed even then.
pub fn forget(host: usize) -> Result<(), Code> {
    if COUNT.load(SeqCst) == 0 {
        return Ok(());
    }
    let place = |mirror: &Mirror| mirror.all.iter().position(|mapped| mapped.host == host);
    let session = {
        let mirror = MIRROR.lock();
        let Some(place) = place(&mirror) else { return Ok(()) };
        Arc::clone(&mirror.all[place].live.session)
    };
    let settled = settle(&session);
    let mut room = Room::default();
    let ended = {
        let mirror = &mut *MIRROR.lock();
        place(mirror).map_or(Ok(()), |place| mirror.end(place, &mut room))
    };
    room.give_back().and(ended).and(settled)
}

/// Removes the mirrors of created memory that overlap the `size` bytes from `start` on. The memory stays mapped.
///
/// # Errors
/// The code of failed work. The mirrors are removed even then.
pub fn forget_created(start: usize, size: usize) -> Result<(), Code> {
    let mut ended = Ok(());
    while COUNT.load(SeqCst) > 0 {
        let touches = |mapped: &Mapped| {
            let end = mapped.host + mapped.shadow.len();
            mapped.kind == HostKind::Created && mapped.host < start + size && start < end
        };
        let first = MIRROR.lock().all.iter().find(|mapped| touches(mapped)).map(|it| Arc::clone(&it.live.session));
        let Some(session) = first else { break };
        let settled = settle(&session);
        let mut room = Room::default();
        let here = {
            let mirror = &mut *MIRROR.lock();
            mirror.all.iter().position(touches).map_or(Ok(()), |place| mirror.end(place, &mut room))
        };
        ended = ended.and(settled).and(room.give_back()).and(here);
    }
    ended
}

/// Stops write tracking for created memory, because the program maps it at a second address. Writes there cannot be
/// tracked at the first address.
pub fn note_alias() {
    written::note_alias();
    if !kept(Rule::TrackAlias) {
        return;
    }
    let mut mirror = MIRROR.lock();
    mirror.all.iter_mut().filter(|mapped| mapped.kind == HostKind::Created).for_each(|mapped| mapped.written = None);
}

/// Removes the mirrors of a context that is about to be destroyed.
pub fn end_in(live: &Arc<Live>) {
    let context = live.id;
    let is_left = |mapped: &Mapped| mapped.kind == HostKind::Created && mapped.live.id == context;
    // Created memory does not belong to a context, so the writes of this context's work must be kept. Other devices may
    // be using memory of this device.
    let is_reached = |mapped: &Mapped| !mapped.reached_by.is_empty() && mapped.live.id == context;
    let (is_any_left, is_any_reached, is_any_checked) = {
        let mirror = MIRROR.lock();
        let is_any_checked = one::is_checked() && mirror.all.iter().any(|mapped| mapped.live.id == context);
        (mirror.all.iter().any(is_left), mirror.all.iter().any(is_reached), is_any_checked)
    };
    if is_any_left || is_any_reached || is_any_checked {
        // The context is no longer among those that `settle` waits for.
        let _ = live.synchronise();
    }
    if is_any_reached || is_any_checked {
        let _ = settle(&live.session);
    }
    let mut room = Room::default();
    let mirror = &mut *MIRROR.lock();
    mirror.take_news(&live.session);
    for place in (0..mirror.all.len()).filter(|_| is_any_checked) {
        if mirror.all[place].live.id == context {
            live.note_end(mirror.check(place));
        }
    }
    if let Some(stream_id) = mirror.carriers.iter().find(|carrier| carrier.live.id == context).map(|it| it.stream_id) {
        for mapped in mirror.all.iter_mut().filter(|mapped| is_left(mapped)) {
            let _ = mapped.fetch(stream_id);
        }
    }
    for mut mapped in mirror.all.extract_if(.., |mapped| mapped.live.id == context).collect::<Vec<_>>() {
        // A failed session has no memory to release, so the error is ignored.
        let _ = mirror.release(&mut mapped, &mut room);
    }
    for carrier in mirror.carriers.extract_if(.., |carrier| carrier.live.id == context) {
        live.session.disown_stream(carrier.stream_id);
    }
    mirror.recount();
}

/// Returns the mirror that contains this address, if host and device have the same address for it, and its context.
pub fn mirror_at(address: u64) -> Option<(Piece, Arc<Live>)> {
    if COUNT.load(SeqCst) == 0 {
        return None;
    }
    let mirror = MIRROR.lock();
    let here = |mapped: &&Mapped| mapped.device == mapped.host as u64 && mapped.contains(address, 1);
    let mapped = mirror.all.iter().find(here)?;
    let (size, context) = (mapped.shadow.len() as u64, mapped.live.id);
    Some((Piece { address: mapped.device, asked: size, size, context, pool: 0, id: 0 }, Arc::clone(&mapped.live)))
}

/// Returns the program's address of the memory that a device of this session has at address `device`.
pub fn host_address(session: &Arc<Session>, device: u64) -> Option<u64> {
    if COUNT.load(SeqCst) == 0 {
        return None;
    }
    let mirror = MIRROR.lock();
    let here =
        |mapped: &&Mapped| mapped.is_of(session) && device.wrapping_sub(mapped.device) < mapped.shadow.len() as u64;
    let mapped = mirror.all.iter().find(here)?;
    Some(mapped.host as u64 + (device - mapped.device))
}

/// Returns whether a device of this session has memory of the program at address `device`, and the program has it at
/// another address.
pub fn is_alias(session: &Arc<Session>, device: u64) -> bool {
    host_address(session, device).is_some_and(|host| host != device)
}

/// Returns the address at which a device of this session has the program's `span` bytes at `host`, if a mirror has all
/// of them.
pub fn device_address(session: &Arc<Session>, host: u64, span: u64) -> Option<u64> {
    if COUNT.load(SeqCst) == 0 {
        return None;
    }
    let mirror = MIRROR.lock();
    let mapped = mirror.all.iter().find(|mapped| mapped.is_of(session) && mapped.contains(host, span))?;
    Some(mapped.device + (host - mapped.host as u64))
}

/// Like [`device_address`], for memory that a command is about to use. A mirror that has only a part of the memory is
/// extended first.
pub fn device_span(session: &Arc<Session>, host: u64, span: u64) -> Option<u64> {
    let found = device_address(session, host, span);
    if found.is_some() || COUNT.load(SeqCst) == 0 {
        return found;
    }
    let range = host::find(host as usize).filter(|range| range.kind == HostKind::Created)?;
    let touches = |mapped: &Mapped| {
        let start = mapped.host as u64;
        mapped.is_of(session) && host < start + mapped.shadow.len() as u64 && start < host.saturating_add(span)
    };
    let owner = MIRROR.lock().all.iter().find(|mapped| touches(mapped)).map(|mapped| Arc::clone(&mapped.live))?;
    reach(&owner, &range).ok()?;
    device_address(session, host, span)
}

/// Makes later work of the stream wait until the device has the host's earlier writes.
///
/// # Errors
/// The session's sticky error.
pub fn before_work(session: &Arc<Session>, stream_id: u64) -> Result<(), Code> {
    if COUNT.load(SeqCst) == 0 {
        return Ok(());
    }
    let mut mirror = MIRROR.lock();
    if session.has_much_news() {
        mirror.take_news(session);
    }
    if kept(Rule::MirrorWork) {
        mirror.send_changes(session)?;
    }
    mirror.hold(session, stream_id)
}

/// Sends the host's writes to the devices that have mirrors.
///
/// # Errors
/// The session's sticky error.
pub fn send(session: &Arc<Session>) -> Result<(), Code> {
    if COUNT.load(SeqCst) == 0 || !kept_at(Rule::MirrorWait, || stats::function().unwrap_or("")) {
        return Ok(());
    }
    MIRROR.lock().send_changes(session)
}

/// Makes later work of the stream wait for the changes that were sent.
///
/// # Errors
/// The session's sticky error.
pub fn hold(session: &Arc<Session>, stream_id: u64) -> Result<(), Code> {
    MIRROR.lock().hold(session, stream_id)
}

/// Returns whether there is any mirror.
pub fn is_any() -> bool {
    COUNT.load(SeqCst) > 0
}

/// Sends the host's writes to the devices of the session, and waits until the devices have them. This does not depend
/// on the program's streams.
///
/// # Errors
/// The session's sticky error.
pub fn bring(session: &Arc<Session>) -> Result<(), Code> {
    if COUNT.load(SeqCst) == 0 {
        return Ok(());
    }
    let streams: Vec<u64> = {
        let mirror = &mut *MIRROR.lock();
        if kept(Rule::MirrorWord) {
            mirror.send_changes(session)?;
        }
        let carriers = mirror.carriers.iter().filter(|carrier| Arc::ptr_eq(&carrier.live.session, session));
        carriers.map(|carrier| carrier.stream_id).collect()
    };
    streams.into_iter().try_for_each(|stream_id| session.settle_stream(stream_id))
}

/// Copies the device's writes of completed work to the host.
///
/// # Errors
/// The session's sticky error.
#[cfg_attr(feature = "order-faults", track_caller)]
pub fn after_wait(session: &Arc<Session>) -> Result<(), Code> {
    let caller = std::panic::Location::caller().file();
    if COUNT.load(SeqCst) == 0 || !kept_at(Rule::MirrorApply, || stats::function().unwrap_or(caller)) {
        return Ok(());
    }
    // The work may have waited for a stream of another appliance. That appliance's errors are reported by its own
    // calls.
    for other in others(session).into_iter().filter(|_| kept(Rule::MirrorOthers)) {
        let _ = take_back(&other);
    }
    take_back(session)
}

/// Returns the other sessions that have mirrors.
fn others(session: &Arc<Session>) -> Vec<Arc<Session>> {
    let mirror = MIRROR.lock();
    let sessions = mirror.carriers.iter().map(|carrier| &carrier.live.session);
    let mut others: Vec<_> = sessions.filter(|other| !Arc::ptr_eq(other, session)).map(Arc::clone).collect();
    others.dedup_by(|one, other| Arc::ptr_eq(one, other));
    others
}

/// Copies the writes of the session's devices to the host: those that the worker reported, and all bytes of mirrors
/// without reports.
fn take_back(session: &Arc<Session>) -> Result<(), Code> {
    let newest = session.newest_in_streams();
    let all_live = context::all_live();
    let lives = all_live.iter().filter(|live| Arc::ptr_eq(&live.session, session));
    let is_quiet = session.is_quiet(Known::Complete, lives.map(|live| live.synchronised()).min().unwrap_or(0));
    let mirror = &mut *MIRROR.lock();
    mirror.take_news(session);
    let Mirror { all, carriers, .. } = mirror;
    let of_session = |carrier: &&mut Carrier| Arc::ptr_eq(&carrier.live.session, session);
    for carrier in carriers.iter_mut().filter(of_session).filter(|carrier| carrier.fetched < newest) {
        let whole = |mapped: &&mut Mapped| mapped.live.id == carrier.live.id && !mapped.is_told();
        all.iter_mut().filter(whole).try_for_each(|mapped| mapped.fetch(carrier.stream_id))?;
        if is_quiet {
            carrier.fetched = newest;
        }
    }
    Ok(())
}
