//! The state of a session that is being suspended, moved or resumed, or is suspended. `suspend` and `departure` change
//! it.

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

/// The number of held bytes beyond which the worker reads no more from the client. A client that knows that it is
/// suspended sends less.
const MOST_HELD_BYTES: usize = 64 << 20;

/// The duration after which a host function of the client counts as one that may be waiting for an answer.
pub const BRIEF: Duration = Duration::from_millis(50);

/// The progress of suspending, moving or resuming a session.
#[derive(Default)]
pub enum State {
    #[default]
    Running,
    /// The session waits until the work that has begun is complete.
    Draining {
        then: Then,
        since: Instant,
        patience: Duration,
        host: Host,
    },
    /// A helper copies memory to the image, or back.
    Copying,
    Suspended,
    /// All work in this worker is complete. Received commands that were not executed move with the session.
    Leaving,
    /// A helper is recreating the session at another worker, or has done so.
    Away,
}

/// The host functions of the client, while a session that is to move is drained. A host function may wait for the
/// answer to a held command.
pub enum Host {
    /// No host function runs for long.
    Brief,
    /// The command of the host function that has run longest, and the time at which it was first seen.
    Lasts(u64, Instant),
    /// Held commands are executed until no host function runs.
    LetThrough,
}

/// The next step after all work is complete.
pub enum Then {
    /// Save the memory to an image in this file.
    Save(OwnedFd),
    /// Move to the worker of the connection [`Hold::ahead`].
    Move,
}

/// The state that exists while a session is held: from the start of a suspension or a move until the session runs
/// again.
#[derive(Default)]
pub struct Hold {
    pub state: State,
    pub frames: VecDeque<(Header, Payload)>,
    pub bytes: usize,
    /// Whether the client was notified of the suspension.
    pub told: bool,
    /// The saved contents of the memory, if the session is suspended or was suspended when it began to move.
    pub image: Option<Arc<Image>>,
    /// Whether memory is being sent to another worker while the session runs.
    pub sends_ahead: bool,
    /// The connection to the next worker, if the session is to move.
    pub ahead: Option<Ahead>,
    /// The recorded events in use, while the session is being moved.
    pub records: Vec<Rc<RealEvent>>,
}

impl Hold {
    /// Whether arriving commands are held.
    pub fn holds(&self) -> bool {
        !matches!(self.state, State::Running)
    }

    /// Like [`Hold::holds`], but false while a host function of the client may wait for a held command.
    pub fn keeps(&self) -> bool {
        self.holds() && !matches!(self.state, State::Draining { host: Host::LetThrough, .. })
    }

    /// Whether commands that arrived before the hold do not run either. They run while a move is being drained.
    pub fn stops(&self) -> bool {
        self.holds() && !matches!(self.state, State::Draining { then: Then::Move, .. })
    }

    /// Whether received bytes are left unread, because the session is being moved.
    pub fn is_away(&self) -> bool {
        matches!(self.state, State::Leaving | State::Away)
    }

    /// Whether the worker must not read more from the client: too many bytes are held, or the session is being moved.
    pub fn is_full(&self) -> bool {
        self.bytes > MOST_HELD_BYTES || self.is_away()
    }

    /// Returns the connection to the next worker when the session is ready to move. Returns it only once.
    pub fn take_leaving(&mut self) -> Option<Ahead> {
        let ahead = if matches!(self.state, State::Leaving) { self.ahead.take() } else { None };
        if ahead.is_some() {
            self.state = State::Away;
        }
        ahead
    }

    /// Returns the held frames.
    pub fn kept(&self) -> impl Iterator<Item = &(Header, Payload)> {
        self.frames.iter()
    }

    /// Returns the time until the next check whether the session can be suspended or moved, unless another event comes
    /// first. Returns `None` if the session is not being drained.
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
