//! One mirror: its bytes when host and device were last compared, and the known writes since.

use super::super::changes::{with_bytes, written_by_both};
use super::super::host::HostKind;
use super::written::Written;
use crate::Code;
use crate::devices::Access;
use crate::devices::context::Live;
use crate::program::{log, sys};
use crate::session::{DeviceBox, HostBox, Session, mint};
use driverapi::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN};
use driverapi::rules::{Rule, kept};
use protocol::{Extent, MIRROR_WORD as WORD, Message, MirrorAdd, MirrorEnd, differences};
use std::iter;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Once};

/// The environment variable that enables [`is_checked`].
const CHECKED: &str = "REMOTEGPU_CHECK_MIRRORS";
/// Returns whether mirrors that end are compared with what the device has: in debug builds, or if the user sets
/// `CHECKED`.
pub fn is_checked() -> bool {
    static IS_ASKED: LazyLock<bool> = LazyLock::new(|| std::env::var_os(CHECKED).is_some_and(|value| value == "1"));
    cfg!(debug_assertions) || *IS_ASKED
}

/// The number of bytes that are read at once from registered memory, which the program may have unmapped.
const WINDOW: usize = 256 << 10;

/// A part of a mirror that the worker knows by a number. It begins at `at` and ends where the next part begins.
struct Part {
    mirror: u64,
    at: usize,
}

pub struct Mapped {
    pub host: usize,
    pub kind: HostKind,
    pub device: u64,
    /// The device allocation that contains the mirror. Without one, the mirror lies in granules.
    pub piece: Option<u64>,
    pub live: Arc<Live>,
    /// The access of other devices that use this mirror.
    pub reached_by: Vec<Access>,
    /// The bytes that both sides had when they were last compared.
    pub shadow: Vec<u8>,
    /// The parts for which the worker reports the device's writes. If there are none, the whole mirror is fetched.
    parts: Vec<Part>,
    /// The pages for which the kernel tracks the program's writes. All other bytes are compared.
    pub written: Option<Written>,
    /// Ranges that a worker on this machine has written. The kernel does not track these writes.
    landed: Vec<Range<usize>>,
    /// Set if the program has unmapped the memory. Nothing is read or written there any more.
    is_gone: bool,
}

impl Mapped {
    /// Creates a mirror of memory that the device does not have yet. Its shadow is all zeros, not the present bytes.
    pub fn new(
        live: &Arc<Live>,
        (host, size): (usize, usize),
        kind: HostKind,
        device: u64,
        piece: Option<u64>,
    ) -> Mapped {
        Mapped {
            host,
            kind,
            device,
            piece,
            live: Arc::clone(live),
            reached_by: Vec::new(),
            shadow: vec![0; size],
            parts: Vec::new(),
            written: None,
            landed: Vec::new(),
            is_gone: false,
        }
    }

    pub fn is_of(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.live.session, session)
    }

    /// Returns whether the device of `live` has the mirror at the program's address.
    pub fn is_on(&self, live: &Live) -> bool {
        self.device == self.host as u64 && std::ptr::eq(self.live.device, live.device)
    }

    /// Returns whether the mirror is on another device that the device of `live` may access.
    pub fn is_reached_by(&self, live: &Live) -> bool {
        self.reached_by.iter().any(|access| std::ptr::eq(access.device(), live.device))
    }

    pub fn contains(&self, address: u64, span: u64) -> bool {
        let offset = address.wrapping_sub(self.host as u64);
        offset.checked_add(span).is_some_and(|end| offset < self.shadow.len() as u64 && end <= self.shadow.len() as u64)
    }

    /// Returns whether the two mirrors have bytes of the program's memory in common.
    pub fn overlaps(&self, other: &Mapped) -> bool {
        self.host < other.host + other.shadow.len() && other.host < self.host + self.shadow.len()
    }

    pub fn device_box(&self, run: &Range<usize>) -> DeviceBox {
        let extent = Extent::linear(run.len() as u64);
        DeviceBox { context: self.live.id, address: self.device + run.start as u64, extent }
    }

    /// Returns the host's present bytes, or `None` if the program has unmapped the memory. Only registered memory can
    /// be unmapped, because all other memory belongs to the library.
    fn host_bytes<'a>(&self, part: &Range<usize>, window: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        if self.kind == HostKind::Registered {
            window.resize(part.len(), 0);
            return sys::read_memory(&self.host_places(std::slice::from_ref(part)), window).then_some(window);
        }
        Some(self.own_bytes(part))
    }

    /// Returns the present bytes of memory that belongs to the library.
    fn own_bytes<'a>(&self, part: &Range<usize>) -> &'a [u8] {
        // SAFETY: the memory stays mapped until the mirror is removed; the program may write at any time.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.host + part.start), part.len()) }
    }

    fn host_places(&self, runs: &[Range<usize>]) -> Vec<Range<usize>> {
        runs.iter().map(|run| self.host + run.start..self.host + run.end).collect()
    }

    fn write_host(&self, runs: &[Range<usize>], bytes: &[u8]) -> bool {
        if self.kind == HostKind::Registered {
            return sys::write_memory(&self.host_places(runs), bytes);
        }
        for (run, now) in with_bytes(runs, bytes) {
            let place = std::ptr::with_exposed_provenance_mut::<u8>(self.host + run.start);
            // SAFETY: as in `own_bytes`; the bytes lie inside that memory.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), place, now.len()) };
        }
        true
    }

    /// Copies the host's bytes from position `from` on into the shadow.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the program has unmapped the memory.
    pub fn take_all(&mut self, from: usize) -> Result<(), Code> {
        let (part, mut window) = (from..self.shadow.len(), Vec::new());
        let now = self.host_bytes(&part, &mut window).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.shadow[part].copy_from_slice(now);
        Ok(())
    }

    /// Copies the host's changed bytes into the shadow, and returns their ranges.
    pub fn take_changes(&mut self) -> Vec<Range<usize>> {
        let (mut runs, mut window) = (Vec::new(), Vec::new());
        if self.is_gone {
            return runs;
        }
        let windows =
            |part: Range<usize>| part.clone().step_by(WINDOW).map(move |start| start..(start + WINDOW).min(part.end));
        for part in self.suspects().into_iter().flat_map(windows) {
            let start = part.start;
            let Some(now) = self.host_bytes(&part, &mut window) else { return self.lose(runs) };
            let old = &mut self.shadow[part];
            for run in differences(old, now) {
                old[run.clone()].copy_from_slice(&now[run.clone()]);
                runs.push(start + run.start..start + run.end);
            }
        }
        runs
    }

    /// Records the ranges that copies from the device have written.
    pub fn note_landings(&mut self, places: &[Range<usize>]) {
        if self.written.is_some() {
            let (start, end) = (self.host, self.host + self.shadow.len());
            let inside = places.iter().map(|place| place.start.max(start)..place.end.min(end));
            self.landed.extend(inside.filter(|place| !place.is_empty()));
        }
    }

    /// Returns the sorted ranges that the host may have written, rounded to whole words.
    fn suspects(&mut self) -> Vec<Range<usize>> {
        let (host, size) = (self.host, self.shadow.len());
        let landed = std::mem::take(&mut self.landed);
        let noted = self.written.as_ref().and_then(|written| Some((written.pages().clone(), written.take()?)));
        let Some((pages, found)) = noted else {
            self.written = None;
            return iter::once(0..size).collect();
        };
        let edges = [host..pages.start, pages.end..host + size];
        let edges = edges.into_iter().filter(|_| kept(Rule::TrackEdges));
        let mut all: Vec<_> = edges.chain(found).chain(landed).filter(|part| !part.is_empty()).collect();
        all.sort_unstable_by_key(|part| part.start);
        let words =
            |part: Range<usize>| (part.start - host) / WORD * WORD..(part.end - host).next_multiple_of(WORD).min(size);
        all.into_iter().map(words).collect()
    }

    pub fn send(&self, stream_id: u64, run: &Range<usize>) -> Result<(), Code> {
        let from = HostBox::linear(self.shadow[run.clone()].as_ptr().expose_provenance(), run.len() as u64);
        self.live.session.copy_to_device_of_library(stream_id, &self.device_box(run), &from)
    }

    /// Asks the worker to report the device's writes from position `at` on, if it supports that. The device must
    /// already have the shadow's bytes.
    pub fn follow(&mut self, stream_id: u64, at: usize) -> Result<(), Code> {
        let session = &self.live.session;
        if !session.has(MirrorAdd::CODE) {
            return Ok(());
        }
        let (mirror, context, size) = (mint(), self.live.id, (self.shadow.len() - at) as u64);
        let add = MirrorAdd { mirror, context, address: self.device + at as u64, size };
        match session.call(stream_id, &add)?.code {
            0 => self.parts.push(Part { mirror, at }),
            // The worker has reached its limit for a session, so the whole mirror is fetched instead.
            CUDA_ERROR_OUT_OF_MEMORY => self.forget()?,
            code => return Err(code),
        }
        Ok(())
    }

    /// Ends the worker's reports about the mirror.
    pub fn forget(&mut self) -> Result<(), Code> {
        let session = &self.live.session;
        self.parts.drain(..).try_for_each(|part| session.post(0, &MirrorEnd { mirror: part.mirror }).map(drop))
    }

    /// Returns whether the worker reports the device's writes.
    pub fn is_told(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Returns the start of the part with this number.
    pub fn part(&self, mirror: u64) -> Option<usize> {
        self.parts.iter().find(|part| part.mirror == mirror).map(|part| part.at)
    }

    /// Splits a run by parts. Returns for each part its number, its start, and the bytes of the run that lie in it.
    pub fn by_parts(&self, run: &Range<usize>) -> Vec<(u64, usize, Range<usize>)> {
        let ends = self.parts.iter().skip(1).map(|next| next.at).chain([self.shadow.len()]);
        let pieces = self.parts.iter().zip(ends).map(|(part, end)| {
            let piece = run.start.max(part.at)..run.end.min(end);
            (part.mirror, part.at, piece)
        });
        pieces.filter(|(.., piece)| piece.start < piece.end).collect()
    }

    /// Fetches the device's writes. Bytes that the device did not write keep the host's value.
    pub fn fetch(&mut self, stream_id: u64) -> Result<(), Code> {
        if self.is_gone {
            return Ok(());
        }
        let now = self.device_bytes(stream_id)?;
        let runs = differences(&self.shadow, &now);
        let bytes: Vec<u8> = runs.iter().flat_map(|run| &now[run.clone()]).copied().collect();
        self.take_in(&runs, &bytes);
        Ok(())
    }

    fn device_bytes(&self, stream_id: u64) -> Result<Vec<u8>, Code> {
        let mut now = vec![0u8; self.shadow.len()];
        let to = HostBox::linear(now.as_mut_ptr().expose_provenance(), now.len() as u64);
        self.live.session.copy_to_host_of_library(stream_id, &to, &self.device_box(&(0..now.len())))?;
        Ok(now)
    }

    /// Returns the first range where the device's bytes differ from the shadow, if the worker reports the device's
    /// writes.
    pub fn difference(&self, stream_id: u64) -> Option<Range<usize>> {
        if !self.is_told() || self.is_gone {
            return None;
        }
        // A failed session has no bytes to compare.
        let now = self.device_bytes(stream_id).ok()?;
        differences(&self.shadow, &now).first().cloned()
    }

    /// Logs a difference, and returns the code for it.
    pub fn tell_of_a_difference(&self, wrong: &Range<usize>) -> Code {
        let (host, size, kind) = (self.host, self.shadow.len(), self.kind);
        log::error(&format!(
            "bytes {} to {} of {size} bytes of {kind} memory at {host:#x} are not what the GPU has ({CHECKED}=1): the \
             program was not told of them; unless a kernel was still writing there, report this with the program",
            wrong.start, wrong.end
        ));
        CUDA_ERROR_UNKNOWN
    }

    /// Copies the device's writes to the host and into the shadow. `runs` is sorted, and `bytes` contains the bytes of
    /// all runs, one after another.
    pub fn take_in(&mut self, runs: &[Range<usize>], bytes: &[u8]) {
        let is_inside = runs.iter().all(|run| run.end <= self.shadow.len());
        if self.is_gone || runs.is_empty() || !is_inside {
            return;
        }
        let mut read = Vec::new();
        if self.kind == HostKind::Registered {
            read.resize(bytes.len(), 0);
            if !sys::read_memory(&self.host_places(runs), &mut read) {
                return self.lose(());
            }
        }
        let mut from = 0;
        for run in runs {
            let part = from..from + run.len();
            from = part.end;
            let now = if self.kind == HostKind::Registered { &read[part.clone()] } else { self.own_bytes(run) };
            if let Some(lost) = written_by_both(&self.shadow[run.clone()], now, &bytes[part]) {
                self.tell_of_a_lost_word(run.start + lost);
            }
        }
        if !self.write_host(runs, bytes) {
            return self.lose(());
        }
        for (run, now) in with_bytes(runs, bytes).filter(|_| kept(Rule::MirrorBase)) {
            self.shadow[run.clone()].copy_from_slice(now);
        }
    }

    /// Marks the memory as gone, because the program has unmapped it. CUDA allows that as long as no kernel uses it.
    /// Returns `rest`.
    fn lose<T>(&mut self, rest: T) -> T {
        if !std::mem::replace(&mut self.is_gone, true) {
            let (host, size) = (self.host, self.shadow.len());
            log::error(&format!(
                "the program unmapped or protected a part of {size} bytes of page-locked memory at {host:#x} that it \
                 registered for kernels: they keep what they had of it, and what they write is lost; call \
                 cuMemHostUnregister before"
            ));
        }
        rest
    }

    /// Logs that the device overwrote a word of the program. Logs only once, because such programs usually repeat it.
    fn tell_of_a_lost_word(&self, at: usize) {
        static TOLD: Once = Once::new();
        let (host, size, kind) = (self.host, self.shadow.len(), self.kind);
        TOLD.call_once(|| {
            log::error(&format!(
                "the program wrote byte {at} of {size} bytes of {kind} memory at {host:#x} after a launch and before it \
                 waited for it, and the kernel wrote there, too: the program's value is lost. Both at once is not \
                 provided (CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS is 0): let the program wait before it writes"
            ));
        });
    }
}
