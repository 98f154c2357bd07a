//! Sessions that go wrong, and sessions that end, on the software GPU.

mod common;

use common::client::{CONTEXT, Client, encoded, row};
use common::session::{A, B, LIMIT, PROFILES, SLAB, start, start_on};
use common::worker::{Socket, Worker};
use protocol::{
    ContextCreate, ContextDestroy, ContextSynchronize, CopyToHost, Ending, Grant, Launch, Message, OLDEST_WIRE, Open,
    SlabMap, StreamSynchronize, TABLE_HASH, UNCOUNTED, WIRE_VERSION,
};
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use std::time::{Duration, Instant};

#[test]
fn a_fault_is_told_and_stays() {
    for profile in PROFILES {
        let mut t = start(profile);
        let kernel = t.load();
        t.launch(B, kernel("count"), 1, 1, &encoded(&0x10u64));
        assert_eq!(t.synchronize(B), 700, "{profile}");
        assert_eq!(t.synchronize(A), 700, "{profile}");
        let copy = CopyToHost { context: CONTEXT, address: t.base, extent: row(4), offset: 0, len: 4 };
        assert_eq!(t.client().call(A, &copy, &[]).0, 700);
    }
}

/// Waits for the session's end; returns its code and reason.
fn ending(client: &mut Client<Socket>) -> (u32, String) {
    for _ in 0..5000 {
        if let Some(r) = client.inbox.iter().find(|r| r.code == Ending::CODE) {
            let ending = Ending::decode(&r.payload).expect("ending").0;
            return (ending.code, ending.reason);
        }
        client.receive();
    }
    panic!("the session does not end");
}

#[test]
fn sessions_end_with_a_reason() {
    let (oldest, newest) = (OLDEST_WIRE, WIRE_VERSION);
    let ours = format!("the appliance {oldest} to {newest}");
    for (wire_version, says, upgrade) in [
        (oldest - 1, &ours, "upgrade the client"),
        (newest + 1, &ours, "upgrade the appliance"),
        (newest, &format!("{TABLE_HASH:016x}"), "the same build"),
    ] {
        let mut worker = Worker::start("normal", LIMIT);
        let open = Open { wire_version, table_hash: 1, client_pid: 1, client_name: "a program".into() };
        worker.client.send(0, &open, &[]);
        let (code, reason) = ending(&mut worker.client);
        let named = [&wire_version.to_string(), "a program", says, upgrade];
        assert!(code == 803 && named.iter().all(|word| reason.contains(word)), "{reason}");
        assert!(worker.process.wait().expect("exit").success());
    }

    let mut t = start("normal");
    t.client().send_raw(Launch::CODE, A, vec![1, 2, 3]);
    assert_eq!(ending(t.client()).0, 999);
    assert!(t.worker.process.wait().expect("exit").success());

    let mut t = start("normal");
    let order = br#"{"op":"end","code":46,"reason":"the appliance drains"}"#;
    send(&*t.worker.control, order, SendFlags::NOSIGNAL).expect("sent");
    assert_eq!(ending(t.client()), (46, "the appliance drains".into()));
    assert!(t.worker.process.wait().expect("exit").success());
}

#[test]
fn a_context_that_cannot_be_made_answers_why() {
    // Each context takes 64 MiB of the hostile profile's memory: twelve do not fit.
    let memory = (512u64 << 20).to_string();
    let mut t = start_on(Worker::start_with("hostile", LIMIT, &[("REMOTEGPU_SOFTGPU_MEMORY", &memory)]));
    for context in 2..12 {
        t.client().send(0, &ContextCreate { context, legacy_stream: 100 + context, ..Default::default() }, &[]);
    }
    assert_eq!(t.client().call(0, &ContextSynchronize { context: 11, launches: UNCOUNTED }, &[]).0, 2);
    assert_eq!(t.client().call(111, &StreamSynchronize { launches: UNCOUNTED }, &[]).0, 2, "its stream");
    assert_eq!(t.synchronize(B), 2, "told late, once");
    assert_eq!(t.synchronize(B), 0);
    assert_eq!(t.client().call(0, &ContextSynchronize { context: 2, launches: UNCOUNTED }, &[]).0, 0);
}

#[test]
fn contexts_come_and_go() {
    for profile in PROFILES {
        let mut t = start(profile);
        for context in 2..20 {
            let legacy = 100 + context;
            t.client().send(0, &ContextCreate { context, legacy_stream: legacy, ..Default::default() }, &[]);
            let copy = CopyToHost { context, address: t.base, extent: row(8), offset: 0, len: 8 };
            let seq = t.client().send(legacy, &copy, &[]);
            assert_eq!(t.client().host_bytes(seq), (0, vec![0; 8]), "{profile}");
            t.client().send(0, &ContextDestroy { context, token: 1000 + context }, &[]);
        }
        assert_eq!(t.synchronize(B), 0);
    }
}

#[test]
fn each_device_has_its_own_quota() {
    let mut t = Worker::start_with("normal", LIMIT, &[("REMOTEGPU_SOFTGPU_DEVICES", "2")]);
    let base = t.client.open().arena_base;
    t.client.send(0, &ContextCreate { context: 2, device: 1, legacy_stream: 20, ..Default::default() }, &[]);
    assert_eq!(t.client.call(0, &Grant { device: 1, least: SLAB, want: SLAB }, &[]).0, 0);
    t.client.map(base, SLAB);
    assert_eq!(
        t.client.call(20, &StreamSynchronize { launches: UNCOUNTED }, &[]).0,
        2,
        "nothing was granted on device 0"
    );
    t.client.send(0, &SlabMap { device: 1, address: base, size: SLAB }, &[]);
    let copy = CopyToHost { context: 2, address: base, extent: row(8), offset: 0, len: 8 };
    let seq = t.client.send(20, &copy, &[]);
    assert_eq!(t.client.host_bytes(seq), (0, vec![0; 8]));
}

/// Starts a kernel that never ends.
fn spin_for_ever(profile: &str) -> common::session::Test {
    let mut t = start(profile);
    let kernel = t.load();
    t.launch(A, kernel("spin"), 1, 1, &encoded(&t.base));
    assert_eq!(t.synchronize(B), 0);
    t
}

fn exits(worker: &mut Worker) {
    let until = Instant::now() + Duration::from_secs(5);
    while worker.process.try_wait().expect("a child").is_none() {
        assert!(Instant::now() < until, "the worker does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_running_kernel_keeps_no_session_alive() {
    for profile in PROFILES {
        let mut t = spin_for_ever(profile);
        t.client().link.stream.shutdown(std::net::Shutdown::Both).expect("connected");
        exits(&mut t.worker);
        assert_eq!(t.worker.told("ending").len(), 1);

        let mut t = spin_for_ever(profile);
        shutdown(&*t.worker.control, Shutdown::Both).expect("connected");
        exits(&mut t.worker);
    }
}
