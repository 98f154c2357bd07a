//! What a session keeps while it is being suspended or moved, is suspended, or is being resumed. `suspend` and `departure` say
//! what is done then.

use crate::io::frames::Payload;
use crate::moving::ahead::Ahead;
use crate::moving::image::Image;
use crate::session::objects::RealEvent;
use protocol::Header;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// While so much waits, no more is read from the client. One that knows that it is suspended sends less.
const MOST_HELD_BYTES: usize = 64 << 20;

/// A host function of the client that lasts longer may wait for an answer.
pub const BRIEF: Duration = Duration::from_millis(50);

/// How far a session is on its way out of the GPU, or back.
#[derive(Default)]
pub enum State {
    #[default]
    Running,
    /// What was begun is being completed.
    Draining {
        then: Then,
        since: Instant,
        patience: Duration,
        host: Host,
    },
    /// A helper copies, there or back.
    Copying,
    Suspended,
    /// Everything there is to move is complete; what was received and not carried out moves too.
    Leaving,
    /// A helper makes the session anew at another worker, or has done so.
    Away,
}

/// The client's host functions while a session that is to move is being drained. What they do may wait for answers to
/// commands that are kept.
pub enum Host {
    /// None lasts.
    Brief,
    /// This command waits for one since then, and the GPU has nothing else to do.
    Lasts(u64, Instant),
    /// Commands are carried out again until there is none.
    LetThrough,
}

/// What follows when all is complete.
pub enum Then {
    /// Into an image in this file.
    Save(OwnedFd),
    /// To the worker that [`Hold::ahead`] is connected to.
    Move,
}

/// What is kept while a session is being suspended, is suspended, or is being resumed.
#[derive(Default)]
pub struct Hold {
    pub state: State,
    pub frames: VecDeque<(Header, Payload)>,
    pub bytes: usize,
    /// The client was told.
    pub told: bool,
    /// Of a session that is suspended, or was when it began to move: what its memory held.
    pub image: Option<Arc<Image>>,
    /// Memory is being sent to another worker while the session runs.
    pub sends_ahead: bool,
    /// Of a session that is to move: the other worker, and what it has already.
    pub ahead: Option<Ahead>,
    /// Of a session that is being moved.
    pub records: Vec<Rc<RealEvent>>,
}

impl Hold {
    /// Are commands kept that arrive?
    pub fn holds(&self) -> bool {
        !matches!(self.state, State::Running)
    }

    /// As [`Hold::holds`], but for what a host function of the client may wait for.
    pub fn keeps(&self) -> bool {
        self.holds() && !matches!(self.state, State::Draining { host: Host::LetThrough, .. })
    }

    /// Does nothing run of what arrived before?
    pub fn stops(&self) -> bool {
        self.holds() && !matches!(self.state, State::Draining { then: Then::Move, .. })
    }

    /// Is nothing taken of what was received, because it is being moved?
    pub fn is_away(&self) -> bool {
        matches!(self.state, State::Leaving | State::Away)
    }

    /// Is nothing more to be read?
    pub fn is_full(&self) -> bool {
        self.bytes > MOST_HELD_BYTES || self.is_away()
    }

    /// The worker to which the session is to be moved, once.
    pub fn take_leaving(&mut self) -> Option<Ahead> {
        let ahead = if matches!(self.state, State::Leaving) { self.ahead.take() } else { None };
        if ahead.is_some() {
            self.state = State::Away;
        }
        ahead
    }

    /// What was kept.
    pub fn kept(&self) -> impl Iterator<Item = &(Header, Payload)> {
        self.frames.iter()
    }

    /// When to look again whether the session may be suspended, if something else does not show it before.
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
