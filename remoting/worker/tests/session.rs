//! A session against a driver that can be stopped: which command waits for which, and the order of the reports.

mod common;
#[path = "session/graphs.rs"]
mod graphs;
#[path = "session/launch_events.rs"]
mod launch_events;
#[path = "session/mirrors.rs"]
mod mirrors;

use common::client::{CONTEXT, Client, LEGACY, Link, Received, row};
use common::fake::{self, GRANULARITY, STOPPED};
use protocol::{
    Callback, CallbackDone, ContextDestroy, ContextFence, ContextSynchronize, CopyToDevice, CopyToDeviceLate,
    CopyToHost, EventCreate, EventDone, EventQuery, EventRecord, EventSynchronize, Fenced, Gate, GateOpen, Header,
    HostBytes, HostFunction, Launch, LaunchShape, Message, ModuleUnload, NeedBytes, Reply, SlabMap, SlabUnmap,
    StreamDestroy, StreamQuery, StreamSynchronize, StreamWaitEvent, SupplyBytes, SupplyCancel, UNCOUNTED,
};
use remotegpu_worker::io::frames::Payload;
use remotegpu_worker::session::budgets::Budgets;
use remotegpu_worker::session::commands::Session;
use std::sync::{Mutex, MutexGuard};

/// All streams of the fake driver continue together, so one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Direct(Session);

impl Link for Direct {
    fn send(&mut self, header: Header, payload: Vec<u8>) {
        self.0.accept(&header, Payload::Heap(payload));
    }

    fn receive(&mut self) -> Vec<u8> {
        if !self.0.turn() {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        let mut bytes = Vec::new();
        let sent = self.0.out.flush(|slices| {
            slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
            Ok(slices.iter().map(|slice| slice.len()).sum())
        });
        sent.expect("memory takes everything");
        if !bytes.is_empty() {
            self.0.retry_blocked();
        }
        bytes
    }
}

struct Test {
    client: Client<Direct>,
    base: u64,
    _alone: MutexGuard<'static, ()>,
}

const A: u64 = 11;
const B: u64 = 12;
const SLAB: u64 = 4 * GRANULARITY;
/// Granted for modules.
const CODE: u64 = 1 << 10;
const NON_BLOCKING: u32 = 1;
const MODULE: u64 = 5;

/// Starts a session with memory, a module with one kernel, a stopped stream `A` and a stream `B` that runs.
fn start() -> Test {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    fake::world().launches.clear();
    fake::world().graphs.clear();
    let session = Session::new(fake::driver(), None, Budgets::default()).expect("session");
    let mut client = Client::new(Direct(session));
    let base = client.open().arena_base;
    client.link.0.order(br#"{"op":"granted","id":9,"size":1}"#, None);
    let grant = client.send(0, &protocol::Grant { device: 0, least: SLAB + CODE, want: SLAB + CODE }, &[]);
    client.link.0.order(format!(r#"{{"op":"granted","id":1,"size":{}}}"#, SLAB + CODE).as_bytes(), None);
    assert_eq!(client.reply(grant).0, 0);
    client.map(base, SLAB);
    client.stream(A, NON_BLOCKING, STOPPED);
    client.stream(B, NON_BLOCKING, 0);
    assert_eq!(client.load(MODULE, b".entry kernel").0, 0);
    assert_eq!(client.describe(MODULE, 0).0, 0);
    Test { client, base, _alone: alone }
}

impl Test {
    fn launch(&mut self, stream_id: u64, mark: u64) {
        let shape = LaunchShape { grid: [1; 3], block: [1; 3], shared: 0, attributes: vec![] };
        let launch = Launch { module: MODULE, kernel: 0, shape };
        self.client.send(stream_id, &launch, &mark.to_le_bytes());
    }

    fn launched(&self) -> Vec<u64> {
        let of = |bytes: &Vec<u8>| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        fake::world().launches.iter().map(|(_, parameters)| of(parameters)).collect()
    }

    fn turn(&mut self) {
        (0..50).for_each(|_| self.client.receive());
    }

    fn write(&mut self, stream_id: u64, offset: u64, bytes: &[u8]) -> u64 {
        let copy =
            CopyToDevice { context: CONTEXT, address: self.base + offset, extent: row(bytes.len() as u64), offset: 0 };
        self.client.send(stream_id, &copy, bytes)
    }

    fn read(&mut self, stream_id: u64, offset: u64, len: u64) -> u64 {
        let copy = CopyToHost { context: CONTEXT, address: self.base + offset, extent: row(len), offset: 0, len };
        self.client.send(stream_id, &copy, &[])
    }

    fn synchronize(&mut self, stream_id: u64) -> u32 {
        self.client.call(stream_id, &StreamSynchronize { launches: UNCOUNTED }, &[]).0
    }

    fn position(&self, what: impl Fn(&common::client::Received) -> bool) -> Option<usize> {
        self.client.inbox.iter().position(what)
    }
}

#[test]
fn bytes_go_there_and_back_and_memory_is_zeroed() {
    let mut t = start();
    let bytes: Vec<u8> = (0..10_000u32).flat_map(u32::to_le_bytes).collect();
    t.write(B, 4096, &bytes);
    let read = t.read(B, 4095, bytes.len() as u64 + 2);
    let (code, back) = t.client.host_bytes(read);
    assert_eq!(code, 0);
    assert_eq!(back, [&[0][..], &bytes, &[0]].concat());
}

#[test]
fn two_thousand_launches_on_a_stuck_stream_stop_nobody() {
    let mut t = start();
    for i in 0..2000 {
        t.launch(A, i);
    }
    assert_eq!(t.launched(), [0u64; 0]);
    t.launch(B, 5000);
    assert_eq!(t.synchronize(B), 0);
    t.write(B, 0, b"go");
    let read = t.read(B, 0, 2);
    assert_eq!(t.client.host_bytes(read), (0, b"go".to_vec()));
    assert_eq!(t.launched(), [5000]);
    let done = t.client.send(A, &StreamSynchronize { launches: UNCOUNTED }, &[]);
    t.turn();
    assert!(!t.client.has_reply(done));
    assert!(!fake::world().overflowed, "a driver would have blocked");
    fake::world().go_on();
    assert_eq!(t.client.reply(done).0, 0);
    assert_eq!(t.launched(), [5000].into_iter().chain(0..2000).collect::<Vec<u64>>());
}

#[test]
fn a_callback_holds_its_stream_and_what_waits_for_it() {
    let mut t = start();
    t.client.send(0, &EventCreate { event: 3, context: CONTEXT, flags: 2 }, &[]);
    t.client.send(B, &HostFunction { token: 70 }, &[]);
    t.launch(B, 1);
    t.client.send(B, &EventRecord { event: 3, generation: 1, flags: 0 }, &[]);
    t.client.stream(13, NON_BLOCKING, 0);
    t.client.send(13, &StreamWaitEvent { event: 3, generation: 1, flags: 0 }, &[]);
    t.launch(13, 2);
    t.client.stream(14, NON_BLOCKING, 0);
    t.launch(14, 3);
    let query = t.client.send(0, &EventQuery { event: 3, generation: 1 }, &[]);
    assert_eq!(t.client.reply(query).0, 600);
    assert_eq!(t.client.call(B, &StreamQuery {}, &[]).0, 600);
    t.client.wait("callback", |r| r.code == Callback::CODE);
    t.turn();
    assert_eq!(t.launched(), [3]);
    t.client.send(0, &CallbackDone { token: 70 }, &[]);
    assert_eq!(t.synchronize(13), 0);
    assert_eq!(t.launched(), [3, 1, 2]);
    t.client.wait("event", |r| r.code == EventDone::CODE);
}

#[test]
fn a_gate_holds_its_stream_until_it_is_opened_whichever_comes_first() {
    let mut t = start();
    t.client.send(B, &Gate { token: 70 }, &[]);
    t.launch(B, 1);
    t.client.send(B, &Gate { token: 71 }, &[]);
    t.launch(B, 2);
    t.client.stream(13, NON_BLOCKING, 0);
    t.launch(13, 3);
    // The second gate opens before its stream reaches it.
    t.client.send(0, &GateOpen { token: 71 }, &[]);
    assert_eq!(t.synchronize(13), 0);
    assert_eq!(t.launched(), [3]);
    assert_eq!(t.client.call(B, &StreamQuery {}, &[]).0, 600);
    t.client.send(0, &GateOpen { token: 70 }, &[]);
    assert_eq!(t.synchronize(B), 0);
    assert_eq!(t.launched(), [3, 1, 2]);
}

#[test]
fn a_copy_whose_bytes_will_not_come_lets_its_stream_continue() {
    let mut t = start();
    let late = CopyToDeviceLate { context: CONTEXT, address: t.base, extent: row(8) };
    let copy = t.client.send(B, &late, &[]);
    t.launch(B, 1);
    t.client.wait("question", |r| r.code == NeedBytes::CODE && r.seq == copy);
    assert!(t.launched().is_empty());
    t.client.send(0, &SupplyCancel { command: copy }, &[]);
    assert_eq!(t.synchronize(B), 0);
    assert_eq!(t.launched(), [1]);
    // A copy cannot be cancelled twice.
    t.client.send(0, &SupplyCancel { command: copy }, &[]);
    assert_eq!(t.synchronize(B), 1);
}

#[test]
fn an_old_record_does_not_wait_for_a_new_one() {
    let mut t = start();
    t.client.send(0, &EventCreate { event: 3, context: CONTEXT, flags: 2 }, &[]);
    t.client.send(B, &EventRecord { event: 3, generation: 1, flags: 0 }, &[]);
    // A wait for the first record that cannot run yet, and then a record that never completes.
    t.client.stream(13, NON_BLOCKING, 0);
    t.client.send(13, &HostFunction { token: 70 }, &[]);
    t.client.send(13, &StreamWaitEvent { event: 3, generation: 1, flags: 0 }, &[]);
    t.launch(13, 1);
    t.client.send(A, &EventRecord { event: 3, generation: 2, flags: 0 }, &[]);
    assert_eq!(t.client.call(0, &EventSynchronize { event: 3, generation: 1 }, &[]).0, 0);
    t.client.wait("callback", |r| r.code == Callback::CODE);
    t.client.send(0, &CallbackDone { token: 70 }, &[]);
    assert_eq!(t.synchronize(13), 0);
    assert_eq!(t.launched(), [1]);
    let newer = t.client.send(0, &EventSynchronize { event: 3, generation: 2 }, &[]);
    t.turn();
    assert!(!t.client.has_reply(newer));
    fake::world().go_on();
    assert_eq!(t.client.reply(newer).0, 0);
}

#[test]
fn a_late_record_is_not_the_latest_though_its_event_was_made_while_memory_was_being_mapped() {
    let mut t = start();
    t.client.stream(13, NON_BLOCKING, 0);
    // All commands wait until the old memory is gone.
    t.client.send(0, &SlabUnmap { address: t.base, size: SLAB }, &[]);
    t.client.send(0, &SlabMap { device: 0, address: t.base, size: SLAB }, &[]);
    t.client.send(0, &EventCreate { event: 3, context: CONTEXT, flags: 2 }, &[]);
    t.client.send(B, &HostFunction { token: 70 }, &[]);
    t.client.send(B, &EventRecord { event: 3, generation: 1, flags: 0 }, &[]);
    t.client.send(A, &EventRecord { event: 3, generation: 2, flags: 0 }, &[]);
    t.client.wait("callback", |r| r.code == Callback::CODE);
    t.client.send(0, &CallbackDone { token: 70 }, &[]);
    assert_eq!(t.synchronize(B), 0);
    t.client.send(13, &StreamWaitEvent { event: 3, generation: 2, flags: 0 }, &[]);
    t.launch(13, 1);
    t.turn();
    assert_eq!(t.launched(), [0u64; 0]);
    fake::world().go_on();
    assert_eq!(t.synchronize(13), 0);
    assert_eq!(t.launched(), [1]);
}

#[test]
fn every_record_is_told_of_an_event_that_was_queried_once() {
    let mut t = start();
    t.client.send(0, &EventCreate { event: 3, context: CONTEXT, flags: 2 }, &[]);
    t.client.send(B, &EventRecord { event: 3, generation: 1, flags: 0 }, &[]);
    assert_eq!(t.synchronize(B), 0);
    assert_eq!(t.client.call(0, &EventQuery { event: 3, generation: 1 }, &[]).0, 0);
    t.client.send(A, &EventRecord { event: 3, generation: 2, flags: 0 }, &[]);
    t.turn();
    assert_eq!(t.position(|r| r.code == EventDone::CODE), None, "nobody asked when the first was made");
    fake::world().go_on();
    let mut told = |generation, code| {
        let done = EventDone { event: 3, generation, code };
        let is_it =
            |r: &Received| r.code == EventDone::CODE && EventDone::decode(&r.payload) == Ok((done.clone(), &[]));
        t.client.wait("event", is_it);
        t.client.send(99, &EventRecord { event: 3, generation: 3, flags: 0 }, &[]);
    };
    told(2, 0);
    // There is no such stream.
    told(3, 400);
}

#[test]
fn a_completion_comes_after_the_bytes_before_it() {
    let mut t = start();
    t.client.send(0, &EventCreate { event: 3, context: CONTEXT, flags: 2 }, &[]);
    let read = t.read(A, 0, 100_000);
    t.client.send(A, &EventRecord { event: 3, generation: 1, flags: 0 }, &[]);
    t.client.send(B, &StreamWaitEvent { event: 3, generation: 1, flags: 0 }, &[]);
    t.client.send(B, &protocol::StreamFence { token: 8 }, &[]);
    let event = t.client.send(0, &EventSynchronize { event: 3, generation: 1 }, &[]);
    t.turn();
    fake::world().go_on();
    t.client.reply(event);
    t.client.wait("fence", |r| r.code == Fenced::CODE);
    let bytes = t.position(|r| r.code == HostBytes::CODE && r.seq == read).expect("bytes");
    assert!(bytes < t.position(|r| r.code == Reply::CODE && r.seq == event).expect("reply"));
    assert!(bytes < t.position(|r| r.code == Fenced::CODE).expect("fence"));
}

#[test]
fn the_legacy_stream_is_a_barrier_for_blocking_streams_that_are_held() {
    let mut t = start();
    t.client.stream(13, 0, 0);
    t.client.stream(14, 0, 0);
    t.client.send(13, &HostFunction { token: 70 }, &[]);
    t.launch(13, 1);
    t.launch(LEGACY, 2);
    t.launch(14, 3);
    t.launch(B, 4);
    t.client.wait("callback", |r| r.code == Callback::CODE);
    assert_eq!(t.launched(), [4]);
    t.client.send(0, &CallbackDone { token: 70 }, &[]);
    assert_eq!(t.client.call(0, &ContextSynchronize { context: CONTEXT, launches: UNCOUNTED }, &[]).0, 0);
    assert_eq!(t.launched(), [4, 1, 2, 3]);
}

#[test]
fn late_bytes_are_asked_for_when_the_stream_gets_there() {
    let mut t = start();
    let len = 9 << 20;
    let copy = CopyToDeviceLate { context: CONTEXT, address: t.base, extent: row(len) };
    // The slab is 8 MiB: the copy is refused, and the next synchronisation reports it.
    t.client.send(B, &CopyToDeviceLate { address: t.base + GRANULARITY + (1 << 40), ..copy.clone() }, &[]);
    assert_eq!(t.synchronize(B), 1);
    let copy = CopyToDeviceLate { extent: row(5 << 20), ..copy };
    let late = t.client.send(B, &copy, &[]);
    let read = t.read(B, (4 << 20) - 1, 3);
    let mut asked = 0;
    while asked < 5 << 20 {
        let need = t.client.wait("question", |r| {
            r.code == NeedBytes::CODE && r.seq == late && NeedBytes::decode(&r.payload).expect("need").0.offset == asked
        });
        let need = NeedBytes::decode(&need.payload).expect("need").0;
        assert_eq!(t.position(|r| r.code == HostBytes::CODE), None);
        let bytes: Vec<u8> = (need.offset..need.offset + need.len).map(|i| (i >> 20) as u8 + 1).collect();
        t.client.send(0, &SupplyBytes { command: late, offset: need.offset }, &bytes);
        asked += need.len;
    }
    assert_eq!(t.client.host_bytes(read), (0, vec![4, 5, 5]));
}

#[test]
fn a_session_wide_wait_ignores_held_streams_of_later_commands_only() {
    let mut t = start();
    t.client.send(B, &HostFunction { token: 70 }, &[]);
    t.launch(B, 1);
    let synchronize = t.client.send(0, &ContextSynchronize { context: CONTEXT, launches: UNCOUNTED }, &[]);
    t.client.send(0, &ContextFence { context: CONTEXT, token: 6 }, &[]);
    t.client.stream(13, NON_BLOCKING, 0);
    t.launch(13, 2);
    t.client.wait("callback", |r| r.code == Callback::CODE);
    t.turn();
    assert_eq!(t.launched(), [2], "later commands go on");
    assert!(!t.client.has_reply(synchronize));
    t.client.send(0, &CallbackDone { token: 70 }, &[]);
    assert_eq!(t.client.reply(synchronize).0, 0);
    t.client.wait("fence", |r| r.code == Fenced::CODE);
}

#[test]
fn the_quota_holds_whatever_the_client_believes() {
    let mut t = start();
    t.client.map(t.base + SLAB, GRANULARITY);
    assert_eq!(t.synchronize(B), 2);
    assert_eq!(t.synchronize(B), 0, "told once");
    for (address, size) in [(t.base, GRANULARITY), (t.base + 1, GRANULARITY), (t.base, 0), (0, GRANULARITY)] {
        t.client.send(0, &SlabMap { device: 0, address, size }, &[]);
        assert_eq!(t.synchronize(B), 1);
    }
    t.client.send(0, &SlabUnmap { address: t.base, size: GRANULARITY }, &[]);
    assert_eq!(t.synchronize(B), 1, "only whole slabs");
    t.write(B, 0, b"secret");
    t.client.send(0, &SlabUnmap { address: t.base, size: SLAB }, &[]);
    t.client.map(t.base, SLAB);
    let read = t.read(B, 0, 6);
    assert_eq!(t.client.host_bytes(read), (0, vec![0; 6]));
}

#[test]
fn unknown_ids_answer_as_the_driver_does() {
    let mut t = start();
    let unknown = 999;
    assert_eq!(t.client.call(unknown, &StreamSynchronize { launches: UNCOUNTED }, &[]).0, 400);
    assert_eq!(t.client.call(unknown, &StreamQuery {}, &[]).0, 400);
    assert_eq!(t.client.call(0, &ContextSynchronize { context: unknown, launches: UNCOUNTED }, &[]).0, 201);
    assert_eq!(t.client.call(0, &EventQuery { event: unknown, generation: 1 }, &[]).0, 400);
    let copy = CopyToHost { context: CONTEXT, address: 0x1000, extent: row(4), offset: 0, len: 4 };
    assert_eq!(t.client.call(B, &copy, &[]).0, 1);
    t.launch(unknown, 0);
    assert_eq!(t.synchronize(B), 400);
    t.client.send(0, &ContextFence { context: unknown, token: 4 }, &[]);
    t.client.wait("fence", |r| r.code == Fenced::CODE);
    t.client.send(0, &StreamDestroy { stream: B }, &[]);
    assert_eq!(t.client.call(B, &StreamQuery {}, &[]).0, 400);
}

#[test]
fn modules_fail_and_go() {
    let mut t = start();
    assert_eq!(t.client.load(6, b"!bad").0, 218);
    t.launch(B, 1);
    t.client.send(0, &ModuleUnload { module: MODULE, token: 9 }, &[]);
    t.launch(B, 2);
    assert_eq!(t.synchronize(B), 400);
    assert_eq!(t.launched(), [1]);
    t.client.wait("fence", |r| r.code == Fenced::CODE);
}

#[test]
fn a_context_goes_when_its_work_is_done() {
    let mut t = start();
    t.launch(A, 1);
    t.client.send(0, &ContextDestroy { context: CONTEXT, token: 9 }, &[]);
    t.turn();
    assert_eq!(t.client.call(B, &StreamQuery {}, &[]).0, 0);
    fake::world().go_on();
    t.turn();
    assert_eq!(t.launched(), [1]);
    assert_eq!(t.client.call(B, &StreamQuery {}, &[]).0, 400);
    assert_eq!(t.client.call(0, &ContextSynchronize { context: CONTEXT, launches: UNCOUNTED }, &[]).0, 201);
}

#[test]
fn a_client_that_ignores_its_window_is_ended() {
    let mut t = start();
    t.client.send(B, &HostFunction { token: 70 }, &[]);
    for _ in 0..600 {
        t.write(B, 0, &[1; 1 << 20]);
    }
    let ending = t.position(|r| r.code == protocol::Ending::CODE);
    t.turn();
    assert!(ending.is_none() && t.position(|r| r.code == protocol::Ending::CODE).is_some());
    assert!(t.client.link.0.has_ended());
}
