//! Sessions whose connection breaks: everything is done once, and every answer comes once, as on a connection that
//! holds.

mod common;

use common::client::{Link, Received, encoded};
use common::session::{A, B, LIMIT, NON_BLOCKING, PROFILES, Test, start_on};
use common::worker::{Worker, pass};
use protocol::{
    Acknowledge, Callback, CallbackDone, Consumed, CopyToHost, EventCreate, EventRecord, Header, HostFunction, Message,
    MirrorAdd, MirrorChanges, MirrorPart, MirrorRun, MirrorsTold, Probe,
};
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

fn started(profile: &str, grace: &str) -> Test {
    start_on(Worker::start_told(profile, LIMIT, &[], &["--grace", grace]))
}

/// The number of a mirror, the stream that carries the client's changes of it, and its place in the memory.
const MIRROR: u64 = 90;
const CARRIER: u64 = 20;
const MIRRORED: Range<usize> = 512..1024;
/// The kernel's word in the mirror; in each round the client changes 8 of the bytes before it.
const COUNTED: u64 = 256;
const ROUNDS: u64 = 20;

/// The result of a run: the memory that its kernels left, the bytes that the worker has consumed, and the number of
/// messages, by command.
#[derive(Debug, PartialEq)]
struct Outcome {
    memory: Vec<u8>,
    consumed: u64,
    came: BTreeMap<(u32, u64), usize>,
}

fn add_mirror(t: &mut Test) {
    t.client().stream(CARRIER, NON_BLOCKING, 0);
    let (at, size) = (MIRRORED.start as u64, MIRRORED.len());
    t.write(CARRIER, at, &vec![0; size]);
    let add = MirrorAdd { mirror: MIRROR, context: common::client::CONTEXT, address: t.base + at, size: size as u64 };
    assert_eq!(t.client().call(CARRIER, &add, &[]).0, 0);
}

fn change_mirror(t: &mut Test, round: u64) {
    let runs = vec![MirrorRun { at: round * 8, len: 8 }];
    let changes = MirrorChanges { parts: vec![MirrorPart { mirror: MIRROR, runs }] };
    t.client().send(CARRIER, &changes, &changed(round));
}

fn changed(round: u64) -> [u8; 8] {
    (round + 1).to_le_bytes()
}

/// Returns the mirror's bytes as the client knows them: its own changes, and those that it was told of, each once.
fn mirror_of_client(t: &Test) -> Vec<u8> {
    let mut bytes = vec![0; MIRRORED.len()];
    for round in 0..ROUNDS {
        bytes[round as usize * 8..][..8].copy_from_slice(&changed(round));
    }
    for received in t.worker.client.inbox.iter().filter(|r| r.code == MirrorsTold::CODE) {
        let (told, mut rest) = MirrorsTold::decode(&received.payload).expect("words");
        for run in told.parts.iter().flat_map(|part| &part.runs) {
            let (now, others) = rest.split_at(run.len as usize);
            bytes[run.at as usize..][..now.len()].copy_from_slice(now);
            rest = others;
        }
    }
    bytes
}

/// Counts in two streams, one of them also in a mirror that the client changes, with copies both ways and host
/// functions in between.
fn work(t: &mut Test) -> Outcome {
    let kernel = t.load();
    add_mirror(t);
    let counted = t.base + MIRRORED.start as u64 + COUNTED;
    let event = EventCreate { event: 70, context: common::client::CONTEXT, ..Default::default() };
    t.client().send(0, &event, &[]);
    for round in 0..ROUNDS {
        change_mirror(t, round);
        t.launch(A, kernel("count"), 1, 1, &encoded(&counted));
        t.write(A, 4096 + round * 8, &round.to_le_bytes());
        for _ in 0..5 {
            t.launch(A, kernel("count"), 1, 1, &encoded(&t.base));
            t.launch(B, kernel("count"), 1, 1, &encoded(&(t.base + 64)));
        }
        t.client().send(A, &HostFunction { token: round }, &[]);
        t.client().wait("callback", |r| r.code == Callback::CODE && r.payload == encoded(&Callback { token: round }));
        t.client().send(0, &CallbackDone { token: round }, &[]);
        t.client().send(B, &EventRecord { event: 70, generation: round + 1, ..Default::default() }, &[]);
    }
    assert_eq!((t.synchronize(A), t.synchronize(B)), (0, 0));
    let memory = t.read(A, 0, 8192);
    assert_eq!(
        (memory[MIRRORED.start + COUNTED as usize], &memory[MIRRORED]),
        (ROUNDS as u8, &mirror_of_client(t)[..])
    );
    let mut came = BTreeMap::new();
    // How bytes are cut into pieces, how often they are acknowledged or reported as consumed, and how many changes of a
    // mirror are told together does not matter to the session.
    let varying = [Acknowledge::CODE, Consumed::CODE, protocol::HostBytes::CODE, MirrorsTold::CODE];
    let counts = |r: &&Received| !varying.contains(&r.code);
    for received in t.worker.client.inbox.iter().filter(counts) {
        *came.entry((received.code, received.seq)).or_default() += 1;
    }
    let consumed = t.worker.client.inbox.iter().filter(|r| r.code == Consumed::CODE);
    let consumed = consumed.map(|r| Consumed::decode(&r.payload).expect("bytes").0.bytes).sum();
    Outcome { memory, consumed, came }
}

#[test]
fn a_connection_that_is_cut_at_every_byte_changes_nothing() {
    for (profile, lengths) in PROFILES.into_iter().zip([[1, 31, 33, 1000], [3, 32, 64, 4099]]) {
        let undisturbed = work(&mut started(profile, "0"));
        assert_eq!((undisturbed.memory[0], undisturbed.memory[64]), (100, 100));
        for every in lengths {
            let mut t = started(profile, "60");
            t.worker.client.link.cut(every);
            let outcome = work(&mut t);
            let cuts = t.worker.client.link.cuts.len();
            assert!(cuts > 8192 / every, "{cuts} cuts, after each {every} bytes");
            assert_eq!(outcome, undisturbed, "{profile}, cut after each {every} bytes");
        }
    }
}

#[test]
fn only_the_newest_attempt_that_can_be_true_wins() {
    let mut t = started("normal", "60");
    assert_eq!(t.synchronize(A), 0);
    let link = &mut t.worker.client.link;
    link.epoch = 5;
    link.reconnect();
    let received = link.received();
    for (epoch, received) in [(5, received), (4, received), (0, received), (6, received + 1), (7, u64::MAX)] {
        assert!(link.attempt(epoch, received).is_none(), "epoch {epoch}, received {received}");
    }
    // The loser has changed nothing: the winner's connection still works, and what was kept for it is still there.
    assert_eq!(t.synchronize(A), 0);
    t.worker.client.link.reconnect();
    assert_eq!(t.synchronize(A), 0);
}

#[test]
fn a_later_connection_ends_the_one_before() {
    let mut t = started("normal", "60");
    assert_eq!(t.synchronize(A), 0);
    let mut before = t.worker.client.link.stream.try_clone().expect("a socket");
    // The old connection was not closed: it is half open.
    let link = &mut t.worker.client.link;
    let (after, _) = link.attempt(1, link.received()).expect("taken");
    before.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
    assert_eq!(before.read(&mut [0; 16]).expect("an end, no timeout"), 0);
    (link.stream, link.epoch) = (after, 1);
    assert_eq!(t.synchronize(A), 0);
}

#[test]
fn who_asks_whether_somebody_is_there_is_answered() {
    let mut t = started("normal", "60");
    assert_eq!(t.synchronize(A), 0);
    let client = &mut t.worker.client;
    client.link.send(Header { code: Probe::CODE, ..Header::default() }, Vec::new());
    client.wait("an answer", |r| r.code == Acknowledge::CODE);
    assert_eq!(t.synchronize(A), 0);
}

#[test]
fn the_appliance_is_told_when_there_is_no_connection() {
    let mut t = started("normal", "60");
    assert_eq!(t.synchronize(A), 0);
    t.worker.client.link.stream.shutdown(std::net::Shutdown::Both).expect("connected");
    let told = |t: &Test| t.worker.told("connection").iter().map(|v| v["connected"] == true).collect::<Vec<_>>();
    let wait_for = |t: &Test, all: &[bool]| {
        let since = Instant::now();
        while told(t) != all {
            assert!(since.elapsed() < Duration::from_secs(10), "{:?}", told(t));
            std::thread::yield_now();
        }
    };
    wait_for(&t, &[false]);
    t.worker.client.link.reconnect();
    assert_eq!(t.synchronize(A), 0);
    wait_for(&t, &[false, true]);
}

#[test]
fn a_client_that_has_closed_its_connection_for_memory_has_ended() {
    for closes_first in [false, true] {
        let mut t = started("normal", "60");
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        pass(&t.worker.client.link.data, theirs.as_fd(), br#"{"op":"memory"}"#);
        drop(theirs);
        assert_eq!(t.synchronize(A), 0);
        let stream = t.worker.client.link.stream.try_clone().expect("a copy");
        let shut = || stream.shutdown(std::net::Shutdown::Both).expect("connected");
        if closes_first {
            drop(ours);
            assert_eq!(t.synchronize(A), 0);
            shut();
        } else {
            shut();
            assert_eq!(t.worker.wait_told("connection", 0)["closed"], false);
            drop(ours);
        }
        let mut told = (0..2).map(|number| t.worker.wait_told("connection", number));
        assert!(told.any(|told| told["connected"] == false && told["closed"] == true));
        // This is long before the grace is over.
        assert!(t.worker.process.wait().expect("ended").success());
    }
}

#[test]
fn a_session_that_nobody_can_come_back_to_ends_at_once() {
    let mut t = started("normal", "60");
    assert_eq!(t.synchronize(A), 0);
    let link = &mut t.worker.client.link;
    // No gateway is left that could pass a connection.
    rustix::net::shutdown(&link.data, rustix::net::Shutdown::Both).expect("connected");
    link.stream.shutdown(std::net::Shutdown::Both).expect("connected");
    let since = Instant::now();
    assert!(t.worker.process.wait().expect("exit").success());
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
}

#[test]
fn without_a_connection_a_session_ends_after_the_grace() {
    let mut t = started("normal", "1");
    let since = Instant::now();
    t.worker.client.link.stream.shutdown(std::net::Shutdown::Both).expect("connected");
    assert!(t.worker.process.wait().expect("exit").success());
    assert!(since.elapsed() >= Duration::from_secs(1), "{:?}", since.elapsed());
}

#[test]
fn a_client_that_acknowledges_nothing_gets_no_more_copies() {
    let mut t = started("normal", "60");
    let copies: Vec<_> = (0..480).map(|_| t.worker.client.send(A, &copy_of_a_mebibyte(t.base), &[])).collect();
    let mut stream = t.worker.client.link.stream.try_clone().expect("a socket");
    stream.set_read_timeout(Some(Duration::from_secs(2))).expect("timeout");
    let (mut bytes, mut read) = (vec![0; 1 << 20], 0);
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        read += count;
    }
    assert!((256 << 20..copies.len() << 20).contains(&read), "{read} bytes");
}

fn copy_of_a_mebibyte(address: u64) -> CopyToHost {
    let (context, extent) = (common::client::CONTEXT, common::client::row(1 << 20));
    CopyToHost { context, address, extent, offset: 0, len: 1 << 20 }
}

#[test]
fn what_a_client_does_not_take_is_bounded() {
    let mut t = started("normal", "60");
    // Answers that are not read: the worker stops taking commands before it keeps more than its bound.
    let copy = copy_of_a_mebibyte(t.base);
    t.worker.client.link.stream.set_write_timeout(Some(Duration::from_millis(500))).expect("timeout");
    let mut bytes = Vec::new();
    let first = t.worker.client.seq + 1;
    for seq in first..first + 400 {
        let payload = encoded(&copy);
        let header = protocol::Header { len: payload.len() as u32, code: CopyToHost::CODE, seq, stream_id: A, ack: 0 };
        bytes.extend(common::client::encode(&header, &payload));
    }
    let _ = std::io::Write::write_all(&mut t.worker.client.link.stream, &bytes);
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", t.worker.process.id())).expect("status");
        let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("a line");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
    };
    let since = Instant::now();
    let mut most = 0;
    while since.elapsed() < Duration::from_secs(2) {
        most = most.max(resident());
        std::thread::yield_now();
    }
    assert!(most < 400 << 20, "{most} bytes");
}
