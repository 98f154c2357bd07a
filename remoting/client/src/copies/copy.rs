//! Copies: their direction, and the time at which the program's memory is read or written.

pub use crate::objects::sides::{Shape, Side};

use crate::Code;
use crate::copies::peer;
use crate::devices::context::Live;
use crate::devices::memory::{Piece, find_allocation};
use crate::memory::host::{self, HostKind};
use crate::memory::vmm;
use crate::memory::{mapped, variables};
use crate::module;
use crate::objects::arrays;
use crate::objects::stream::Target;
use crate::program::sys;
use crate::session::{self, HostBox, Known, is_any_waiting, is_unsettled};
use driverapi::errors::*;
use protocol::{CopyOnDevice, Message, Symbol, Writer};
use std::sync::Arc;

/// Whether a copying call may return before the copy is complete.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    Synchronous,
    Asynchronous,
    /// For a node of a graph. Host memory is read and written when the stream reaches the node, even if it is not
    /// page-locked.
    InGraph,
}

impl Side {
    /// Returns the context that has this memory. Fails if a part of it is not device memory of this process.
    fn owner(&self, shape: &Shape) -> Result<Arc<Live>, Code> {
        let span = self.span(shape).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (piece, live) = device_memory(self.address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let inside = span <= piece.size - (self.address - piece.address);
        if inside { Ok(live) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
}

fn device_memory(address: u64) -> Option<(Piece, Arc<Live>)> {
    if let Some(mirror) = mapped::mirror_at(address) {
        return Some(mirror);
    }
    if let Some((device, piece)) = find_allocation(address) {
        return Some((piece, device.memory.owner(&piece)?));
    }
    if let Some(mapped) = vmm::find(address) {
        return Some(mapped);
    }
    if let Some(array) = arrays::find(address) {
        return Some(array);
    }
    let (live, symbol, id) = module::variable_at(address)?;
    let Symbol { address, size, .. } = symbol;
    Some((Piece { address, asked: size, size, context: live.id, pool: 0, id }, live))
}

/// Returns whether the address lies in device memory that this process knows.
pub fn is_device(address: u64) -> bool {
    device_memory(address).is_some()
}

/// Checks a box of device memory that a command of the context is about to write.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if a part of the box is not device memory.
pub fn check_written(live: &Live, to: Side, shape: Shape) -> Result<(), Code> {
    if shape.is_empty() || Arc::ptr_eq(&to.owner(&shape)?.session, &live.session) {
        Ok(())
    } else {
        Err(CUDA_ERROR_INVALID_VALUE)
    }
}

/// Copies from the program's memory to device memory.
///
/// # Errors
/// The driver's code for a destination that is not device memory, or the session's sticky error.
pub fn to_device(target: &Target, to: Side, from: Side, shape: Shape, timing: Timing) -> Result<(), Code> {
    if shape.is_empty() {
        return Ok(());
    }
    peer::on_behalf(target, &to.owner(&shape)?, |target| from_host(target, to, from.host(&shape), shape, timing))
}

fn from_host(target: &Target, to: Side, host: HostBox, shape: Shape, timing: Timing) -> Result<(), Code> {
    let session = &target.live.session;
    let device = to.device(target.live.id, &shape);
    let (start, end) = host.span();
    let shared = session.shares(&host);
    if timing == Timing::InGraph || shared {
        session.copy_to_device_late(target.stream_id, &device, &host)?;
        return match timing {
            Timing::Synchronous => session.synchronise_stream(target.stream_id),
            Timing::Asynchronous | Timing::InGraph => Ok(()),
        };
    }
    if host::is_pinned(start, end) {
        // All work that may write the source before the stream reaches the copy must end first.
        let unsettled = is_unsettled(&host) || is_any_waiting();
        if timing == Timing::Asynchronous {
            if unsettled || !session.has_window(host.packed()) {
                return session.copy_to_device_late(target.stream_id, &device, &host);
            }
        } else if unsettled {
            session.synchronise_stream(target.stream_id)?;
        }
    }
    session.copy_to_device(target.stream_id, &device, &host, timing == Timing::Synchronous)?;
    match timing {
        Timing::Asynchronous | Timing::InGraph => Ok(()),
        Timing::Synchronous if target.stream_id == target.live.legacy_stream => target.live.mark_copy(),
        // A per-thread stream is not ordered with other streams. Only waiting makes the copy complete for all of them.
        Timing::Synchronous => session.synchronise_stream(target.stream_id),
    }
}

/// Copies from device memory to the program's memory.
///
/// # Errors
/// The driver's code for a source that is not device memory, or the copy's code.
pub fn to_host(target: &Target, to: Side, from: Side, shape: Shape, timing: Timing) -> Result<(), Code> {
    if shape.is_empty() {
        return Ok(());
    }
    let host = to.host(&shape);
    let (start, end) = host.span();
    let later = timing == Timing::InGraph || timing == Timing::Asynchronous && host::is_pinned(start, end);
    peer::on_behalf(target, &from.owner(&shape)?, |Target { live, stream_id, .. }| {
        let device = from.device(live.id, &shape);
        match later {
            true => live.session.copy_to_host_later(*stream_id, &host, &device),
            false => live.session.copy_to_host(*stream_id, &host, &device),
        }
    })
}

/// Copies between device memory, possibly of two devices or appliances.
///
/// # Errors
/// The driver's code if one side is not device memory, or the session's sticky error.
pub fn on_device(target: &Target, to: Side, from: Side, shape: Shape, timing: Timing) -> Result<(), Code> {
    if shape.is_empty() {
        return Ok(());
    }
    let (to_owner, from_owner) = (to.owner(&shape)?, from.owner(&shape)?);
    // A synchronous copy between contexts is ordered with all work of both contexts.
    let serial = timing == Timing::Synchronous && to_owner.id != from_owner.id;
    if serial {
        [&to_owner, &from_owner, &target.live].into_iter().try_for_each(|live| live.synchronise())?;
    }
    peer::on_behalf(target, &to_owner, |here| {
        if Arc::ptr_eq(&to_owner.session, &from_owner.session) {
            return copy_on_stream(&here.live, here.stream_id, to, from, shape);
        }
        let span = from.span(&shape).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (to, from) = (to.device(here.live.id, &shape), from.device(from_owner.id, &shape));
        peer::copy(here, &to, &from_owner, from, span, &target.live.session)
    })?;
    if serial { target.live.session.synchronise_stream(target.stream_id) } else { Ok(()) }
}

fn on_device_command(live: &Live, to: Side, from: Side, shape: &Shape) -> CopyOnDevice {
    let (to, to_pitch, to_slice) = (to.address, to.pitch, to.slice);
    CopyOnDevice { context: live.id, to, to_pitch, to_slice, from: from.address, extent: from.extent(shape) }
}

/// Returns the command for a copy inside the device memory of one context, or `None` for any other copy.
pub fn in_one_context(live: &Live, to: Placed, from: Placed, shape: &Shape) -> Option<CopyOnDevice> {
    let inside = |(side, place): Placed| {
        let of_device = place != Place::Mirror && place.is_device(live, &side, shape) == Ok(true);
        of_device && host::find(side.address as usize).is_none() && side.owner(shape).is_ok_and(|own| own.id == live.id)
    };
    (inside(to) && inside(from)).then(|| on_device_command(live, to.0, from.0, shape))
}

fn copy_on_stream(live: &Live, stream_id: u64, to: Side, from: Side, shape: Shape) -> Result<(), Code> {
    let copy = on_device_command(live, to, from, &shape);
    let body = |w: &mut Writer| {
        w.put(&copy);
    };
    live.session.post_work(CopyOnDevice::CODE, stream_id, body).map(drop)
}

/// Checks that a node of a graph can copy between these places.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if it cannot.
pub fn check(live: &Live, to: Placed, from: Placed, shape: &Shape) -> Result<(), Code> {
    for (side, place) in [to, from] {
        if place.is_device(live, &side, shape)? && host::find(side.address as usize).is_none() {
            side.owner(shape)?;
        }
    }
    Ok(())
}

/// The kind of memory that a function declares for an address. The address itself may determine the kind further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Memory of the program, page-locked or not.
    Host,
    /// Memory that devices can access: their own, or page-locked memory of the program.
    Device,
    Unified,
    /// The device's mirror of page-locked memory.
    Mirror,
}

impl Place {
    /// Returns whether this is memory of a device.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if it is not of the declared kind.
    fn is_device(self, live: &Live, side: &Side, shape: &Shape) -> Result<bool, Code> {
        if self == Place::Mirror {
            return Ok(true);
        }
        if side.address == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let reserved = arena_of(live, side.address);
        // The program's memory lies outside of the arenas, except for page-locked memory.
        if self == Place::Host && reserved.is_none() {
            return Ok(is_variable_alone(side.address));
        }
        let span = side.span(shape).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if let Some(range) = host::find(side.address as usize) {
            let inside = span <= (range.start + range.size) as u64 - side.address;
            // Memory of the program may be larger than the registered part.
            let beyond = range.kind == HostKind::Registered && self != Place::Device;
            return if inside || beyond { Ok(false) } else { Err(CUDA_ERROR_INVALID_VALUE) };
        }
        if self == Place::Device {
            // A later search at the use of the memory decides whether this is true.
            return Ok(true);
        }
        // With unified addressing the address decides, even if the function declares host memory.
        match is_device(side.address) {
            false if reserved == Some(true) => Err(CUDA_ERROR_INVALID_VALUE),
            is_device => Ok(is_device),
        }
    }
}

/// Returns whether this is a module's variable at the address that the device's driver chose, and not also memory of
/// the program.
fn is_variable_alone(address: u64) -> bool {
    let at = address as usize;
    module::variable_at(address).is_some()
        && host::find(at).is_none()
        && (variables::has_page(at) || !sys::is_mapped(at))
}

/// Returns whether this process has reserved the arena that contains the address. Returns `None` if no arena contains
/// it.
fn arena_of(live: &Live, address: u64) -> Option<bool> {
    let own = live.session.arena();
    match own.contains(address) {
        true => Some(own.is_reserved()),
        false => session::owner_of(address).map(|owner| owner.arena().is_reserved()),
    }
}

/// One side of a copy, and its declared kind of memory.
pub type Placed = (Side, Place);

#[derive(Clone, Copy)]
pub struct Copying {
    pub to: (Side, Place),
    pub from: (Side, Place),
    pub shape: Shape,
}

/// Copies in the order of a stream.
///
/// # Errors
/// Those of [`between`].
pub fn run_on(target: &Target, copying: &Copying, timing: Timing) -> Result<(), Code> {
    let session = &target.live.session;
    let Copying { to, from, shape } = *copying;
    let (on_to, on_from) = (mirrored(target, to, &shape), mirrored(target, from, &shape));
    between(target, on_to.unwrap_or(to), on_from.unwrap_or(from), shape, timing)?;
    if timing == Timing::Synchronous && (on_to.is_some() || on_from.is_some()) {
        session.synchronise_stream(target.stream_id)?;
    } else if timing == Timing::Synchronous && mapped::is_any() {
        // The copy must see what kernels wrote before it.
        if !target.live.is_stream_complete(target.stream_id, Known::Complete) {
            session.synchronise_stream(target.stream_id)?;
        }
    }
    // After a synchronous copy all work before it is complete.
    if timing == Timing::Synchronous { mapped::after_wait(session) } else { Ok(()) }
}

/// Returns the mirror of a side, if the side is memory of the program. The side may have the host's or the device's
/// address.
fn mirrored(target: &Target, (side, _): Placed, shape: &Shape) -> Option<Placed> {
    let session = &target.live.session;
    let is_alias = || mapped::is_alias(session, side.address).then_some(side.address);
    let address = mapped::device_span(session, side.address, side.span(shape)?).or_else(is_alias)?;
    Some((Side { address, ..side }, Place::Mirror))
}

/// Copies between places of the kinds that the program declares.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if a place is not of its declared kind, or the errors of the actual kind of copy.
fn between(
    target: &Target,
    (to, to_place): Placed,
    (from, from_place): Placed,
    shape: Shape,
    timing: Timing,
) -> Result<(), Code> {
    if shape.is_empty() {
        return Ok(());
    }
    let to_device_memory = to_place.is_device(&target.live, &to, &shape)?;
    let from_device_memory = from_place.is_device(&target.live, &from, &shape)?;
    let as_host = timing == Timing::Synchronous && (to_place == Place::Host || from_place == Place::Host);
    match (to_device_memory, from_device_memory) {
        (true, true) if as_host => {
            on_device(target, to, from, shape, timing)?;
            // Copies between host memory are complete when they return.
            target.live.session.synchronise_stream(target.stream_id)
        }
        (true, true) => on_device(target, to, from, shape, timing),
        (true, false) => to_device(target, to, from, shape, timing),
        (false, true) => to_host(target, to, from, shape, timing),
        (false, false) => on_host(target, to, from, shape, timing),
    }
}

/// Copies inside the program's memory. Waits for the stream's earlier work first, except in a graph.
///
/// # Errors
/// The code of that earlier work.
pub fn on_host(target: &Target, to: Side, from: Side, shape: Shape, timing: Timing) -> Result<(), Code> {
    if shape.is_empty() {
        return Ok(());
    }
    if to.address == 0 || from.address == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let (to, from) = (to.host(&shape), from.host(&shape));
    if timing == Timing::InGraph {
        let copy = move |code| {
            if code == 0 {
                to.copy_from(&from);
            }
        };
        return target.live.session.post_callback(target.stream_id, Box::new(copy));
    }
    target.live.session.synchronise_stream(target.stream_id)?;
    to.copy_from(&from);
    Ok(())
}
