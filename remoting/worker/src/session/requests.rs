//! The queue of requests and reports to the appliance. `control` receives the answers.

use crate::code::images::Hash;
use crate::driver::{Code, Result};
use crate::order::pending::Described;
use crate::order::shared_events::Page;
use crate::packets::{Request, Token};
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use protocol::{ContextCreate, EventImport, ModuleLoad, SlabImport};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    pub commands: u64,
    pub launches: u64,
    pub bytes_in: u64,
}

/// The command that waits for the answer to an `Export` or `Import`.
#[derive(Debug)]
pub enum Sharing {
    Slab { seq: u64, address: u64 },
    SlabFrom { seq: u64, message: SlabImport },
    Event { seq: u64, event: u64, page: Rc<Page> },
    EventFrom { seq: u64, message: EventImport },
}

/// The reason for a request for memory.
#[derive(Debug)]
pub enum Asker {
    /// The client requested memory with this command.
    Client(u64),
    /// The worker needs memory for a context that this command creates.
    Context(u64, ContextCreate),
    /// The worker needs memory for the stack of a kernel.
    Stack(Box<Described>),
}

/// The requests to send, and the commands that wait for their answers.
#[derive(Debug, Default)]
pub struct Requests {
    queue: VecDeque<(Request, Option<OwnedFd>)>,
    next_id: u64,
    /// For each request for memory, the requester and the device.
    grants: HashMap<u64, (Asker, u32)>,
    queries: HashMap<u64, u64>,
    sharing: HashMap<u64, Sharing>,
    /// The modules that wait until the appliance has said whether it has their image.
    code: HashMap<u64, (u64, ModuleLoad)>,
    unhealthy_told: bool,
    last_stats: Stats,
}

impl Requests {
    /// Limit on a client's unanswered requests of each kind.
    const MOST: usize = 1024;

    pub fn push(&mut self, request: Request) {
        self.queue.push_back((request, None));
    }

    /// Returns the next request to send, and its descriptor.
    pub fn first(&self) -> Option<(&Request, Option<BorrowedFd<'_>>)> {
        self.queue.front().map(|(request, fd)| (request, fd.as_ref().map(AsFd::as_fd)))
    }

    pub fn sent(&mut self) {
        self.queue.pop_front();
    }

    /// Requests memory. Returns false if too many requests are unanswered.
    pub fn grant(&mut self, asker: Asker, device: u32, least: u64, want: u64) -> bool {
        if self.grants.len() >= Self::MOST {
            return false;
        }
        self.next_id += 1;
        let maps = matches!(asker, Asker::Client(_));
        self.grants.insert(self.next_id, (asker, device));
        self.push(Request::Grant { id: self.next_id, device, least, want, maps });
        true
    }

    pub fn memory(&mut self, seq: u64, device: u32) -> bool {
        if self.queries.len() >= Self::MOST {
            return false;
        }
        self.next_id += 1;
        self.queries.insert(self.next_id, seq);
        self.push(Request::Memory { id: self.next_id, device });
        true
    }

    /// Offers a descriptor to the other sessions of the lease.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if too many requests are unanswered.
    pub fn export(&mut self, sharing: Sharing, device: u32, size: u64, file: OwnedFd) -> Result<()> {
        let id = self.ask(sharing)?;
        self.queue.push_back((Request::Export { id, device, size }, Some(file)));
        Ok(())
    }

    /// Hands memory on to the process that waits for it.
    pub fn hand_on(&mut self, device: u32, size: u64, zeroed: bool, file: OwnedFd) {
        self.queue.push_back((Request::HandOn { device, size, zeroed }, Some(file)));
    }

    /// Requests an export of another session.
    ///
    /// # Errors
    /// The same errors as [`Requests::export`].
    pub fn import(&mut self, sharing: Sharing, token: Token) -> Result<()> {
        let id = self.ask(sharing)?;
        self.push(Request::Import { id, token });
        Ok(())
    }

    fn ask(&mut self, sharing: Sharing) -> Result<u64> {
        if self.sharing.len() >= Self::MOST {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        self.next_id += 1;
        self.sharing.insert(self.next_id, sharing);
        Ok(self.next_id)
    }

    /// Removes and returns the command that waits for this answer to an export or import.
    pub fn shared(&mut self, id: u64) -> Option<Sharing> {
        self.sharing.remove(&id)
    }

    /// Requests the image of a module. Returns false if too many requests are unanswered.
    pub fn shared_code(&mut self, seq: u64, load: ModuleLoad) -> bool {
        if self.code.len() >= Self::MOST {
            return false;
        }
        self.next_id += 1;
        self.push(Request::Code { id: self.next_id, hash: digits(&load.hash) });
        self.code.insert(self.next_id, (seq, load));
        true
    }

    /// Removes and returns the module that waits for this answer, and its command.
    pub fn shared_code_asked(&mut self, id: u64) -> Option<(u64, ModuleLoad)> {
        self.code.remove(&id)
    }

    /// Offers the appliance an image of `size` bytes, which can be read from the pipe.
    pub fn offer(&mut self, hash: &Hash, size: usize, pipe: OwnedFd) {
        self.queue.push_back((Request::Offer { hash: digits(hash), size: size as u64 }, Some(pipe)));
    }

    /// Removes and returns the requester of this grant, and the device.
    pub fn granted(&mut self, id: u64) -> Option<(Asker, u32)> {
        self.grants.remove(&id)
    }

    /// Removes and returns the command that waits for this answer.
    pub fn answered(&mut self, id: u64) -> Option<u64> {
        self.queries.remove(&id)
    }

    /// Whether the appliance has yet to answer a request.
    pub fn are_open(&self) -> bool {
        !(self.grants.is_empty() && self.queries.is_empty() && self.sharing.is_empty() && self.code.is_empty())
    }

    /// Reports unhealthy devices. Each session reports only once.
    pub fn unhealthy(&mut self, devices: impl IntoIterator<Item = u32>, code: Code) {
        if std::mem::replace(&mut self.unhealthy_told, true) {
            return;
        }
        for device in devices {
            let message = format!("a session got CUDA error {code}");
            self.push(Request::Unhealthy { device, code, message });
        }
    }

    /// Queues the statistics if they have changed.
    pub fn stats(&mut self, stats: Stats, bytes_out: u64) {
        if stats != self.last_stats {
            self.last_stats = stats;
            let Stats { commands, launches, bytes_in } = stats;
            self.push(Request::Stats { commands, launches, bytes_in, bytes_out });
        }
    }

    pub fn stats_are_due(&self, stats: Stats) -> bool {
        stats != self.last_stats
    }
}

fn digits(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_are_queued_when_they_change() {
        let mut requests = Requests::default();
        requests.stats(Stats::default(), 5);
        assert!(requests.first().is_none());
        requests.stats(Stats { commands: 1, ..Stats::default() }, 5);
        assert!(matches!(requests.first(), Some((Request::Stats { commands: 1, bytes_out: 5, .. }, None))));
    }
}
