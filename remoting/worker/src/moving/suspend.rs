//! Suspends and resumes a session. The contents of its slabs are saved to an image, and the memory returns to the
//! driver. Contexts, modules and addresses stay. Commands that arrive meanwhile are held and executed afterwards. A
//! session that is to move (`departure`) is held in the same way.

use crate::driver::{Driver, Handle, Result as DriverResult};
use crate::io::frames::Payload;
use crate::memory::mapping::{place, unmap};
use crate::memory::overwriting::scrub;
use crate::moving::hold::{BRIEF, Host, State, Then};
use crate::moving::image::{Image, Place};
use crate::packets::Request;
use crate::session::commands::Session;
use protocol::{
    CallbackDone, Close, GateOpen, HEADER_BYTES, Header, Held, Message, Skipped, SupplyBytes, SupplyCancel,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The commands that are executed at once although the session is to move. Work in progress may wait for them, and they
/// do not depend on earlier commands that are held.
const AHEAD: [u32; 4] = [CallbackDone::CODE, GateOpen::CODE, SupplyBytes::CODE, SupplyCancel::CODE];

/// The place and the memory of a slab, for a helper.
#[derive(Debug, Clone, Copy)]
struct Saved {
    place: Place,
    memory: u64,
}

impl Session {
    /// Holds a frame for later. The command `Close` ends the session instead.
    pub fn hold_frame(&mut self, header: &Header, payload: Payload) {
        if header.code == Close::CODE {
            return self.end(0, "closed by the client");
        }
        if !self.hold.stops() && AHEAD.contains(&header.code) {
            // A placeholder keeps the position in the sequence of commands.
            self.hold.frames.push_back((Header { code: Skipped::CODE, len: 0, ..*header }, Payload::Heap(Vec::new())));
            return self.take_ahead(header, payload);
        }
        self.hold.bytes += HEADER_BYTES + payload.bytes().len();
        self.hold.frames.push_back((*header, payload));
    }

    /// Starts to suspend the session. The image goes to `file`, which has room for it.
    pub fn suspend(&mut self, file: Option<OwnedFd>, reason: String, patience: Duration) {
        let then = file.map(Then::Save).ok_or("the appliance gave no file for the image");
        match then.map_err(str::to_owned).and_then(|then| self.begin_hold(then, patience)) {
            Ok(()) => {
                self.hold.told = true;
                self.out.push(Held::CODE, 0, &Held { reason }, &[]);
            }
            Err(reason) => self.requests.push(Request::NotSuspended { reason }),
        }
    }

    /// Starts to move the session, after [`Session::send_ahead`].
    pub fn move_away(&mut self, patience: Duration) {
        let begun = match &self.hold.state {
            _ if self.hold.ahead.is_none() => Err("the appliance gave no connection".into()),
            State::Suspended if self.is_settled() => {
                self.hold.state = State::Leaving;
                Ok(())
            }
            State::Suspended => {
                Err("KernelStillRuns: some of its work waited when it was suspended; resume it, and move it then"
                    .into())
            }
            _ => self.begin_hold(Then::Move, patience),
        };
        if let Err(reason) = begun {
            self.requests.push(Request::NotMoved { reason });
        }
    }

    /// Cancels a move. The session stays, and stays suspended if it was.
    pub fn stay(&mut self) {
        if self.hold.image.is_none() {
            return self.let_go();
        }
        self.hold.records.clear();
        self.hold.state = State::Suspended;
        self.forget_ahead();
    }

    fn begin_hold(&mut self, then: Then, patience: Duration) -> Result<(), String> {
        if self.hold.holds() {
            return Err("Suspended: it is suspended or moved already, or about to be resumed".into());
        }
        self.check_unshared()?;
        self.let_all_go();
        self.overwrite_all_freed();
        self.mark_running();
        // Bytes on the stripes use the session's main connection instead, which stays open.
        self.stripes.close();
        self.hold.state = State::Draining { then, since: Instant::now(), patience, host: Host::Brief };
        Ok(())
    }

    /// Adds markers to all streams that were given work, so that its completion is noticed. Returns whether there were
    /// any.
    fn mark_running(&mut self) -> bool {
        let running: Vec<u64> = self.streams.live().filter(|(_, stream)| stream.issued > 0).map(|(id, _)| id).collect();
        running.iter().for_each(|stream| self.mark(*stream));
        !running.is_empty()
    }

    /// Saves or moves the session when all work that has begun is complete. Cancels the suspension or the move if the
    /// work takes too long. Returns whether anything was done.
    pub fn drain(&mut self) -> bool {
        let State::Draining { ref then, since, patience, .. } = self.hold.state else { return false };
        let moves = matches!(then, Then::Move);
        let quiet = !self.completions.is_pending() && self.helpers.is_idle() && self.closing.is_empty();
        // Only a check shows whether commands that were let through are complete. Until then they may write to mirrors.
        let runs = moves && quiet && self.mark_running();
        // The client first receives everything that the device has written to mirrors, so that no such write has to be
        // kept.
        let quiet = quiet && !runs && self.mirrors.settle();
        if quiet && !self.requests.are_open() && (self.is_settled() || !moves) {
            match std::mem::replace(&mut self.hold.state, State::Copying) {
                State::Draining { then: Then::Save(file), .. } => self.save(file),
                State::Draining { then: Then::Move, .. } => self.hold.state = State::Leaving,
                other => self.hold.state = other,
            }
            return true;
        }
        if moves && self.look_at_host_functions(quiet) {
            return true;
        }
        if since.elapsed() < patience {
            return false;
        }
        let seconds = patience.as_secs();
        let reason = format!("KernelStillRuns: what the GPU was given is not complete after {seconds} s");
        self.requests.push(if moves { Request::NotMoved { reason } } else { Request::NotSuspended { reason } });
        self.let_go();
        true
    }

    /// Executes held commands if a host function takes long while the GPU is `quiet`, because the host function may
    /// wait for an answer to them. The client itself sends the program's writes that come before a word that a stream
    /// waits for. Returns whether anything was done.
    fn look_at_host_functions(&mut self, quiet: bool) -> bool {
        let first = self.callbacks.values().min().copied();
        let State::Draining { host, .. } = &mut self.hold.state else { return false };
        match (&*host, first) {
            (Host::LetThrough, Some(_)) => false,
            (Host::Lasts(seq, since), Some(first)) if *seq == first => {
                let lets_through = quiet && since.elapsed() >= BRIEF;
                if lets_through {
                    *host = Host::LetThrough;
                    self.run_kept();
                }
                lets_through
            }
            (_, Some(first)) => {
                *host = Host::Lasts(first, Instant::now());
                false
            }
            (_, None) => {
                *host = Host::Brief;
                false
            }
        }
    }

    fn run_kept(&mut self) {
        self.hold.bytes = 0;
        for (header, payload) in std::mem::take(&mut self.hold.frames) {
            self.accept(&header, payload);
        }
    }

    pub fn check_unshared(&self) -> Result<(), String> {
        if self.memory.slabs.values().any(|slab| slab.shared.is_some()) {
            return Err("SharedMemory: its processes share memory of the GPU (cuIpc*)".into());
        }
        Ok(())
    }

    fn slabs_to_save(&self) -> Vec<Saved> {
        let slabs = self.memory.slabs.iter().filter(|(_, slab)| slab.shared.is_none());
        slabs
            .map(|(address, slab)| {
                let (address, size, device) = (*address, slab.size, slab.device);
                Saved { place: Place { address, size, device, filler: self.filler(device) }, memory: slab.memory }
            })
            .collect()
    }

    fn save(&mut self, file: OwnedFd) {
        let contexts: Vec<Handle> = self.contexts.live().map(|(_, context)| context.handle).collect();
        let slabs = self.slabs_to_save();
        let bytes = slabs.iter().map(|slab| slab.place.size).sum();
        self.helpers.start_in_order(
            move |driver| {
                settle(driver, &contexts).map_err(|code| format!("the driver answered CUDA error {code}"))?;
                let places: Vec<Place> = slabs.iter().map(|slab| slab.place).collect();
                let mut image = Image::new(file)?;
                image.save(driver, &places)?;
                Ok((image, slabs.iter().map(|slab| leave(driver, slab)).collect::<Vec<Left>>()))
            },
            move |session: &mut Session, saved: Result<_, String>| match saved {
                Ok((image, slabs)) => session.saved(image, &slabs, bytes),
                Err(reason) => {
                    session.requests.push(Request::NotSuspended { reason });
                    session.let_go();
                }
            },
        );
    }

    fn saved(&mut self, image: Image, slabs: &[Left], bytes: u64) {
        for Left { place, scrubbed, unmapped } in slabs {
            if let Some(slab) = self.memory.slabs.get_mut(&place.address) {
                slab.memory = 0;
            }
            if !scrubbed {
                self.requests.push(Request::Left { size: place.size });
            }
            if let Err(code) = *unmapped {
                self.end(code, "memory of a session that was to be suspended could not be given back");
            }
        }
        let kept = (0..self.device_count).map(|device| {
            let used = self.memory.used.get(&device).copied().unwrap_or(0);
            used - slabs.iter().map(|left| left.place).filter(|p| p.device == device).map(|p| p.size).sum::<u64>()
        });
        self.requests.push(Request::Suspended { bytes, kept: kept.collect() });
        (self.hold.state, self.hold.image) = (State::Suspended, Some(Arc::new(image)));
    }

    /// Resumes the session, because the GPU has room again.
    pub fn resume(&mut self) {
        let (State::Suspended, Some(image)) = (&self.hold.state, self.hold.image.clone()) else {
            let reason = "it is not suspended".into();
            return self.requests.push(Request::NotResumed { reason });
        };
        self.hold.state = State::Copying;
        let slabs = self.slabs_to_save();
        self.helpers.start_in_order(
            move |driver| bring_back(driver, &image, &slabs),
            |session: &mut Session, restored| match restored {
                Ok(memory) => session.resumed(&memory),
                Err((reason, left)) => {
                    for Left { place, .. } in left.iter().filter(|left| !left.scrubbed) {
                        session.requests.push(Request::Left { size: place.size });
                    }
                    session.requests.push(Request::NotResumed { reason });
                    session.hold.state = State::Suspended;
                }
            },
        );
    }

    fn resumed(&mut self, memory: &[(u64, u64)]) {
        for (address, memory) in memory {
            if let Some(slab) = self.memory.slabs.get_mut(address) {
                slab.memory = *memory;
            }
            if let Err(code) = self.show_to_peers(*address) {
                self.late(code);
            }
        }
        self.requests.push(Request::Resumed);
        self.let_go();
    }

    /// Ends the hold. Executes the commands that were held; later commands run when they arrive.
    pub fn let_go(&mut self) {
        self.forget_ahead();
        let hold = std::mem::take(&mut self.hold);
        if hold.told {
            self.out.push(Held::CODE, 0, &Held { reason: String::new() }, &[]);
        }
        for (header, payload) in hold.frames {
            self.accept(&header, payload);
        }
        self.retry_blocked();
        self.advance();
    }
}

/// The result of unmapping a saved slab.
struct Left {
    place: Place,
    scrubbed: bool,
    unmapped: DriverResult<()>,
}

/// The reason why a session was not restored, and the results of unmapping the slabs that were already restored.
type NotBack = (String, Vec<Left>);

/// Waits until all work in these contexts is complete.
///
/// # Errors
/// The error of that work.
pub fn settle(driver: &Driver, contexts: &[Handle]) -> DriverResult<()> {
    contexts.iter().try_for_each(|context| driver.set_current(*context).and_then(|()| driver.context_synchronize()))
}

fn leave(driver: &Driver, slab: &Saved) -> Left {
    let Place { address, size, device, filler } = slab.place;
    let scrubbed = scrub(driver, device, address, size, filler).is_ok();
    Left { place: slab.place, scrubbed, unmapped: unmap(driver, address, size, slab.memory) }
}

/// Maps new memory at the old addresses, and restores the contents. After an error, nothing stays mapped.
fn bring_back(driver: &Driver, image: &Image, slabs: &[Saved]) -> Result<Vec<(u64, u64)>, NotBack> {
    let mut mapped = Vec::new();
    let restored = slabs.iter().try_for_each(|Saved { place: slab, .. }| {
        let device = driver.device(slab.device as i32)?;
        let memory = place(driver, driver.memory_create(slab.size, device)?, slab.address, slab.size, device)?;
        mapped.push((slab.address, memory));
        Ok(())
    });
    let places: Vec<Place> = slabs.iter().map(|slab| slab.place).collect();
    let restored = restored
        .map_err(|code: u32| format!("the driver gave no memory: CUDA error {code}"))
        .and_then(|()| image.restore(driver, &places));
    restored.map_err(|reason| {
        // Some slabs may already have their contents.
        let back = mapped.iter().zip(slabs).map(|((_, memory), slab)| Saved { place: slab.place, memory: *memory });
        (reason, back.map(|slab| leave(driver, &slab)).collect())
    })?;
    Ok(mapped)
}
