//! Large memory that a running process gives back is offered to other processes of its lease first.

mod common;

use common::client::{CONTEXT, row};
use common::session::{A, B, NON_BLOCKING, start};
use common::worker::Worker;
use protocol::{CopyToDevice, CopyToHost, Grant, GrantReturn, MemoryQuery, SlabUnmap, StreamSynchronize, UNCOUNTED};
use serde_json::json;
use std::fs::File;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

const SMALL: u64 = 2 << 20;
const LARGE: u64 = 64 << 20;
const GRANTED: u64 = 3 * LARGE;
const SECRET: &[u8] = b"what only its owner may read";

/// Starts a session with this memory, which holds a secret. Returns its address, too.
fn with_secret(size: u64) -> (Worker, u64) {
    let mut worker = Worker::start("normal", GRANTED);
    let base = worker.client.open().arena_base;
    assert_eq!(worker.client.call(0, &Grant { device: 0, least: size, want: size }, &[]).0, 0);
    worker.client.map(base, size);
    worker.client.stream(B, NON_BLOCKING, 0);
    write(&mut worker, base);
    (worker, base)
}

fn write(worker: &mut Worker, address: u64) {
    let copy = CopyToDevice { context: CONTEXT, address, extent: row(SECRET.len() as u64), offset: 0 };
    worker.client.send(B, &copy, SECRET);
    assert_eq!(worker.client.call(B, &StreamSynchronize { launches: UNCOUNTED }, &[]).0, 0);
}

fn read(worker: &mut Worker, address: u64) -> Vec<u8> {
    let len = SECRET.len() as u64;
    let copy = CopyToHost { context: CONTEXT, address, extent: row(len), offset: 0, len };
    let seq = worker.client.send(B, &copy, &[]);
    let (code, bytes) = worker.client.host_bytes(seq);
    assert_eq!(code, 0);
    bytes
}

fn give_back(worker: &mut Worker, address: u64, size: u64) {
    worker.client.send(0, &SlabUnmap { address, size }, &[]);
    worker.client.send(0, &GrantReturn { device: 0, size }, &[]);
    // When the appliance answers, whatever that is, it has received the messages before.
    worker.client.call(0, &Grant { device: 0, least: 0, want: 0 }, &[]);
}

fn ask(worker: &Worker, least: u64) {
    worker.order(&json!({"op": "handon", "device": 0, "least": least}), None);
}

/// Returns a worker, its base address, and memory that it has given back and hands on.
fn handed_on() -> (Worker, u64, File) {
    let (mut worker, base) = with_secret(LARGE);
    let file = hand_on(&mut worker, base, true);
    assert!(!is_in(&file), "it is overwritten before");
    (worker, base, file)
}

fn hand_on(worker: &mut Worker, base: u64, zeroed: bool) -> File {
    give_back(worker, base, LARGE);
    assert_eq!(worker.wait_told("leaving", 0)["offers"], true);
    ask(worker, LARGE - 4096);
    let told = worker.wait_told("handon", 0);
    assert_eq!((&told["size"], &told["zeroed"]), (&json!(LARGE), &json!(zeroed)));
    File::from(worker.files.lock().expect("list").pop().expect("the memory"))
}

fn is_in(memory: &File) -> bool {
    let mut bytes = [0; SECRET.len()];
    memory.read_exact_at(&mut bytes, 0).expect("read");
    bytes == SECRET
}

#[test]
fn what_was_returned_goes_to_another_of_the_lease_that_waits_for_it() {
    let (mut first, base, file) = handed_on();
    let mut next = Worker::start("normal", GRANTED);
    let there = next.client.open().arena_base;
    next.client.stream(B, NON_BLOCKING, 0);
    next.order(&json!({"op": "inherit", "device": 0, "size": LARGE, "zeroed": true}), Some(file.as_fd()));
    first.order(&json!({"op": "handedon", "taken": true}), None);
    next.client.map(there, LARGE);
    assert_eq!(read(&mut next, there), vec![0; SECRET.len()]);
    write(&mut next, there);
    assert!(is_in(&file), "it is the same memory");
    // The first one continues, and returns nothing that is another's.
    assert_eq!(first.client.call(0, &Grant { device: 0, least: SMALL, want: SMALL }, &[]).0, 0);
    first.client.map(base, SMALL);
    write(&mut first, base);
    assert!(first.told("return").is_empty() && first.told("left").is_empty());
    first.hang_up();
    assert!(is_in(&file), "it is another session's");
    next.hang_up();
    assert!(!is_in(&file), "who has it overwrites it");
}

#[test]
fn beside_a_kernel_it_is_not_waited_for_and_who_gets_it_zeroes_it() {
    let mut first = start("normal");
    let kernel = first.load();
    let (base, flag) = (first.base, first.base + LARGE);
    assert_eq!(first.client().call(0, &Grant { device: 0, least: SMALL, want: SMALL }, &[]).0, 0);
    first.client().map(flag, SMALL);
    write(&mut first.worker, base);
    first.launch(A, kernel("spin"), 1, 1, &flag.to_le_bytes());
    let file = hand_on(&mut first.worker, base, false);
    assert!(is_in(&file), "it would have waited for the kernel");
    first.write(B, LARGE, &[1]);
    let mut next = Worker::start("normal", GRANTED);
    let there = next.client.open().arena_base;
    next.client.stream(B, NON_BLOCKING, 0);
    next.order(&json!({"op": "inherit", "device": 0, "size": LARGE}), Some(file.as_fd()));
    first.worker.order(&json!({"op": "handedon", "taken": true}), None);
    next.client.map(there, LARGE);
    assert_eq!(read(&mut next, there), vec![0; SECRET.len()]);
    assert!(!is_in(&file));
}

#[test]
fn what_was_not_taken_is_returned() {
    let (first, _, file) = handed_on();
    first.order(&json!({"op": "handedon", "taken": false}), None);
    assert_eq!(first.wait_told("return", 0)["size"], LARGE);
    assert!(!is_in(&file));
}

#[test]
fn a_session_that_ends_waits_until_it_is_known_whose_it_is() {
    for taken in [false, true] {
        let (mut first, _, file) = handed_on();
        first.client.link.stream.shutdown(Shutdown::Both).expect("connected");
        first.wait_told("ending", 0);
        // The next owner may write to it, too.
        file.write_all_at(SECRET, 0).expect("written");
        assert!(first.process.try_wait().expect("a process").is_none() && is_in(&file));
        first.order(&json!({"op": "handedon", "taken": taken}), None);
        assert!(first.process.wait().expect("ended").success());
        assert!(is_in(&file), "it is not written to any more");
    }
}

#[test]
fn what_nobody_wants_or_does_not_fit_is_overwritten_and_returned() {
    for asked in [None, Some(LARGE + 4096)] {
        let (mut worker, base) = with_secret(LARGE);
        give_back(&mut worker, base, LARGE);
        if let Some(least) = asked {
            ask(&worker, least);
        }
        assert_eq!(worker.wait_told("return", 0)["size"], LARGE);
        assert!(worker.told("handon").is_empty());
        assert_eq!(worker.hang_up().iter().filter(|packet| packet["op"] == "left").count(), 0);
    }
}

#[test]
fn who_returned_it_and_wants_it_again_offers_it_to_nobody() {
    let (mut worker, base) = with_secret(LARGE);
    give_back(&mut worker, base, LARGE);
    assert_eq!(worker.client.call(0, &Grant { device: 0, least: LARGE, want: LARGE }, &[]).0, 0);
    ask(&worker, LARGE);
    assert_eq!(worker.wait_told("return", 0)["size"], LARGE);
    assert!(worker.told("handon").is_empty());
}

#[test]
fn what_is_small_or_was_not_returned_is_not_handed_on() {
    for (size, returns) in [(SMALL, true), (LARGE, false)] {
        let (mut worker, address) = with_secret(size);
        if returns {
            give_back(&mut worker, address, size);
        } else {
            worker.client.send(0, &SlabUnmap { address, size }, &[]);
            assert_eq!(worker.client.call(0, &MemoryQuery { device: 0 }, &[]).0, 0);
        }
        ask(&worker, size);
        worker.order(&json!({"op": "settle", "id": 7}), None);
        worker.wait_told("settled", 0);
        assert!(worker.told("handon").is_empty());
    }
}

#[test]
fn who_returned_it_can_map_as_much_at_once_where_the_gpu_has_no_more() {
    let memory = (LARGE + LARGE / 2).to_string();
    let mut worker = Worker::start_with("normal", GRANTED, &[("REMOTEGPU_SOFTGPU_MEMORY", &memory)]);
    let base = worker.client.open().arena_base;
    worker.client.stream(B, NON_BLOCKING, 0);
    assert_eq!(worker.client.call(0, &Grant { device: 0, least: LARGE, want: LARGE }, &[]).0, 0);
    for round in 0..3 {
        let address = base + round * LARGE;
        worker.client.map(address, LARGE);
        assert_eq!(read(&mut worker, address), vec![0; SECRET.len()]);
        write(&mut worker, address);
        worker.client.send(0, &SlabUnmap { address, size: LARGE }, &[]);
    }
    assert_eq!(worker.hang_up().iter().filter(|packet| packet["op"] == "left").count(), 0);
}
