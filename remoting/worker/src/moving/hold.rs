//! State of a session that is being suspended or moved, is suspended, or is being resumed. `suspend` and `departure`
//! act on it.

use crate::driver::events::RealEvent;
use crate::io::frames::Payload;
use crate::moving::ahead::Ahead;
use crate::moving::image::Image;
use protocol::Header;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// While so many bytes wait, no more is read from the client. A client that knows that it is suspended sends less.
const MOST_HELD_BYTES: usize = 64 << 20;

/// A host function of the client that lasts longer may be waiting for an answer.
pub const BRIEF: Duration = Duration::from_millis(50);

/// Progress of a session out of the GPU, or back.
#[derive(Default)]
pub enum State {
    #[default]
    Running,
    /// Work that has begun is being completed.
    Draining {
        then: Then,
        since: Instant,
        patience: Duration,
        host: Host,
    },
    /// A helper copies memory, out or back.
    Copying,
    Suspended,
    /// All work that has to end here is complete; commands that were received and not executed move too.
    Leaving,
    /// A helper is recreating the session at another worker, or has done so.
    Away,
}

/// The client's host functions while a session that is to move is drained. They may wait for answers to commands that
/// are held.
pub enum Host {
    /// No host function lasts.
    Brief,
    /// The command of one that lasts, and since when.
    Lasts(u64, Instant),
    /// Commands are executed again until no host function is left.
    LetThrough,
}

/// The next step when all work is complete.
pub enum Then {
    /// Save memory to an image in this file.
    Save(OwnedFd),
    /// Move to the worker that [`Hold::ahead`] is connected to.
    Move,
}

/// State that is kept while a session is being suspended, is suspended, or is being resumed.
#[derive(Default)]
pub struct Hold {
    pub state: State,
    pub frames: VecDeque<(Header, Payload)>,
    pub bytes: usize,
    /// Whether the client was notified.
    pub told: bool,
    /// The contents of memory, of a session that is suspended, or was when it began to move.
    pub image: Option<Arc<Image>>,
    /// Memory is being sent to another worker while the session runs.
    pub sends_ahead: bool,
    /// The other worker and what it already has, of a session that is to move.
    pub ahead: Option<Ahead>,
    /// Recorded events in use, of a session that is being moved.
    pub records: Vec<Rc<RealEvent>>,
}

impl Hold {
    /// Whether commands that arrive are held.
    pub fn holds(&self) -> bool {
        !matches!(self.state, State::Running)
    }

    /// Like [`Hold::holds`], but false while a host function of the client may wait for such commands.
    pub fn keeps(&self) -> bool {
        self.holds() && !matches!(self.state, State::Draining { host: Host::LetThrough, .. })
    }

    /// Whether commands that arrived before do not run either.
    pub fn stops(&self) -> bool {
        self.holds() && !matches!(self.state, State::Draining { then: Then::Move, .. })
    }

    /// Whether received bytes stay where they are, because the session is being moved.
    pub fn is_away(&self) -> bool {
        matches!(self.state, State::Leaving | State::Away)
    }

    /// Whether nothing more is to be read.
    pub fn is_full(&self) -> bool {
        self.bytes > MOST_HELD_BYTES || self.is_away()
    }

    /// Returns, once, the worker to which the session is to be moved.
    pub fn take_leaving(&mut self) -> Option<Ahead> {
        let ahead = if matches!(self.state, State::Leaving) { self.ahead.take() } else { None };
        if ahead.is_some() {
            self.state = State::Away;
        }
        ahead
    }

    /// Returns the frames that are held.
    pub fn kept(&self) -> impl Iterator<Item = &(Header, Payload)> {
        self.frames.iter()
    }

    /// Returns when to check again whether the session may be suspended, unless something else prompts that before.
    pub fn patience(&self) -> Option<Duration> {
        match self.state {
            State::Draining { since, patience, ref host, .. } => {
                let host =
                    if let Host::Lasts(_, since) = host { Some(BRIEF.saturating_sub(since.elapsed())) } else { None };
                host.into_iter().chain([patience.saturating_sub(since.elapsed())]).min()
            }
            _ => None,
        }
    }
}
