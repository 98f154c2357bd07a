//! A session that moves from one worker to another; the test is both appliances and the client.

mod common;

use common::client::{CONTEXT, LEGACY, encoded};
use common::session::{A, B, LIMIT, MODULE, NON_BLOCKING, PTX, SLAB, Test, floats, start_on};
use common::worker::{Worker, pass};
use driverapi::errors::{CUDA_ERROR_NOT_READY, CUDA_ERROR_OUT_OF_MEMORY};
use protocol::{
    CallbackDone, CopyOnDevice, EventCreate, EventQuery, EventRecord, Grant, GraphBuild, GraphLaunch, GraphNode,
    HostFunction, Launch, LaunchShape, Message, MirrorAdd, MirrorChanges, MirrorPart, MirrorRun, MirrorsTold,
    ModuleGlobal, Reader, StreamQuery, StreamSynchronize, Symbol, UNCOUNTED, function,
};
use rustix::net::{SendFlags, send};
use serde_json::Value;
use std::os::fd::AsFd;
use std::sync::Arc;

const GRACE: [&str; 2] = ["--grace", "30"];
const COUNTER: u64 = SLAB / 2;

fn worker(profile: &str) -> Worker {
    Worker::start_told(profile, LIMIT, &[], &GRACE)
}

fn start(profile: &str) -> Test {
    start_on(worker(profile))
}

fn order(worker: &Worker, op: &str) {
    send(&worker.control, format!(r#"{{"op":"{op}"}}"#).as_bytes(), SendFlags::NOSIGNAL).expect("sent");
}

/// Moves the session to the other worker; returns the report, or the reason why it stays.
fn depart(test: &Test, to: &Worker, seconds: u64) -> Result<Value, String> {
    let refused = test.worker.told("notmoved").len();
    send_ahead(test, to, refused)?;
    move_away(test, seconds);
    let moved = told_or_refused(test, "moved", 0, refused)?;
    to.wait_told("adopted", 0);
    Ok(moved)
}

/// Sends its memory to the other worker, to which it will move.
fn send_ahead(test: &Test, to: &Worker, refused: usize) -> Result<Value, String> {
    let earlier = test.worker.told("ahead").len();
    pass(&test.worker.control, to.client.link.stream.as_fd(), br#"{"op":"ahead"}"#);
    told_or_refused(test, "ahead", earlier, refused)
}

fn move_away(test: &Test, seconds: u64) {
    let packet = format!(r#"{{"op":"move","seconds":{seconds}}}"#);
    send(&test.worker.control, packet.as_bytes(), SendFlags::NOSIGNAL).expect("sent");
}

/// Returns the report with this name after `earlier` ones, or the reason why it does not move, after `refused`
/// refusals.
fn told_or_refused(test: &Test, op: &str, earlier: usize, refused: usize) -> Result<Value, String> {
    loop {
        if let Some(told) = test.worker.told(op).get(earlier) {
            return Ok(told.clone());
        }
        if let Some(refused) = test.worker.told("notmoved").get(refused) {
            return Err(refused["reason"].as_str().expect("a reason").to_owned());
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Lets the client continue with the other worker.
fn follow(test: &mut Test, to: Worker) {
    order(&test.worker, "leave");
    test.client().link.data = Arc::clone(&to.client.link.data);
    let mut to = to;
    std::mem::swap(&mut to.client, &mut test.worker.client);
    std::mem::swap(&mut to, &mut test.worker);
    test.client().link.reconnect();
    test.client().link.write();
    assert!(to.process.wait().expect("exit").success());
}

fn pattern() -> Vec<u8> {
    floats((0..1 << 20).map(|i| i as f32))
}

fn count(test: &mut Test, stream: u64, kernel: u32) {
    let at = test.base + COUNTER;
    test.launch(stream, kernel, 1, 1, &encoded(&at));
}

fn variable(test: &mut Test) -> u64 {
    let (code, tail) = test.client().call(0, &ModuleGlobal { module: MODULE, name: "counter".into() }, &[]);
    assert_eq!(code, 0);
    Reader::new(&tail).get::<Symbol>().expect("a symbol").address
}

#[test]
fn a_session_goes_on_where_it_moved_to() {
    let mut test = start("normal");
    let kernel = test.load()("count");
    test.write(A, 0, &pattern());
    test.write(A, COUNTER, &[0; 4]);
    for _ in 0..3 {
        count(&mut test, A, kernel);
    }
    // A variable that kernels changed, and a pointer to it.
    let counter = variable(&mut test);
    test.launch(A, kernel, 1, 1, &encoded(&counter));
    // A graph that counts twice.
    let shape = LaunchShape { grid: [1; 3], block: [1; 3], shared: 0, attributes: vec![] };
    let mut body = encoded(&Launch { module: MODULE, kernel, shape });
    body.extend(encoded(&(test.base + COUNTER)));
    let node = |after| GraphNode { after, code: Launch::CODE, body: body.clone() };
    let edge = protocol::GraphEdge::default();
    let nodes = vec![node(vec![]), node(vec![edge])];
    let graph = GraphBuild { graph: 70, context: CONTEXT, flags: 0, nodes };
    assert_eq!(test.client().call(0, &graph, &[]).0, 0);
    // Two events, a launch between them.
    for (event, generation) in [(80, 4), (81, 7)] {
        test.client().send(0, &EventCreate { event, context: CONTEXT, flags: 0 }, &[]);
        test.client().send(A, &EventRecord { event, generation, flags: 0 }, &[]);
        count(&mut test, A, kernel);
    }
    assert_eq!(test.synchronize(A), 0);
    let elapsed = |test: &mut Test, from: u64, to: u64| {
        let mut arguments = encoded(&from);
        arguments.extend(encoded(&to));
        let seq = test.client().send_raw(function::CU_EVENT_ELAPSED_TIME, 0, arguments);
        let (code, tail) = test.client().reply(seq);
        assert_eq!(code, 0);
        Reader::new(&tail).get::<f32>().expect("milliseconds")
    };
    let before = elapsed(&mut test, 80, 81);
    let other = worker("normal");
    let moved = depart(&test, &other, 60).expect("moved");
    assert!(moved["bytes"].as_u64().is_some_and(|bytes| (4 << 20..SLAB / 2).contains(&bytes)), "{moved}");
    // Commands that arrive meanwhile are executed there.
    count(&mut test, A, kernel);
    let awaited = test.client().send(A, &StreamSynchronize { launches: UNCOUNTED }, &[]);
    follow(&mut test, other);
    assert_eq!(test.client().reply(awaited).0, 0);
    test.client().send(A, &GraphLaunch { graph: 70 }, &[]);
    count(&mut test, B, kernel);
    assert_eq!(test.synchronize(B), 0);
    assert_eq!(test.synchronize(A), 0);
    assert!(test.read(B, 0, 4 << 20) == pattern());
    let counted = u32::from_le_bytes(test.read(B, COUNTER, 4).try_into().expect("4 bytes"));
    // 3, 2 between the events, 1 on the way, 2 of the graph, and one that may have run at the same time.
    assert!((8..=9).contains(&counted), "{counted}");
    assert_eq!(variable(&mut test), counter);
    let address = test.base;
    let copy = CopyOnDevice {
        context: CONTEXT,
        to: address,
        from: counter,
        extent: common::client::row(4),
        ..Default::default()
    };
    test.client().send(A, &copy, &[]);
    assert_eq!(test.read(A, 0, 4), 42u32.to_le_bytes());
    assert!((elapsed(&mut test, 80, 81) - before).abs() < 0.01);
    test.client().send(A, &EventRecord { event: 81, generation: 8, flags: 0 }, &[]);
    assert_eq!(test.synchronize(A), 0);
    assert!(elapsed(&mut test, 80, 81) > before);
    assert_eq!(test.client().call(A, &EventQuery { event: 81, generation: 8 }, &[]).0, 0);
    // The grant belongs to the session there, too: its share is full.
    let more = Grant { device: 0, least: LIMIT, want: LIMIT };
    assert_eq!(test.client().call(0, &more, &[]).0, CUDA_ERROR_OUT_OF_MEMORY);
    let (code, _) = test.client().call(LEGACY, &StreamSynchronize { launches: UNCOUNTED }, &[]);
    assert_eq!(code, 0);
}

#[test]
fn what_the_device_wrote_to_a_mirror_is_told_though_the_session_moves() {
    const CARRIER: u64 = 20;
    const MIRROR: u64 = 90;
    let mut test = start("normal");
    let kernel = test.load()("count");
    test.write(A, COUNTER, &[0; 8]);
    assert_eq!(test.synchronize(A), 0);
    test.client().stream(CARRIER, NON_BLOCKING, 0);
    let add = MirrorAdd { mirror: MIRROR, context: CONTEXT, address: test.base + COUNTER, size: 8 };
    assert_eq!(test.client().call(CARRIER, &add, &[]).0, 0);
    let runs = vec![MirrorRun { at: 4, len: 4 }];
    let changes = MirrorChanges { parts: vec![MirrorPart { mirror: MIRROR, runs }] };
    let change = test.client().send(CARRIER, &changes, b"host");
    count(&mut test, A, kernel);
    let other = worker("normal");
    depart(&test, &other, 60).expect("moved");
    follow(&mut test, other);
    count(&mut test, A, kernel);
    assert_eq!(test.synchronize(A), 0);
    let told = test.client().inbox.iter().filter(|r| r.code == MirrorsTold::CODE);
    let told: Vec<(u64, Vec<u8>)> = told
        .map(|r| {
            let (told, bytes) = MirrorsTold::decode(&r.payload).expect("told");
            (told.applied, bytes.to_vec())
        })
        .collect();
    let words: Vec<u8> = told.iter().flat_map(|(_, bytes)| bytes).copied().collect();
    assert_eq!(words, [1, 0, 0, 0, 2, 0, 0, 0]);
    assert!(told.iter().all(|(applied, _)| *applied >= change), "{told:?}");
}

#[test]
fn it_may_move_again_and_back() {
    let mut test = start("normal");
    let kernel = test.load()("count");
    test.write(A, 0, &pattern());
    test.write(A, COUNTER, &[0; 4]);
    for _ in 0..4 {
        count(&mut test, A, kernel);
        let other = worker("normal");
        depart(&test, &other, 60).expect("moved");
        count(&mut test, A, kernel);
        follow(&mut test, other);
    }
    assert_eq!(test.synchronize(A), 0);
    assert_eq!(test.read(B, COUNTER, 4), 8u32.to_le_bytes());
    assert!(test.read(B, 0, 4 << 20) == pattern());
}

#[test]
fn what_waits_for_the_program_is_done_before() {
    let mut test = start("normal");
    let kernel = test.load()("count");
    test.write(A, COUNTER, &[0; 4]);
    test.client().send(A, &HostFunction { token: 9 }, &[]);
    count(&mut test, A, kernel);
    test.client().wait("the callback", |r| r.code == protocol::Callback::CODE);
    let other = worker("normal");
    send_ahead(&test, &other, 0).expect("sent");
    move_away(&test, 60);
    count(&mut test, A, kernel);
    test.client().send(0, &CallbackDone { token: 9 }, &[]);
    count(&mut test, A, kernel);
    test.worker.wait_told("moved", 0);
    other.wait_told("adopted", 0);
    follow(&mut test, other);
    assert_eq!(test.synchronize(A), 0);
    assert_eq!(test.read(A, COUNTER, 4), 3u32.to_le_bytes());
}

#[test]
fn only_what_changed_since_it_was_sent_is_sent_again() {
    let mut test = start("normal");
    let kernel = test.load()("count");
    test.write(A, 0, &pattern());
    test.write(A, COUNTER, &[0; 4]);
    assert_eq!(test.synchronize(A), 0);
    let other = worker("normal");
    let ahead = send_ahead(&test, &other, 0).expect("sent")["bytes"].as_u64().expect("bytes");
    assert!(ahead >= 4 << 20, "{ahead}");
    // The session runs, and changes one word.
    count(&mut test, A, kernel);
    assert_eq!(test.synchronize(A), 0);
    move_away(&test, 60);
    let moved = told_or_refused(&test, "moved", 0, 0).expect("moved")["bytes"].as_u64().expect("bytes");
    assert!((ahead + 1..ahead + (5 << 20)).contains(&moved), "{ahead} and then {moved}");
    follow(&mut test, other);
    assert_eq!(test.read(A, COUNTER, 4), 1u32.to_le_bytes());
    assert!(test.read(B, 0, 4 << 20) == pattern());
}

#[test]
fn what_cannot_be_the_same_there_is_a_reason_to_stay() {
    let mut test = start("normal");
    let load = test.load();
    let (kernel, spin) = (load("count"), load("spin"));
    test.write(A, COUNTER, &[0; 4]);
    for (profile, reason) in [("shuffled", "ModuleAddressesDiffer: counter is at "), ("hostile", "RangeTaken: ")] {
        count(&mut test, A, kernel);
        let why = depart(&test, &worker(profile), 60).expect_err("it stays");
        assert!(why.starts_with(reason), "{why}");
        assert_eq!(test.synchronize(A), 0);
    }
    // A worker that reads nothing and ends.
    let gone = worker("normal");
    gone.client.link.stream.shutdown(std::net::Shutdown::Both).expect("connected");
    let why = depart(&test, &gone, 60).expect_err("it stays");
    assert!(why.starts_with("OtherWorker: "), "{why}");
    // No room: the share there is smaller.
    let small = Worker::start_told("normal", SLAB / 2, &[], &GRACE);
    let why = depart(&test, &small, 60).expect_err("it stays");
    assert!(why.starts_with("NoRoom: "), "{why}");
    // A kernel that does not end.
    test.write(A, 0, &[0; 4]);
    let flag = test.base;
    test.launch(B, spin, 1, 1, &encoded(&flag));
    assert_eq!(test.client().call(B, &StreamQuery {}, &[]).0, CUDA_ERROR_NOT_READY);
    let why = depart(&test, &worker("normal"), 1).expect_err("it stays");
    assert!(why.starts_with("KernelStillRuns: "), "{why}");
    test.write(A, 0, &[1; 4]);
    assert_eq!(test.synchronize(B), 0);
    count(&mut test, A, kernel);
    assert_eq!(test.synchronize(A), 0);
    assert_eq!(test.read(A, COUNTER, 4), 3u32.to_le_bytes());
}

#[test]
fn a_module_whose_kernels_allocate_stays() {
    let mut test = start("normal");
    let call = "\n.extern .func (.param .b64 p) malloc (.param .b64 n);\n.visible .entry add(";
    let image = PTX.replace("\n.visible .entry add(", call);
    let (code, loaded) = test.client().load(MODULE, image.as_bytes());
    assert_eq!(code, 0, "{}", loaded.log);
    let why = depart(&test, &worker("normal"), 60).expect_err("it stays");
    assert!(why.starts_with("DeviceHeapUsed: "), "{why}");
}

#[test]
fn a_session_that_stays_after_all_is_as_it_was() {
    let mut test = start("normal");
    let kernel = test.load()("count");
    test.write(A, COUNTER, &[0; 4]);
    test.client().stream(20, NON_BLOCKING, 0);
    count(&mut test, A, kernel);
    let other = worker("normal");
    depart(&test, &other, 60).expect("moved");
    count(&mut test, A, kernel);
    order(&test.worker, "stay");
    assert_eq!(test.synchronize(A), 0);
    assert_eq!(test.read(20, COUNTER, 4), 2u32.to_le_bytes());
}
