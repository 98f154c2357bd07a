//! Actions that run when the earlier work of a stream is complete. They report to the client, or continue a command.
//! `completer` queries the streams and runs the actions.

use crate::driver::events::RealEvent;
use crate::driver::loaded::LoadedModule;
use crate::driver::staging::Buffer;
use crate::driver::{Code, Driver, Handle};
use crate::memory::client_memory::Shared;
use crate::memory::mirrors::plan::Window;
use crate::order::pending::NewSlab;
use crate::order::shared_events::Page;
use crate::session::current::CurrentContext;
use driverapi::errors::*;
use driverapi::rules::{Rule, kept};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

#[derive(Debug)]
pub enum Action {
    Marker,
    /// Replies to a command that synchronises.
    Reply(Code),
    /// The bytes of a `CopyToHost` have arrived in the buffer.
    HostBytes {
        offset: u64,
        buffer: Buffer,
    },
    /// The buffer of a `CopyToDevice` is free again.
    Consumed {
        bytes: u64,
        _buffer: Buffer,
    },
    /// Replies to a copy with memory that the client shares. The memory is kept until then.
    Shared {
        code: Code,
        _memory: Rc<Shared>,
    },
    /// The bytes of a `CopyToHostStriped` have arrived in the buffer.
    Striped {
        stripe: u64,
        buffer: Buffer,
    },
    /// The stream has reached a `CopyToDeviceLate`.
    LateCopy,
    Fenced {
        token: u64,
    },
    Callback {
        token: u64,
    },
    EventDone {
        event: u64,
        generation: u64,
    },
    /// A record of a shared event is complete; other sessions wait for it.
    SharedRecord {
        page: Rc<Page>,
        number: u64,
    },
    Part {
        join: u64,
    },
    /// Replies to a command that synchronises, after mirrors have been read.
    Synchronised,
    /// Answers a query of an event or a stream that is complete.
    Answer {
        of_event: bool,
    },
    /// Mirrors have been read into the buffer, unless a copy failed.
    MirrorsRead {
        window: Rc<Window>,
        buffer: Buffer,
        failed: Code,
    },
    /// All launches of a batch are complete.
    Batch {
        number: u64,
    },
    /// New memory has been filled with zeros.
    Zeroed(NewSlab),
}

impl Action {
    /// Whether the program can learn from this action that other commands are complete.
    pub fn is_visible(&self) -> bool {
        !matches!(
            self,
            Action::Marker
                | Action::HostBytes { .. }
                | Action::Consumed { .. }
                | Action::MirrorsRead { .. }
                | Action::SharedRecord { .. }
                | Action::Batch { .. }
                | Action::Zeroed(_)
        )
    }

    /// Whether this action is reported unchanged and lets the program conclude that the device has written to a mirror.
    /// Actions that become the reply of a synchronising command are checked when that reply is sent.
    pub fn lets_see(&self) -> bool {
        match self {
            Action::Fenced { .. } => kept(Rule::MirrorFence),
            Action::Callback { .. } => kept(Rule::MirrorCallback),
            Action::EventDone { .. } => kept(Rule::MirrorEvent),
            Action::Answer { .. } => kept(Rule::MirrorQuery),
            _ => false,
        }
    }

    /// Whether this action changes the program's memory, or the state of an event that the program sees.
    pub fn is_news(&self) -> bool {
        matches!(self, Action::HostBytes { .. } | Action::EventDone { .. })
    }

    /// Returns the final code of an action. The driver reports some errors, and the output of kernels, only at a
    /// synchronisation. Synchronising with an event that is complete does not block.
    pub fn settle(
        &self,
        driver: &Driver,
        current: &CurrentContext,
        code: Code,
        completed: Option<&Rc<RealEvent>>,
    ) -> Code {
        match (self, completed) {
            (
                Action::Reply(_)
                | Action::Shared { .. }
                | Action::Striped { .. }
                | Action::Part { .. }
                | Action::EventDone { .. },
                Some(event),
            ) if code == 0 => {
                let settled =
                    current.set(driver, event.context()).and_then(|()| driver.event_synchronize(event.handle));
                settled.err().unwrap_or(0)
            }
            _ => code,
        }
    }
}

/// Returns `None` while the event is not complete. After that, returns 0 or the code of an error.
pub fn state(driver: &Driver, current: &CurrentContext, event: &RealEvent) -> Option<Code> {
    match current.set(driver, event.context()).and_then(|()| driver.event_query(event.handle)) {
        Ok(()) => Some(0),
        Err(CUDA_ERROR_NOT_READY) => None,
        Err(code) => Some(code),
    }
}

#[derive(Debug)]
pub struct Entry {
    pub seq: u64,
    pub event: Option<Rc<RealEvent>>,
    pub operations: u32,
    pub action: Action,
}

#[derive(Debug)]
pub struct Watch {
    pub seq: u64,
    pub event: Rc<RealEvent>,
    pub action: Action,
}

/// An action that waits for several streams.
#[derive(Debug)]
pub struct Join {
    pub seq: u64,
    pub remaining: usize,
    pub code: Code,
    pub then: Then,
}

#[derive(Debug)]
pub enum Then {
    Reply,
    Fenced { token: u64 },
    UnloadModule { context: u64, module: Arc<LoadedModule>, token: u64 },
    DestroyGraph { context: u64, executable: Handle },
    DestroyContext { context: u64, token: u64 },
}

#[derive(Default)]
pub struct Completions {
    /// The streams that have entries.
    pub active: BTreeSet<u64>,
    pub watches: Vec<Watch>,
    pub joins: HashMap<u64, Join>,
    pub next_join: u64,
    /// The number of `HostBytes` and `EventDone` actions that have not been reported.
    pub news_pending: usize,
    /// The number of `HostBytes` entries.
    pub bytes_pending: usize,
}

impl Completions {
    /// Returns the number of copies to the host whose bytes have not arrived.
    pub fn bytes_pending(&self) -> usize {
        self.bytes_pending
    }

    /// Whether the GPU must be queried again later.
    pub fn is_pending(&self) -> bool {
        !self.active.is_empty() || !self.watches.is_empty()
    }
}
