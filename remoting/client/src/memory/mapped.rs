//! Page-locked memory that kernels use in place. The device has a mirror of it: what the host wrote goes there before
//! anything more is given to a stream, what the device wrote comes back when a call has waited for the device.
//!
//! Memory that is allocated so has one address on both sides, inside the arena; registered memory has a second one.

use super::host;
use crate::call::Code;
use crate::context::{self, Live};
use crate::memory::Origin;
use crate::session::{DeviceBox, HostBox, Session, lock, mint};
use crate::{stream, sys};
use driverapi::constants::{CU_EVENT_DISABLE_TIMING, CU_EVENT_WAIT_DEFAULT, CU_STREAM_NON_BLOCKING};
use driverapi::errors::*;
use protocol::{EventCreate, EventRecord, Extent, StreamWaitEvent};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// All of it together, in bytes. All of it is compared before each launch.
const MOST: usize = 16 << 20;
const PAGE: u64 = 4096;
/// Changes smaller than this are not told apart.
const WORD: usize = 4;
/// More separate changes than this are sent as one when the device is idle.
const MOST_RUNS: usize = 1024;

struct Mapped {
    host: usize,
    device: u64,
    /// The device's allocation that contains it.
    piece: u64,
    live: Arc<Live>,
    /// What both sides had when they were last compared.
    shadow: Vec<u8>,
}

/// What brings the bytes to and from one context's device: a stream of the library's own.
struct Carrier {
    live: Arc<Live>,
    lane: u64,
    /// Recorded behind the bytes; other streams wait for it.
    event: u64,
    generation: u64,
    seen: HashMap<u64, u64>,
    /// Something may have written on the device since the bytes last came back.
    dirty: bool,
}

#[derive(Default)]
struct Mirror {
    all: Vec<Mapped>,
    carriers: Vec<Carrier>,
}

static MIRROR: Mutex<Mirror> = Mutex::new(Mirror { all: Vec::new(), carriers: Vec::new() });
/// How many there are: programs without such memory pay for one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The stretches of words in which two images of the same memory differ.
fn differences(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, (a, b)) in old.chunks(WORD).zip(new.chunks(WORD)).enumerate() {
        if a != b {
            let word = index * WORD..index * WORD + b.len();
            match runs.last_mut() {
                Some(last) if last.end == word.start => last.end = word.end,
                _ => runs.push(word),
            }
        }
    }
    runs
}

impl Mapped {
    fn is_of(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.live.session, session)
    }

    fn contains(&self, address: u64, span: u64) -> bool {
        let offset = address.wrapping_sub(self.host as u64);
        offset.checked_add(span).is_some_and(|end| offset < self.shadow.len() as u64 && end <= self.shadow.len() as u64)
    }

    fn host_bytes(&self) -> &'static [u8] {
        // SAFETY: the memory is the program's and stays until it is forgotten here; the program may write at any time.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.host), self.shadow.len()) }
    }

    fn device_box(&self, run: &Range<usize>) -> DeviceBox {
        let width = run.len() as u64;
        let extent = Extent { width, height: 1, depth: 1, pitch: width, slice: width };
        DeviceBox { context: self.live.id, address: self.device + run.start as u64, extent }
    }

    fn send(&self, lane: u64, run: &Range<usize>) -> Result<(), Code> {
        let from = HostBox::linear(self.shadow[run.clone()].as_ptr().expose_provenance(), run.len() as u64);
        self.live.session.copy_to_device(lane, &self.device_box(run), &from)
    }

    /// Takes in what the device wrote. Where it wrote nothing, what the host wrote meanwhile stays.
    fn fetch(&mut self, lane: u64) -> Result<(), Code> {
        let mut now = vec![0u8; self.shadow.len()];
        let to = HostBox::linear(now.as_mut_ptr().expose_provenance(), now.len() as u64);
        self.live.session.copy_to_host(lane, &to, &self.device_box(&(0..now.len())))?;
        for run in differences(&self.shadow, &now) {
            let place = std::ptr::with_exposed_provenance_mut::<u8>(self.host + run.start);
            // SAFETY: as in `host_bytes`; the run is inside.
            unsafe { std::ptr::copy_nonoverlapping(now[run.clone()].as_ptr(), place, run.len()) };
        }
        self.shadow = now;
        Ok(())
    }

    /// What was allocated here becomes reserved address space again.
    fn release(&self) {
        if self.host as u64 == self.device {
            let pages = self.shadow.len().next_multiple_of(PAGE as usize);
            // SAFETY: these pages came from `allocate`; the program has given them back.
            unsafe { sys::unback(self.host, pages) };
        }
    }
}

impl Carrier {
    fn new(live: &Arc<Live>) -> Result<Carrier, Code> {
        let lane = stream::start(live, CU_STREAM_NON_BLOCKING, stream::LEAST_PRIORITY)?;
        let event = mint();
        live.session.post(0, &EventCreate { event, context: live.id, flags: CU_EVENT_DISABLE_TIMING })?;
        let (live, seen) = (Arc::clone(live), HashMap::new());
        Ok(Carrier { live, lane, event, generation: 0, seen, dirty: false })
    }

    fn sent(&mut self) -> Result<(), Code> {
        self.generation += 1;
        let record = EventRecord { event: self.event, generation: self.generation, flags: 0 };
        self.live.session.post(self.lane, &record).map(drop)
    }

    /// What is given to the lane from now on sees the bytes that were sent.
    fn hold(&mut self, lane: u64) -> Result<(), Code> {
        let Carrier { event, generation, .. } = *self;
        if self.seen.get(&lane).copied().unwrap_or(0) < generation {
            let wait = StreamWaitEvent { event, generation, flags: CU_EVENT_WAIT_DEFAULT };
            self.live.session.post(lane, &wait)?;
            self.seen.insert(lane, generation);
        }
        Ok(())
    }
}

impl Mirror {
    fn carrier(&mut self, live: &Arc<Live>) -> Result<&mut Carrier, Code> {
        let place = match self.carriers.iter().position(|carrier| carrier.live.id == live.id) {
            Some(place) => place,
            None => {
                self.carriers.push(Carrier::new(live)?);
                self.carriers.len() - 1
            }
        };
        Ok(&mut self.carriers[place])
    }

    fn add(&mut self, live: &Arc<Live>, host: usize, device: u64, piece: u64, size: usize) -> Result<(), Code> {
        let mapped = Mapped { host, device, piece, live: Arc::clone(live), shadow: vec![0; size] };
        let mapped = Mapped { shadow: mapped.host_bytes().to_vec(), ..mapped };
        let carrier = self.carrier(live)?;
        mapped.send(carrier.lane, &(0..size))?;
        carrier.sent()?;
        self.all.push(mapped);
        COUNT.store(self.all.len(), SeqCst);
        Ok(())
    }

    fn has_room(&self, size: usize) -> bool {
        self.all.iter().map(|mapped| mapped.shadow.len()).sum::<usize>().saturating_add(size) <= MOST
    }

    fn send_changes(&mut self, session: &Arc<Session>) -> Result<(), Code> {
        let Mirror { all, carriers } = self;
        for mapped in all.iter_mut().filter(|mapped| mapped.is_of(session)) {
            let Some(carrier) = carriers.iter_mut().find(|carrier| carrier.live.id == mapped.live.id) else { continue };
            let mut runs = differences(&mapped.shadow, mapped.host_bytes());
            if runs.len() > MOST_RUNS {
                // Between the changes lies what the device may be writing, unless it is idle.
                carrier.live.synchronise()?;
                mapped.fetch(carrier.lane)?;
                let changes = differences(&mapped.shadow, mapped.host_bytes());
                runs = changes.first().zip(changes.last()).map(|(a, b)| a.start..b.end).into_iter().collect();
            }
            for run in &runs {
                let now = mapped.host_bytes();
                mapped.shadow[run.clone()].copy_from_slice(&now[run.clone()]);
                mapped.send(carrier.lane, run)?;
            }
            if !runs.is_empty() {
                carrier.sent()?;
            }
        }
        Ok(())
    }
}

/// Memory with one address on both sides, of page size; `None` if there is no room for a mirror.
///
/// # Errors
/// The session's sticky error.
pub fn allocate(live: &Arc<Live>, size: usize) -> Result<Option<usize>, Code> {
    let mirror = &mut *lock(&MIRROR);
    let arena = live.session.arena();
    let pages = (size as u64).checked_next_multiple_of(PAGE).filter(|_| mirror.has_room(size) && arena.is_reserved());
    let Some(pages) = pages else { return Ok(None) };
    let piece = match live.device.memory.allocate(live, pages + PAGE, Origin::default()) {
        Ok(piece) => piece,
        Err(CUDA_ERROR_OUT_OF_MEMORY) => return Ok(None),
        Err(code) => return Err(code),
    };
    let address = piece.next_multiple_of(PAGE);
    // SAFETY: the arena is reserved address space of this process, and this part of it was just taken for this purpose.
    if !unsafe { sys::back(address as usize, pages as usize) } {
        live.device.memory.free(piece, None)?;
        return Ok(None);
    }
    mirror.add(live, address as usize, address, piece, size)?;
    Ok(Some(address as usize))
}

/// Gives registered memory a mirror, if there is room for it.
///
/// # Errors
/// The session's sticky error.
pub fn register(live: &Arc<Live>, host: usize, size: usize) -> Result<(), Code> {
    let mirror = &mut *lock(&MIRROR);
    if !mirror.has_room(size) {
        return Ok(());
    }
    match live.device.memory.allocate(live, size as u64, Origin::default()) {
        Ok(device) => mirror.add(live, host, device, device, size),
        Err(CUDA_ERROR_OUT_OF_MEMORY) => Ok(()),
        Err(code) => Err(code),
    }
}

/// Ends the mirror of memory that starts here, after everything that may use it. False if there is none.
///
/// # Errors
/// The code of work that failed.
pub fn forget(host: usize) -> Result<bool, Code> {
    let mirror = &mut *lock(&MIRROR);
    let Some(place) = mirror.all.iter().position(|mapped| mapped.host == host) else { return Ok(false) };
    let mapped = &mut mirror.all[place];
    mapped.live.synchronise()?;
    if let Some(carrier) = mirror.carriers.iter().find(|carrier| carrier.live.id == mapped.live.id) {
        mapped.fetch(carrier.lane)?;
    }
    let mapped = mirror.all.swap_remove(place);
    COUNT.store(mirror.all.len(), SeqCst);
    mapped.live.device.memory.free(mapped.piece, None)?;
    mapped.release();
    Ok(true)
}

/// The context is about to be destroyed, with the memory that was pinned in it.
pub fn forget_context(context: u64) {
    let mirror = &mut *lock(&MIRROR);
    mirror.carriers.retain(|carrier| carrier.live.id != context);
    for mapped in mirror.all.extract_if(.., |mapped| mapped.live.id == context) {
        if mapped.host as u64 == mapped.device {
            let _ = host::remove(mapped.host, false, CUDA_ERROR_INVALID_VALUE);
        }
        mapped.release();
    }
    COUNT.store(mirror.all.len(), SeqCst);
}

/// Where a device of this session finds memory of the program, if it has it.
pub fn device_address(session: &Arc<Session>, host: u64, span: u64) -> Option<u64> {
    if COUNT.load(SeqCst) == 0 {
        return None;
    }
    let mirror = lock(&MIRROR);
    let mapped = mirror.all.iter().find(|mapped| mapped.is_of(session) && mapped.contains(host, span))?;
    Some(mapped.device + (host - mapped.host as u64))
}

/// What is given to the lane after this sees what the host wrote before.
///
/// # Errors
/// The session's sticky error.
pub fn before_work(session: &Arc<Session>, lane: u64) -> Result<(), Code> {
    if COUNT.load(SeqCst) == 0 {
        return Ok(());
    }
    let mirror = &mut *lock(&MIRROR);
    mirror.send_changes(session)?;
    for carrier in mirror.carriers.iter_mut().filter(|carrier| Arc::ptr_eq(&carrier.live.session, session)) {
        carrier.hold(lane)?;
        carrier.dirty = true;
    }
    Ok(())
}

/// What the device has written by now is seen by the host.
///
/// # Errors
/// The session's sticky error.
pub fn after_wait(session: &Arc<Session>) -> Result<(), Code> {
    if COUNT.load(SeqCst) == 0 {
        return Ok(());
    }
    let idle = context::all_live().iter().filter(|live| Arc::ptr_eq(&live.session, session)).all(|live| live.is_idle());
    let Mirror { all, carriers } = &mut *lock(&MIRROR);
    for carrier in carriers.iter_mut().filter(|carrier| carrier.dirty && Arc::ptr_eq(&carrier.live.session, session)) {
        for mapped in all.iter_mut().filter(|mapped| mapped.live.id == carrier.live.id) {
            mapped.fetch(carrier.lane)?;
        }
        carrier.dirty = !idle;
    }
    Ok(())
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
    }
}
