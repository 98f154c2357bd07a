//! One client's session: takes its frames in sequence and hands them to the driver.
//!
//! All of a session happens on one thread, the *sequencer*. Driver calls that may block are made by helpers; waiting for
//! the GPU is done by `completer`. What must wait for something is kept here and run when `sched` says so.

use crate::code::images::ImageStore;
use crate::copying::late_copies::LateCopies;
use crate::copying::staging::Buffer;
use crate::copying::stripes::Stripes;
use crate::driver::helpers::Helpers;
use crate::driver::{Code, Driver, is_unhealthy};
use crate::guard::defences::{Defence, stands};
use crate::io::frames::Payload;
use crate::io::text::Text;
use crate::io::writer::Outbox;
use crate::memory::client_memory::ClientMemory;
use crate::memory::mirrors::{Mirrors, Told};
use crate::memory::slabs::Memory;
use crate::moving::brought::Arrival;
use crate::moving::hold::Hold;
use crate::order::command::{Command, Frame, Key, Topology};
use crate::order::completions::{Action, Completions};
use crate::order::gates::Gates;
use crate::order::rules::{Rule, kept};
use crate::order::sched::{Mode, Scheduler};
use crate::order::shared_events::SharedEvents;
use crate::session::budgets::Budgets;
use crate::session::contexts::Created;
use crate::session::current::CurrentContext;
use crate::session::objects::{Context, Event, Graph, Module, Stream, Table};
use crate::session::requests::{Request, Requests, Stats};
use crate::session::settings::Change;
use crate::turns::taking::Turns;
use driverapi::errors::*;
use protocol::{
    ContextSynchronize, EVENTS_TELL, Ending, Header, Message, Notice, Reply, StreamSynchronize, UNCOUNTED, Wire, Writer,
};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

/// What became of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The driver has it; whatever comes next in its order may run.
    Done,
    /// It continues by itself and calls `finish`.
    Held,
    /// It lacks room in a stream or a buffer and is tried again when something was completed.
    Blocked,
}

/// Commands that wait, and their bytes, at most: more than a client can have under way that keeps to its send window.
const MOST_PARKED: usize = 1 << 20;
const MOST_PARKED_BYTES: usize = 2 * protocol::SEND_WINDOW as usize;
/// Where launches wait for turns, no more is read while so many wait: many times as many as CUDA's own queue takes.
const CROWD: usize = 1 << 16;
const CROWD_BYTES: usize = 64 << 20;

/// What became of the launches that have arrived. Each is with the driver, was refused, or waits.
#[derive(Debug, Clone, Copy, Default)]
struct Launches {
    arrived: u64,
    refused: u64,
    waiting: u64,
}

/// Numbers of a session that go with it when it moves.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// Of the last command.
    pub seq: u64,
    pub launches: u64,
    pub refused: u64,
    /// An error that is still to be told, or 0.
    pub late: Code,
}

pub struct Session {
    pub driver: Arc<Driver>,
    pub out: Outbox,
    pub requests: Requests,
    pub budgets: Budgets,
    pub helpers: Helpers<Session>,
    /// A primary context of the first device that nobody has asked for yet.
    pub warm: Option<Created>,
    /// Images that are on their way to the appliance.
    pub offers: usize,
    pub stats: Stats,
    pub contexts: Table<Context>,
    /// Of each device the one context that is not charged, from when it is asked for to its end.
    pub uncharged: HashMap<u32, u64>,
    pub streams: Table<Stream>,
    pub events: Table<Event>,
    pub modules: Table<Module>,
    pub graphs: Table<Graph>,
    pub memory: Memory,
    pub images: ImageStore,
    pub completions: Completions,
    pub late_copies: LateCopies,
    pub client_memory: ClientMemory,
    pub mirrors: Mirrors,
    pub stripes: Stripes,
    /// Streams held by a callback, by its token: the command that is to be finished.
    pub callbacks: HashMap<u64, u64>,
    pub gates: Gates,
    pub shared_events: SharedEvents,
    pub current: CurrentContext,
    /// Contexts whose work is complete and that are to be destroyed, with the command that asked for it.
    pub closing: Vec<(u64, u64, u64)>,
    pub opened: bool,
    pub device_count: u32,
    pub hold: Hold,
    pub arrival: Arrival,
    /// Questions of the appliance that are answered when all is taken that the client has sent: their ids, and how many
    /// bytes that is.
    pub settling: Vec<(u64, Option<u64>)>,
    /// The appliance has seen the end of the client's process.
    pub client_ended: bool,
    /// If its appliance divides the time of its GPUs.
    pub turns: Option<Turns>,
    sched: Scheduler<Key>,
    pub topology: Topology,
    parked: HashMap<u64, Frame>,
    parked_bytes: usize,
    blocked: BTreeSet<u64>,
    last_seq: u64,
    launches: Launches,
    late: Option<Code>,
    text: Option<Text>,
    ended: bool,
}

impl Session {
    /// `text` is where kernels print, if that is caught.
    ///
    /// # Errors
    /// If the system or the driver cannot start a session.
    pub fn new(driver: Arc<Driver>, text: Option<Text>, budgets: Budgets) -> std::result::Result<Session, String> {
        let count =
            driver.device_count().map_err(|code| format!("the driver cannot count its GPUs: CUDA error {code}"))?;
        Ok(Session {
            helpers: Helpers::new(driver.clone()).map_err(|e| format!("no helper threads: {e}"))?,
            warm: None,
            offers: 0,
            driver,
            out: Outbox::default(),
            requests: Requests::default(),
            stats: Stats::default(),
            contexts: Table::new(CUDA_ERROR_INVALID_CONTEXT, budgets.contexts),
            uncharged: HashMap::new(),
            streams: Table::new(CUDA_ERROR_INVALID_HANDLE, budgets.streams),
            events: Table::new(CUDA_ERROR_INVALID_HANDLE, budgets.events),
            modules: Table::new(CUDA_ERROR_INVALID_HANDLE, budgets.modules),
            graphs: Table::new(CUDA_ERROR_INVALID_VALUE, budgets.graphs),
            memory: Memory::default(),
            images: ImageStore::new(budgets.image_bytes),
            budgets,
            completions: Completions::default(),
            late_copies: LateCopies::default(),
            client_memory: ClientMemory::default(),
            mirrors: Mirrors::default(),
            stripes: Stripes::default(),
            callbacks: HashMap::new(),
            gates: Gates::default(),
            shared_events: SharedEvents::default(),
            current: CurrentContext::default(),
            closing: Vec::new(),
            opened: false,
            device_count: count.max(0) as u32,
            hold: Hold::default(),
            arrival: Arrival::default(),
            settling: Vec::new(),
            client_ended: false,
            turns: None,
            sched: Scheduler::default(),
            topology: Topology::default(),
            parked: HashMap::new(),
            parked_bytes: 0,
            blocked: BTreeSet::new(),
            last_seq: 0,
            launches: Launches::default(),
            late: None,
            text,
            ended: false,
        })
    }

    /// Answers what is settled if more than `received` bytes were taken.
    pub fn tell_settled(&mut self, received: u64) {
        let (now, later) = self.settling.drain(..).partition(|(_, until)| until.unwrap_or(0) < received);
        self.settling = later;
        let answers: Vec<(u64, Option<u64>)> = now;
        answers.into_iter().for_each(|(id, _)| self.requests.push(Request::Settled { id }));
    }

    /// The client has all that it may have of a kind.
    pub fn out_of(&mut self, kind: &'static str, most: u64) -> Code {
        if let Some(line) = self.budgets.complain(kind, most) {
            self.out.push(Notice::CODE, 0, &Notice { line: line.clone() }, &[]);
            self.requests.push(Request::Log { line });
        }
        CUDA_ERROR_OUT_OF_MEMORY
    }

    /// Has the session ended? Then the connection is closed after what is queued.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Ends the session, of which its client has another one: it is told nothing.
    pub fn leave(&mut self) {
        self.ended = true;
        self.out = Outbox::default();
        // No process of its lease is here any more.
        self.offer_no_more();
    }

    /// Ends the session; the client answers `code` to every later call.
    pub fn end(&mut self, code: Code, reason: &str) {
        if !self.ended {
            self.ended = true;
            if code != 0 {
                self.requests.push(Request::Log { line: format!("the session ends with code {code}: {reason}") });
            }
            self.out.push(Ending::CODE, 0, &Ending { code, reason: reason.to_owned() }, &[]);
        }
    }

    /// Page-locked memory for a frame that is arriving.
    pub fn place(&self, header: &Header, first: &[u8; crate::io::frames::PEEK]) -> Option<Buffer> {
        if header.code != protocol::CopyToDevice::CODE {
            return None;
        }
        self.contexts.get(u64::from_le_bytes(*first)).ok()?.staging.take(header.len as usize)
    }

    /// Takes the next frame.
    pub fn accept(&mut self, header: &Header, payload: Payload) {
        if self.ended {
            return;
        }
        if self.hold.keeps() {
            return self.hold_frame(header, payload);
        }
        if header.seq != self.last_seq + 1 {
            return self.end(CUDA_ERROR_UNKNOWN, &format!("command {} followed command {}", header.seq, self.last_seq));
        }
        self.last_seq = header.seq;
        #[cfg(feature = "undefended")]
        if header.code == crate::guard::defences::TAKEN_OVER {
            return self.reply_with(header.seq, 0, &crate::guard::defences::obey(payload.bytes()), &[]);
        }
        let frame = match Frame::decode(header, payload) {
            Ok(frame) => frame,
            Err(e) => return self.end(CUDA_ERROR_UNKNOWN, &format!("command {:#x} is malformed: {e}", header.code)),
        };
        if self.opened == matches!(frame.command, Command::Open(_)) {
            return self.end(CUDA_ERROR_UNKNOWN, "a session starts with Open, once");
        }
        self.stats.commands += 1;
        self.stats.bytes_in += u64::from(header.len);
        self.topology.note(&frame.command);
        match &frame.command {
            _ if frame.is_launch() => self.launches.arrived += 1,
            Command::StreamSynchronize(StreamSynchronize { launches })
            | Command::ContextSynchronize(ContextSynchronize { launches, .. })
                if *launches != UNCOUNTED && *launches != self.launches.arrived =>
            {
                let arrived = self.launches.arrived;
                return self.end(
                    CUDA_ERROR_UNKNOWN,
                    &format!("internal error: the client sent {launches} launches and {arrived} arrived"),
                );
            }
            _ => {}
        }
        // Whatever is recorded behind this command is told, also if the command itself has to wait.
        if let Command::EventQuery(c) = &frame.command
            && let Ok(event) = self.events.get_mut(c.event)
        {
            event.followed = true;
        }
        self.expect_striped(&frame);
        self.admit(frame);
        self.advance();
    }

    /// Carries out a command before those that are kept.
    pub fn take_ahead(&mut self, header: &Header, payload: Payload) {
        match Frame::decode(header, payload) {
            Ok(mut frame) => {
                let _ = self.execute(&mut frame);
                self.advance();
            }
            Err(e) => self.end(CUDA_ERROR_UNKNOWN, &format!("command {:#x} is malformed: {e}", header.code)),
        }
    }

    /// Is everything complete that was given to the GPU or waits for it, as far as completions have been looked for?
    pub fn is_settled(&self) -> bool {
        let waits = self.sched.is_idle() && self.parked.is_empty() && self.late_copies.0.is_empty();
        waits
            && self.stripes.is_idle()
            && !self.shared_events.is_pending()
            && self.streams.live().all(|(_, stream)| stream.issued == 0)
    }

    /// Where the session's numbers stand; nothing may wait.
    pub fn counts(&self) -> Counts {
        let Launches { arrived, refused, .. } = self.launches;
        Counts { seq: self.last_seq, launches: arrived, refused, late: self.late.unwrap_or(0) }
    }

    /// Goes on with the numbers of a session elsewhere.
    pub fn set_counts(&mut self, counts: Counts) {
        let Counts { seq, launches, refused, late } = counts;
        self.last_seq = seq;
        self.launches = Launches { arrived: launches, refused, waiting: 0 };
        self.stats.launches = launches.saturating_sub(refused);
        self.late = (late != 0).then_some(late);
    }

    fn admit(&mut self, mut frame: Frame) {
        // A change of settings waits for nothing, not even for memory to be mapped: the launches that arrive after it keep
        // what is set now. Nor does an event's creation: commands that wait refer to the event (`refer`).
        let at_once = match frame.command {
            Command::Generated(number) => Change::read(number, frame.payload.bytes()).is_some(),
            Command::EventCreate(_) => true,
            _ => false,
        };
        if self.sched.is_idle() || at_once {
            let outcome = self.execute(&mut frame);
            if outcome != Outcome::Done {
                let keys = self.keys(&frame);
                self.sched.open(frame.seq, keys);
                self.keep(frame, outcome);
            }
            return;
        }
        let keys = self.keys(&frame);
        if let Command::EventQuery(_) = frame.command
            && self.sched.must_wait(&keys)
        {
            self.reply(frame.seq, CUDA_ERROR_NOT_READY);
            frame.progress = 1;
        }
        if keys.is_empty() && !self.sched.must_wait(&keys) {
            let outcome = self.execute(&mut frame);
            if outcome != Outcome::Done {
                self.sched.open(frame.seq, keys);
                self.keep(frame, outcome);
            }
            return;
        }
        let seq = frame.seq;
        let is_map = frame.places_memory();
        if self.sched.open(seq, keys) {
            self.run(frame);
        } else {
            if is_map {
                self.sched.set_barrier(seq);
            }
            self.park(frame);
        }
    }

    fn park(&mut self, mut frame: Frame) {
        self.refer(&mut frame);
        self.stamp(&mut frame);
        self.launches.waiting += u64::from(frame.is_launch());
        self.parked_bytes += frame.payload.bytes().len();
        self.parked.insert(frame.seq, frame);
        if (self.parked.len() > MOST_PARKED || self.parked_bytes > MOST_PARKED_BYTES) && stands(Defence::Parked) {
            self.end(CUDA_ERROR_UNKNOWN, "more commands wait than the send window allows");
        }
    }

    /// Does so much wait that no more is to be read? A program that never waits is held back by its connection then, as
    /// by a driver whose queue is full.
    pub fn is_crowded(&self) -> bool {
        self.turns.is_some() && (self.parked.len() > CROWD || self.parked_bytes > CROWD_BYTES)
    }

    fn unpark(&mut self, seq: u64) -> Option<Frame> {
        let frame = self.parked.remove(&seq)?;
        self.parked_bytes -= frame.payload.bytes().len();
        self.launches.waiting -= u64::from(frame.is_launch());
        Some(frame)
    }

    fn keys(&self, frame: &Frame) -> Vec<(Key, Mode)> {
        let of_module = |module| self.modules.get(module).ok().map(|module| module.context);
        let of_graph = |graph| self.graphs.get(graph).ok().map(|graph| graph.context);
        self.topology.keys(frame, of_module, of_graph)
    }

    /// Runs an open command.
    fn run(&mut self, mut frame: Frame) {
        match self.execute(&mut frame) {
            Outcome::Done => {
                self.release(&frame);
                self.sched.finish(frame.seq);
            }
            outcome => self.keep(frame, outcome),
        }
    }

    fn keep(&mut self, frame: Frame, outcome: Outcome) {
        let (seq, is_map) = (frame.seq, frame.places_memory());
        if outcome == Outcome::Blocked {
            self.park(frame);
            self.blocked.insert(seq);
        } else {
            self.release(&frame);
        }
        if is_map {
            self.sched.set_barrier(seq);
        }
    }

    /// A launch that waits keeps what was set of its function when it arrived.
    fn stamp(&self, frame: &mut Frame) {
        if let Command::Launch(c) = &frame.command
            && frame.settings.is_none()
            && kept(Rule::FunctionSettings)
            && let Ok(module) = self.modules.get(c.module)
        {
            frame.settings = module.kernel(c.kernel).ok().map(|kernel| Rc::clone(kernel.settings.wanted()));
        }
    }

    /// Records of an event stay while commands that wait refer to it.
    fn refer(&mut self, frame: &mut Frame) {
        if !frame.refers.is_empty() || !kept(Rule::EventDestroy) {
            return;
        }
        for id in frame.events() {
            if let Ok(event) = self.events.get_mut(id) {
                event.refer();
                frame.refers.push(id);
            }
        }
    }

    fn release(&mut self, frame: &Frame) {
        for id in &frame.refers {
            if self.events.get_mut(*id).is_ok_and(|event| event.release()) {
                let _ = self.events.remove(*id);
            }
        }
    }

    /// A held command is finished; `advance` runs what waited for it.
    pub fn finish(&mut self, seq: u64) {
        self.sched.finish(seq);
    }

    /// Runs everything that may run by now.
    pub fn advance(&mut self) {
        while !self.hold.stops()
            && let Some(seq) = self.sched.next_ready()
        {
            if let Some(frame) = self.unpark(seq) {
                self.run(frame);
            }
        }
    }

    /// Tries commands again that lacked room. Returns whether there were any.
    pub fn retry_blocked(&mut self) -> bool {
        if self.hold.stops() {
            return false;
        }
        if let Some(turns) = &mut self.turns {
            turns.retry();
        }
        let blocked = std::mem::take(&mut self.blocked);
        let any = !blocked.is_empty();
        for seq in blocked {
            if let Some(frame) = self.unpark(seq) {
                self.run(frame);
            }
        }
        self.advance();
        any
    }

    /// Does another command wait for this one?
    pub fn is_waited_for(&self, seq: u64) -> bool {
        self.sched.is_waited_for(seq)
    }

    /// Would a command behind everything in the stream have to wait?
    pub fn stream_is_held(&self, stream_id: u64) -> bool {
        self.sched.must_wait(&[(Key::Stream(stream_id), Mode::Observe)])
    }

    /// Is there something that only looking at the GPU again will show?
    pub fn needs_looking_after(&self) -> bool {
        self.completions.is_pending()
            || !self.mirrors.is_idle()
            || self.shared_events.is_pending()
            || !self.closing.is_empty()
    }

    /// Everything that can be done now without new frames. Returns whether anything was.
    pub fn turn(&mut self) -> bool {
        let mut any = false;
        while let Some(then) = self.helpers.next_result() {
            then(self);
            any = true;
        }
        self.register_waiting();
        any |= self.drain();
        self.tell_adopted();
        // The watchers of events of these contexts are notified by this `collect`, before they go.
        let closing = std::mem::take(&mut self.closing);
        any |= self.collect();
        any |= self.read_mirrors();
        any |= self.take_shared_waits();
        for (seq, context, token) in closing {
            match self.close_context(seq, context, token) {
                true => any = true,
                false => self.closing.push((seq, context, token)),
            }
        }
        if any && !self.hold.stops() {
            self.advance();
            self.retry_late_copies();
            self.lend_to_stripes();
            self.retry_blocked();
        }
        any
    }

    /// An error of a command without a reply: told by the next reply to a command that synchronises.
    pub fn late(&mut self, code: Code) {
        if is_sticky(code) {
            self.note_sticky(code);
        }
        self.late.get_or_insert(code);
    }

    /// As [`Session::late`], for what was done on behalf of a context. A context that is gone took that with it.
    pub fn late_in(&mut self, context: u64, done: Result<(), Code>) {
        if let Err(code) = done
            && self.contexts.contains(context)
        {
            self.late(code);
        }
    }

    /// Tells the appliance of errors that are a device's fault. Which device it was it finds out itself.
    pub fn note_sticky(&mut self, code: Code) {
        if is_unhealthy(code) {
            let devices: BTreeSet<u32> = self.contexts.live().map(|(_, context)| context.device).collect();
            self.requests.unhealthy(devices, code);
        }
    }

    pub fn reply(&mut self, seq: u64, code: Code) {
        self.out.push(Reply::CODE, seq, &Reply { code }, &[]);
    }

    pub fn reply_with(&mut self, seq: u64, code: Code, answer: &impl Wire, tail: &[u8]) {
        let mut w = Writer::new();
        w.put(answer).raw(tail);
        self.out.push(Reply::CODE, seq, &Reply { code }, &w.bytes);
    }

    /// The reply of a command that synchronises, when mirrors have been read.
    pub fn synchronised(&mut self, seq: u64, code: Code) {
        match code == 0 && self.mirrors.holds_back() {
            true => self.mirrors.wait(Told { seq, code, action: Action::Synchronised }),
            false => self.synchronised_now(seq, code),
        }
    }

    /// The reply of a command that synchronises.
    pub fn synchronised_now(&mut self, seq: u64, code: Code) {
        self.check_launches();
        let code = self.tell(code);
        self.reply(seq, code);
    }

    /// What an answer that something is complete says: everything printed goes before it, and it tells a late error.
    pub fn tell(&mut self, code: Code) -> Code {
        self.push_text();
        // What broke the context is told by everything; what came of it earlier is no news.
        let late = if code == 0 || is_sticky(code) { self.late.take() } else { None };
        if code == 0 { late.unwrap_or(0) } else { code }
    }

    /// As [`Session::tell`], of an event, where the client takes that from such an answer. A record that failed is a late
    /// error itself.
    pub fn tell_of_event(&mut self, code: Code) -> Code {
        if self.out.wire < EVENTS_TELL {
            return code;
        }
        self.push_text();
        let late = self.late.take();
        if is_sticky(code) { code } else { late.unwrap_or(code) }
    }

    /// A launch was refused; the code is told as every late error.
    pub fn launch_refused(&mut self) {
        self.launches.refused += 1;
    }

    /// A launch that is gone without an error would leave wrong results: better no session than those.
    fn check_launches(&mut self) {
        let Launches { arrived, refused, waiting } = self.launches;
        let lost = arrived.saturating_sub(refused + waiting + self.stats.launches);
        if lost > 0 {
            self.end(
                CUDA_ERROR_UNKNOWN,
                &format!("internal error: {lost} of {arrived} launches were lost on the way to the driver"),
            );
        }
    }

    /// Tells the client what was printed since the last time.
    pub fn push_text(&mut self) {
        let Some(text) = &mut self.text else { return };
        while let Some((stderr, bytes)) = text.take() {
            self.out.push(protocol::Text::CODE, 0, &protocol::Text { stderr }, &bytes);
        }
    }
}
