//! What the worker asks of the appliance and tells it. `control` takes the answers.

use crate::code::images::Hash;
use crate::driver::{Code, Result};
use crate::order::pending::Described;
use crate::order::shared_events::Page;
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use protocol::{ContextCreate, EventImport, ModuleLoad, SlabImport};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    pub commands: u64,
    pub launches: u64,
    pub bytes_in: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Request {
    Ready,
    Grant {
        id: u64,
        device: u32,
        least: u64,
        want: u64,
        /// For slabs, and not for what the driver takes by itself.
        maps: bool,
    },
    /// So much will be returned, when it has been overwritten. `offers`: for a moment it waits for who wants some of it.
    Leaving {
        device: u32,
        size: u64,
        offers: bool,
    },
    Return {
        device: u32,
        size: u64,
    },
    /// All that the client had sent when we were asked is told.
    Settled {
        id: u64,
    },
    /// The session is over: what it was granted is free when this process has ended. `offers`: for a moment it waits for
    /// who wants some of it.
    Ending {
        offers: bool,
    },
    /// With a descriptor: memory for who asked for it. `zeroed`: it has been overwritten.
    HandOn {
        device: u32,
        size: u64,
        zeroed: bool,
    },
    Memory {
        id: u64,
        device: u32,
    },
    Stats {
        commands: u64,
        launches: u64,
        bytes_in: u64,
        bytes_out: u64,
    },
    /// The client's connection broke, or there is another one.
    Connection {
        connected: bool,
        /// By a client on this machine, or by its end.
        closed: bool,
    },
    Unhealthy {
        device: u32,
        code: Code,
        message: String,
    },
    /// With a descriptor: other sessions of the lease may import it. Without a size it is an event.
    Export {
        id: u64,
        device: u32,
        size: u64,
    },
    Import {
        id: u64,
        token: Token,
    },
    /// What was exported or imported is not used any more. Of memory the answer says whether anybody else has it.
    Release {
        token: Token,
    },
    /// Nobody has this memory any more.
    Freed {
        token: Token,
    },
    /// Is there an image that has this hash? In hexadecimal digits.
    Code {
        id: u64,
        hash: String,
    },
    /// With a descriptor: a pipe that this image of `size` bytes comes through, for later sessions of the tenant.
    Offer {
        hash: String,
        size: usize,
    },
    Log {
        line: String,
    },
    /// Memory goes back to the driver with what the tenant wrote: nobody could overwrite it.
    Left {
        size: u64,
    },
    /// So many bytes are in the image; of each device so many are still taken, for what the driver has by itself.
    Suspended {
        bytes: u64,
        kept: Vec<u64>,
    },
    /// It goes on as it was.
    NotSuspended {
        reason: String,
    },
    Resumed,
    /// It is suspended as it was.
    NotResumed {
        reason: String,
    },
    /// The worker at the other end has so many bytes of its memory already.
    Ahead {
        bytes: u64,
    },
    /// The worker at the other end has it; so many bytes of its memory were sent, with those that were ahead.
    Moved {
        bytes: u64,
    },
    /// It goes on here as it was.
    NotMoved {
        reason: String,
    },
    /// All of a session that was moved here has arrived.
    Adopted,
}

/// The appliance's name for what is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub [u8; 16]);

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Token, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = u128::from_str_radix(&text, 16).map_err(D::Error::custom)?;
        Ok(Token(number.to_be_bytes()))
    }
}

/// What waits for the answer to an `Export` or `Import`.
#[derive(Debug)]
pub enum Sharing {
    Slab { seq: u64, address: u64 },
    SlabFrom { seq: u64, message: SlabImport },
    Event { seq: u64, event: u64, page: Rc<Page> },
    EventFrom { seq: u64, message: EventImport },
}

/// Who asked for memory.
#[derive(Debug)]
pub enum Asker {
    /// The client, by this command.
    Client(u64),
    /// We, for a context that this command shall make.
    Context(u64, ContextCreate),
    /// We, for the stack of a kernel.
    Stack(Box<Described>),
}

/// Requests to be sent, and the commands that wait for their answers.
#[derive(Debug, Default)]
pub struct Requests {
    queue: VecDeque<(Request, Option<OwnedFd>)>,
    next_id: u64,
    /// Who asked, and the device that the memory is granted on.
    grants: HashMap<u64, (Asker, u32)>,
    queries: HashMap<u64, u64>,
    sharing: HashMap<u64, Sharing>,
    /// Modules that are loaded as soon as it is known whether the appliance has their image.
    code: HashMap<u64, (u64, ModuleLoad)>,
    unhealthy_told: bool,
    last_stats: Stats,
}

impl Requests {
    /// Questions without answer that a client may have, at most.
    const MOST: usize = 1024;

    pub fn push(&mut self, request: Request) {
        self.queue.push_back((request, None));
    }

    /// The next to be sent, and the descriptor that goes with it.
    pub fn first(&self) -> Option<(&Request, Option<BorrowedFd<'_>>)> {
        self.queue.front().map(|(request, fd)| (request, fd.as_ref().map(AsFd::as_fd)))
    }

    pub fn sent(&mut self) {
        self.queue.pop_front();
    }

    /// Asks for memory; `false` if too much was asked already.
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
    /// `CUDA_ERROR_OUT_OF_MEMORY` if too much was asked already.
    pub fn export(&mut self, sharing: Sharing, device: u32, size: u64, file: OwnedFd) -> Result<()> {
        let id = self.ask(sharing)?;
        self.queue.push_back((Request::Export { id, device, size }, Some(file)));
        Ok(())
    }

    /// For the process that wants it.
    pub fn hand_on(&mut self, device: u32, size: u64, zeroed: bool, file: OwnedFd) {
        self.queue.push_back((Request::HandOn { device, size, zeroed }, Some(file)));
    }

    /// Asks for what another session exported.
    ///
    /// # Errors
    /// As [`Requests::export`].
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

    /// What waits for the answer to an export or import.
    pub fn shared(&mut self, id: u64) -> Option<Sharing> {
        self.sharing.remove(&id)
    }

    /// Asks for the image of a module; `false` if too much was asked already.
    pub fn shared_code(&mut self, seq: u64, load: ModuleLoad) -> bool {
        if self.code.len() >= Self::MOST {
            return false;
        }
        self.next_id += 1;
        self.push(Request::Code { id: self.next_id, hash: digits(&load.hash) });
        self.code.insert(self.next_id, (seq, load));
        true
    }

    /// The module that waits for this answer, and its command.
    pub fn shared_code_asked(&mut self, id: u64) -> Option<(u64, ModuleLoad)> {
        self.code.remove(&id)
    }

    /// An image of this many bytes, which comes through the pipe.
    pub fn offer(&mut self, hash: &Hash, size: usize, pipe: OwnedFd) {
        self.queue.push_back((Request::Offer { hash: digits(hash), size }, Some(pipe)));
    }

    /// Who waits for this grant, and the device.
    pub fn granted(&mut self, id: u64) -> Option<(Asker, u32)> {
        self.grants.remove(&id)
    }

    /// The command that waits for this answer.
    pub fn answered(&mut self, id: u64) -> Option<u64> {
        self.queries.remove(&id)
    }

    /// Does anything wait for an answer of the appliance?
    pub fn are_open(&self) -> bool {
        !(self.grants.is_empty() && self.queries.is_empty() && self.sharing.is_empty() && self.code.is_empty())
    }

    /// Told once in a session.
    pub fn unhealthy(&mut self, devices: impl IntoIterator<Item = u32>, code: Code) {
        if std::mem::replace(&mut self.unhealthy_told, true) {
            return;
        }
        for device in devices {
            let message = format!("a session got CUDA error {code}");
            self.push(Request::Unhealthy { device, code, message });
        }
    }

    /// Queues the figures if they changed.
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
