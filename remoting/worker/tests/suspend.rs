//! A session that is suspended and resumed; the test is its appliance and its client.

mod common;

use common::client::encoded;
use common::session::{A, B, LIMIT, PROFILES, SLAB, Test, floats, start, start_on};
use common::worker::{Worker, pass};
use driverapi::errors::CUDA_ERROR_NOT_READY;
use protocol::{Close, Held, Message, StreamQuery, StreamSynchronize, UNCOUNTED};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{SendFlags, send};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

const COUNTER: u64 = SLAB / 2;

/// Makes a file of this size that cannot grow, like the appliance's.
fn room(bytes: u64) -> File {
    let file = File::from(memfd_create("image", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory"));
    file.set_len(bytes).expect("its size");
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK).expect("sealed");
    file
}

fn suspend(test: &Test, file: &File, seconds: u64) {
    let order = format!(r#"{{"op":"suspend","reason":"a test","seconds":{seconds}}}"#);
    pass(&test.worker.control, file.as_fd(), order.as_bytes());
}

fn resume(test: &Test) {
    send(&test.worker.control, br#"{"op":"resume"}"#, SendFlags::NOSIGNAL).expect("sent");
}

fn pattern() -> Vec<u8> {
    floats((0..1 << 20).map(|i| i as f32))
}

/// Starts a session with data in its memory, and a kernel that counts.
fn working(profile: &str) -> (Test, u32) {
    let mut test = start(profile);
    let kernel = test.load()("count");
    test.write(A, 0, &pattern());
    test.write(A, COUNTER, &[0; 4]);
    for _ in 0..3 {
        count(&mut test, kernel);
    }
    (test, kernel)
}

fn count(test: &mut Test, kernel: u32) {
    let at = test.base + COUNTER;
    test.launch(A, kernel, 1, 1, &encoded(&at));
}

fn check(test: &mut Test, counted: u32) {
    assert_eq!(test.synchronize(A), 0);
    assert!(test.read(B, 0, 4 << 20) == pattern());
    assert_eq!(test.read(B, COUNTER, 4), counted.to_le_bytes());
}

#[test]
fn what_a_session_has_is_there_when_it_is_resumed() {
    for profile in PROFILES {
        let (mut test, kernel) = working(profile);
        let file = room(SLAB);
        for round in 0..2 {
            suspend(&test, &file, 60);
            let told = test.worker.wait_told("suspended", round);
            assert_eq!(told["bytes"], SLAB);
            assert!(told["kept"][0].as_u64().is_some_and(|kept| 0 < kept && kept < 1 << 20), "{told}");
            // The image shows nothing without its key.
            let mut bytes = vec![0; 4 << 20];
            file.read_exact_at(&mut bytes, 0).expect("read");
            let pattern = pattern();
            assert!(pattern[64..].chunks(64).take(1000).all(|some| !bytes.windows(64).step_by(64).any(|w| w == some)));
            for _ in 0..2 {
                count(&mut test, kernel);
            }
            let awaited = test.client().send(A, &StreamSynchronize { launches: UNCOUNTED }, &[]);
            for _ in 0..20 {
                test.client().receive();
            }
            assert!(!test.client().has_reply(awaited));
            resume(&test);
            assert_eq!(test.client().reply(awaited).0, 0);
            test.worker.wait_told("resumed", round);
            check(&mut test, 5 + 2 * round as u32);
        }
        let held = test.client().inbox.iter().filter(|r| r.code == Held::CODE);
        let reasons: Vec<String> = held.map(|r| Held::decode(&r.payload).expect("held").0.reason).collect();
        assert_eq!(reasons, ["a test", "", "a test", ""]);
    }
}

#[test]
fn while_it_is_suspended_another_one_has_the_memory() {
    let path = std::env::temp_dir().join(format!("remotegpu-suspend-{}", std::process::id()));
    let memory = SLAB + SLAB / 2;
    let gpu = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    gpu.set_len(memory).expect("its size");
    let (name, size) = (path.to_str().expect("a name").to_owned(), memory.to_string());
    let environment = [("REMOTEGPU_SOFTGPU_PHYSICAL", name.as_str()), ("REMOTEGPU_SOFTGPU_MEMORY", size.as_str())];
    let mut first = start_on(Worker::start_with("normal", LIMIT, &environment));
    first.write(A, 0, &pattern());
    assert_eq!(first.synchronize(A), 0);
    let find = |what: &[u8]| {
        let mut bytes = vec![0; memory as usize];
        gpu.read_exact_at(&mut bytes, 0).expect("read");
        bytes.windows(what.len()).step_by(64).any(|window| window == what)
    };
    let sample = &pattern()[1 << 20..][..64];
    assert!(find(sample));
    let file = room(SLAB);
    suspend(&first, &file, 60);
    first.worker.wait_told("suspended", 0);
    assert!(!find(sample), "what a session leaves is overwritten");
    damaged(&file, || {
        resume(&first);
        first.worker.wait_told("notresumed", 0);
        assert!(!find(sample), "and what had come back before it was refused");
    });
    {
        let mut second = start_on(Worker::start_with("normal", LIMIT, &environment));
        second.write(A, 0, &vec![0x5a; SLAB as usize]);
        assert_eq!(second.synchronize(A), 0);
        assert!(second.read(A, 0, SLAB) == vec![0x5a; SLAB as usize]);
        resume(&first);
        let told = first.worker.wait_told("notresumed", 1);
        assert!(told["reason"].as_str().is_some_and(|reason| reason.contains("error 2")), "{told}");
    }
    resume(&first);
    first.worker.wait_told("resumed", 0);
    assert!(first.read(B, 0, 4 << 20) == pattern());
    std::fs::remove_file(path).expect("removed");
}

#[test]
fn a_file_without_room_changes_nothing() {
    let (mut test, kernel) = working("hostile");
    suspend(&test, &room(SLAB / 2), 60);
    let told = test.worker.wait_told("notsuspended", 0);
    assert!(told["reason"].as_str().is_some_and(|reason| reason.contains("cannot be written")), "{told}");
    count(&mut test, kernel);
    check(&mut test, 4);
}

/// Calls with the last byte of an image changed.
fn damaged(image: &File, call: impl FnOnce()) {
    let mut byte = [0];
    image.read_exact_at(&mut byte, SLAB - 1).expect("read");
    image.write_all_at(&[byte[0] ^ 1], SLAB - 1).expect("written");
    call();
    image.write_all_at(&byte, SLAB - 1).expect("written");
}

#[test]
fn a_damaged_image_is_not_brought_back() {
    let (mut test, _) = working("normal");
    let file = room(SLAB);
    suspend(&test, &file, 60);
    test.worker.wait_told("suspended", 0);
    damaged(&file, || {
        resume(&test);
        let told = test.worker.wait_told("notresumed", 0);
        assert!(told["reason"].as_str().is_some_and(|reason| reason.contains("damaged")), "{told}");
    });
    resume(&test);
    test.worker.wait_told("resumed", 0);
    check(&mut test, 3);
}

#[test]
fn a_kernel_that_does_not_end_keeps_its_session() {
    let mut test = start("normal");
    let spin = test.load()("spin");
    test.write(A, 0, &[0; 4]);
    let flag = test.base;
    test.launch(A, spin, 1, 1, &encoded(&flag));
    assert_eq!(test.client().call(A, &StreamQuery {}, &[]).0, CUDA_ERROR_NOT_READY);
    suspend(&test, &room(SLAB), 1);
    let told = test.worker.wait_told("notsuspended", 0);
    assert!(told["reason"].as_str().is_some_and(|reason| reason.starts_with("KernelStillRuns")), "{told}");
    test.write(B, 0, &[1; 4]);
    assert_eq!(test.synchronize(A), 0);
}

#[test]
fn a_client_that_closes_is_not_kept() {
    let (mut test, _) = working("normal");
    suspend(&test, &room(SLAB), 60);
    test.worker.wait_told("suspended", 0);
    test.client().send(0, &Close {}, &[]);
    assert!(test.worker.process.wait().expect("exit").success());
}
