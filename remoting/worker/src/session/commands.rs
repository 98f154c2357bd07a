//! One client's session: takes frames in sequence, and gives commands to the driver.
//!
//! The whole session runs on one thread, the *sequencer*. Helpers make the driver calls that may block, and `completer`
//! watches the GPU. Commands that must wait are stored here, and run when `sched` allows it.

use crate::code::images::ImageStore;
use crate::copying::late_copies::LateCopies;
use crate::copying::stripes::Stripes;
use crate::driver::helpers::Helpers;
use crate::driver::staging::Buffer;
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
use crate::order::sched::{Mode, Scheduler};
use crate::order::shared_events::SharedEvents;
use crate::packets::Request;
use crate::session::budgets::Budgets;
use crate::session::created::Created;
use crate::session::current::CurrentContext;
use crate::session::objects::{Context, Event, Graph, Module, Stream, Table};
use crate::session::requests::{Requests, Stats};
use crate::session::settings::Change;
use crate::turns::asking::Turns;
use driverapi::errors::*;
use driverapi::rules::{Rule, kept};
use protocol::{
    ContextSynchronize, EVENTS_TELL, Ending, Header, Message, Notice, Reply, StreamSynchronize, UNCOUNTED, Wire, Writer,
};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

/// The result of executing a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The driver has the command. The next command in its order may run.
    Done,
    /// The command continues by itself, and calls `finish` when it is done.
    Held,
    /// The command lacks room in a stream or a buffer. It is retried after a completion.
    Blocked,
}

/// Limits on the number of waiting commands and on their bytes. A client that respects its send window cannot reach
/// them.
const MOST_PARKED: usize = 1 << 20;
const MOST_PARKED_BYTES: usize = 2 * protocol::SEND_WINDOW as usize;
/// Limits on waiting commands if launches wait for turns. Beyond them, no more is read from the client. CUDA's own
/// queue is many times smaller.
const CROWD: usize = 1 << 16;
const CROWD_BYTES: usize = 64 << 20;

/// Counts of the launches that have arrived. Each launch was given to the driver, was refused, or is waiting.
#[derive(Debug, Clone, Copy, Default)]
struct Launches {
    arrived: u64,
    refused: u64,
    waiting: u64,
}

/// The counters of a session, which move with it to another worker.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// The number of the last command.
    pub seq: u64,
    pub launches: u64,
    pub refused: u64,
    /// A late error that was not reported yet, or 0.
    pub late: Code,
}

pub struct Session {
    pub driver: Arc<Driver>,
    pub out: Outbox,
    pub requests: Requests,
    pub budgets: Budgets,
    pub helpers: Helpers<Session>,
    /// A primary context of the first device that was created before the client asked for it.
    pub warm: Option<Created>,
    /// The number of images that are being sent to the appliance.
    pub offers: usize,
    pub stats: Stats,
    pub contexts: Table<Context>,
    /// For each device, its one context that is not charged, from the request until the context is destroyed.
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
    /// The callbacks that hold a stream: by the callback's token, the command to finish.
    pub callbacks: HashMap<u64, u64>,
    pub gates: Gates,
    pub shared_events: SharedEvents,
    pub current: CurrentContext,
    /// The contexts to destroy after their work is complete, each with the command that requested it.
    pub closing: Vec<(u64, u64, u64)>,
    pub opened: bool,
    pub device_count: u32,
    pub hold: Hold,
    pub arrival: Arrival,
    /// Requests of the appliance that are answered when the worker has taken all bytes that the client sent: their ids,
    /// and the number of bytes.
    pub settling: Vec<(u64, Option<u64>)>,
    /// Whether the appliance has reported the end of the client's process.
    pub client_ended: bool,
    /// The turns of the session, or `None` if the appliance does not divide the time of its GPUs.
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
    /// Creates a session. `text` is the output of kernels, if it is captured.
    ///
    /// # Errors
    /// Fails if the system or the driver cannot start a session.
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

    /// Answers the requests whose number of bytes is less than `received`.
    pub fn tell_settled(&mut self, received: u64) {
        let (now, later) = self.settling.drain(..).partition(|(_, until)| until.unwrap_or(0) < received);
        self.settling = later;
        let answers: Vec<(u64, Option<u64>)> = now;
        answers.into_iter().for_each(|(id, _)| self.requests.push(Request::Settled { id }));
    }

    /// Reports that the client has reached a limit. Returns the error code for the client.
    pub fn out_of(&mut self, kind: &'static str, most: u64) -> Code {
        if let Some(line) = self.budgets.complain(kind, most) {
            self.out.push(Notice::CODE, 0, &Notice { line: line.clone() }, &[]);
            self.requests.push(Request::Log { line });
        }
        CUDA_ERROR_OUT_OF_MEMORY
    }

    /// Whether the session has ended. If so, the connection is closed after the queue has been sent.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Ends the session without a message to the client, because another worker continues the session.
    pub fn leave(&mut self) {
        self.ended = true;
        self.out = Outbox::default();
        // No process of the lease uses this appliance any more.
        self.offer_no_more();
    }

    /// Ends the session. The client returns `code` from every later call.
    pub fn end(&mut self, code: Code, reason: &str) {
        if !self.ended {
            self.ended = true;
            if code != 0 {
                self.requests.push(Request::Log { line: format!("the session ends with code {code}: {reason}") });
            }
            self.out.push(Ending::CODE, 0, &Ending { code, reason: reason.to_owned() }, &[]);
        }
    }

    /// Returns page-locked memory for the payload of an arriving frame, or `None` if the payload does not need it or no
    /// buffer is free.
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
        // Records that complete after this command are reported, even if the command itself has to wait.
        if let Command::EventQuery(c) = &frame.command
            && let Ok(event) = self.events.get_mut(c.event)
        {
            event.followed = true;
        }
        self.expect_striped(&frame);
        self.admit(frame);
        self.advance();
    }

    /// Executes a command at once, before the commands that are held.
    pub fn take_ahead(&mut self, header: &Header, payload: Payload) {
        match Frame::decode(header, payload) {
            Ok(mut frame) => {
                let _ = self.execute(&mut frame);
                self.advance();
            }
            Err(e) => self.end(CUDA_ERROR_UNKNOWN, &format!("command {:#x} is malformed: {e}", header.code)),
        }
    }

    /// Whether all work that the GPU was given, and all waiting work, is complete, according to the completions
    /// collected so far.
    pub fn is_settled(&self) -> bool {
        let waits = self.sched.is_idle() && self.parked.is_empty() && self.late_copies.0.is_empty();
        waits
            && self.stripes.is_idle()
            && !self.shared_events.is_pending()
            && self.streams.live().all(|(_, stream)| stream.issued == 0)
    }

    /// Returns the session's counters. No launch may be waiting.
    pub fn counts(&self) -> Counts {
        let Launches { arrived, refused, .. } = self.launches;
        Counts { seq: self.last_seq, launches: arrived, refused, late: self.late.unwrap_or(0) }
    }

    /// Continues with the counters of a session that moved here.
    pub fn set_counts(&mut self, counts: Counts) {
        let Counts { seq, launches, refused, late } = counts;
        self.last_seq = seq;
        self.launches = Launches { arrived: launches, refused, waiting: 0 };
        self.stats.launches = launches.saturating_sub(refused);
        self.late = (late != 0).then_some(late);
    }

    fn admit(&mut self, mut frame: Frame) {
        // A change of settings never waits, not even for memory to be mapped, because later launches keep the settings
        // of their arrival. The creation of an event does not wait either, because waiting commands refer to the event
        // (`refer`).
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

    /// Whether so many commands wait that no more may be read. A program that never waits is then held back by its
    /// connection, as it would be by a driver with a full queue.
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

    /// Runs an open command, and handles its outcome.
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

    /// Stores the current settings of the function in a launch that has to wait.
    fn stamp(&self, frame: &mut Frame) {
        if let Command::Launch(c) = &frame.command
            && frame.settings.is_none()
            && kept(Rule::FunctionSettings)
            && let Ok(module) = self.modules.get(c.module)
        {
            frame.settings = module.kernel(c.kernel).ok().map(|kernel| Rc::clone(kernel.settings.wanted()));
        }
    }

    /// Keeps the events of a waiting command, and their records, until [`Session::release`], even if the program
    /// destroys the events.
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

    /// Finishes a held command. [`Session::advance`] then runs the commands that waited for it.
    pub fn finish(&mut self, seq: u64) {
        self.sched.finish(seq);
    }

    /// Runs all commands that may run now.
    pub fn advance(&mut self) {
        while !self.hold.stops()
            && let Some(seq) = self.sched.next_ready()
        {
            if let Some(frame) = self.unpark(seq) {
                self.run(frame);
            }
        }
    }

    /// Retries commands that lacked room. Returns whether there were any.
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

    /// Whether another command waits for this one.
    pub fn is_waited_for(&self, seq: u64) -> bool {
        self.sched.is_waited_for(seq)
    }

    /// Whether a new command of the stream would have to wait.
    pub fn stream_is_held(&self, stream_id: u64) -> bool {
        self.sched.must_wait(&[(Key::Stream(stream_id), Mode::Observe)])
    }

    /// Whether some progress can only be found by querying the GPU again.
    pub fn needs_looking_after(&self) -> bool {
        self.completions.is_pending()
            || !self.mirrors.is_idle()
            || self.shared_events.is_pending()
            || !self.closing.is_empty()
    }

    /// Does everything that is possible without new frames. Returns whether anything was done.
    pub fn turn(&mut self) -> bool {
        let mut any = false;
        while let Some(then) = self.helpers.next_result() {
            then(self);
            any = true;
        }
        self.register_waiting();
        any |= self.drain();
        self.tell_adopted();
        // This `collect` notifies the watchers of these contexts' events before the contexts are destroyed.
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

    /// Stores the error of a command without a reply. The next reply to a synchronising command reports it.
    pub fn late(&mut self, code: Code) {
        if is_sticky(code) {
            self.note_sticky(code);
        }
        self.late.get_or_insert(code);
    }

    /// Like [`Session::late`], for work of a context. Errors of a destroyed context are dropped.
    pub fn late_in(&mut self, context: u64, done: Result<(), Code>) {
        if let Err(code) = done
            && self.contexts.contains(context)
        {
            self.late(code);
        }
    }

    /// Reports to the appliance that a device has caused an error. The appliance determines which device it was.
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

    /// Replies to a synchronising command after mirrors have been read.
    pub fn synchronised(&mut self, seq: u64, code: Code) {
        match code == 0 && self.mirrors.holds_back() && kept(Rule::MirrorReply) {
            true => self.mirrors.wait(Told { seq, code, action: Action::Synchronised }),
            false => self.synchronised_now(seq, code),
        }
    }

    /// Replies to a synchronising command now.
    pub fn synchronised_now(&mut self, seq: u64, code: Code) {
        self.check_launches();
        let code = self.tell(code);
        self.reply(seq, code);
    }

    /// Returns the code for an answer that says that work is complete: `code` or, if that is 0, a late error. First
    /// sends all output that was printed before.
    pub fn tell(&mut self, code: Code) -> Code {
        self.push_text();
        // Every answer reports an error that broke the context. A late error before it is dropped.
        let late = if code == 0 || is_sticky(code) { self.late.take() } else { None };
        if code == 0 { late.unwrap_or(0) } else { code }
    }

    /// Like [`Session::tell`], for an event. Late errors are reported only if the client takes them from such an
    /// answer. A failed record is itself a late error.
    pub fn tell_of_event(&mut self, code: Code) -> Code {
        if self.out.wire < EVENTS_TELL {
            return code;
        }
        self.push_text();
        let late = self.late.take();
        if is_sticky(code) { code } else { late.unwrap_or(code) }
    }

    /// Counts a launch that was refused. Its code is reported as a late error.
    pub fn launch_refused(&mut self) {
        self.launches.refused += 1;
    }

    /// Ends the session if a launch was lost without an error, because its results would be wrong.
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

    /// Sends the client the output of kernels since the last call.
    pub fn push_text(&mut self) {
        let Some(text) = &mut self.text else { return };
        while let Some((stderr, bytes)) = text.take() {
            self.out.push(protocol::Text::CODE, 0, &protocol::Text { stderr }, &bytes);
        }
    }
}
