//! Memory that one session leaves and the next one gets. A file plays the GPU's memory
//! (`softgpu/src/memory/frames.rs`), so a test can see its contents, and write where a kernel waits.

mod common;

use common::client::{CONTEXT, Client, encoded, row};
use common::session::{A, B, CODE, MODULE, NON_BLOCKING};
use common::worker::{Socket, Worker};
use protocol::{
    CopyToDevice, CopyToHost, Grant, GrantReturn, Launch, LaunchShape, MemoryQuery, SlabExport, SlabMap, SlabUnmap,
    StreamSynchronize, UNCOUNTED,
};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const SLAB: u64 = 2 << 20;
const MEMORY: u64 = 16 << 20;
const GRANTED: u64 = 3 * SLAB + CODE;
/// The byte that another tenant left everywhere.
const CANARY: u8 = 0xc5;
const SECRET: &[u8] = b"what only its owner may read";

/// A kernel that waits until the flag is set, then copies eight bytes from another address.
const PEEK: &str = r#"
.version 7.0
.target sm_70
.address_size 64

.visible .entry peek(.param .u64 flag, .param .u64 from, .param .u64 to)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [flag];
    ld.param.u64 %d2, [from];
    ld.param.u64 %d3, [to];
again:
    ld.volatile.global.u32 %r1, [%d1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra again;
    ld.volatile.global.u64 %d4, [%d2];
    st.global.u64 [%d3], %d4;
    ret;
}
"#;

/// The memory of a GPU.
struct Gpu {
    path: PathBuf,
    file: File,
}

impl Gpu {
    /// Makes a GPU whose memory is full of another tenant's bytes.
    fn used(name: &str) -> Gpu {
        let path = std::env::temp_dir().join(format!("remotegpu-left-{name}-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a file");
        file.write_all_at(&vec![CANARY; MEMORY as usize], 0).expect("written");
        Gpu { path, file }
    }

    fn find(&self, what: &[u8]) -> Option<u64> {
        let mut bytes = vec![0; MEMORY as usize];
        self.file.read_exact_at(&mut bytes, 0).expect("read");
        bytes.windows(what.len()).position(|window| window == what).map(|at| at as u64)
    }

    fn session(&self, more: &[(&str, &str)]) -> Session {
        let (path, memory) = (self.path.to_str().expect("a name"), MEMORY.to_string());
        let environment = [("REMOTEGPU_SOFTGPU_PHYSICAL", path), ("REMOTEGPU_SOFTGPU_MEMORY", &memory)];
        let mut worker = Worker::start_with("normal", GRANTED, &[&environment, more].concat());
        let base = worker.client.open().arena_base;
        assert_eq!(worker.client.call(0, &Grant { device: 0, least: GRANTED, want: GRANTED }, &[]).0, 0);
        worker.client.map(base, SLAB);
        worker.client.stream(A, NON_BLOCKING, 0);
        worker.client.stream(B, NON_BLOCKING, 0);
        Session { worker, base }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

struct Session {
    worker: Worker,
    base: u64,
}

impl Session {
    fn client(&mut self) -> &mut Client<Socket> {
        &mut self.worker.client
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let address = self.base + offset;
        let copy = CopyToDevice { context: CONTEXT, address, extent: row(bytes.len() as u64), offset: 0 };
        self.client().send(B, &copy, bytes);
        assert_eq!(self.synchronize(B), 0);
    }

    fn read(&mut self, offset: u64, len: u64) -> Vec<u8> {
        let copy = CopyToHost { context: CONTEXT, address: self.base + offset, extent: row(len), offset: 0, len };
        let seq = self.client().send(B, &copy, &[]);
        self.client().host_bytes(seq).1
    }

    fn synchronize(&mut self, stream: u64) -> u32 {
        self.client().call(stream, &StreamSynchronize { launches: UNCOUNTED }, &[]).0
    }

    /// Starts a kernel that reads `from` when `flag` is set, and writes the bytes to `to`.
    fn peek(&mut self, flag: u64, from: u64, to: u64) {
        self.peek_at([flag, from, to].map(|offset| self.base + offset));
    }

    fn peek_at(&mut self, places: [u64; 3]) {
        let (code, loaded) = self.client().load(MODULE, PEEK.as_bytes());
        assert_eq!((code, self.client().describe(MODULE, 0).0), (0, 0), "{}", loaded.log);
        let shape = LaunchShape { grid: [1; 3], block: [1; 3], shared: 0, attributes: vec![] };
        let parameters = encoded(&(places[0], (places[1], places[2])));
        self.client().send(A, &Launch { module: MODULE, kernel: 0, shape }, &parameters);
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < until, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_kernel_that_runs_already_does_not_read_what_is_not_zeroed_yet() {
    let gpu = Gpu::used("kernel");
    let mut tenant = gpu.session(&[("REMOTEGPU_SOFTGPU_FILL_MICROS", "300000")]);
    tenant.write(0, SECRET);
    let flag = gpu.find(SECRET).expect("the slab lies in the file") + 4096;
    tenant.peek(4096, SLAB, 8192);
    let base = tenant.base;
    tenant.client().map(base + SLAB, SLAB);
    // The answer comes when the memory is there for the tenant, but not yet for its streams.
    assert_eq!(tenant.client().call(0, &MemoryQuery { device: 0 }, &[]).0, 0);
    gpu.file.write_all_at(&[1], flag).expect("written");
    assert_eq!(tenant.synchronize(A), 0);
    assert_eq!(tenant.read(8192, 8), [0; 8]);
    assert_eq!(tenant.read(SLAB, SLAB), vec![0; SLAB as usize]);
}

#[test]
fn memory_is_overwritten_before_it_is_given_back() {
    let gpu = Gpu::used("unmap");
    let mut tenant = gpu.session(&[("REMOTEGPU_SOFTGPU_FILL_MICROS", "20000")]);
    tenant.write(0, SECRET);
    assert!(gpu.find(SECRET).is_some());
    let address = tenant.base;
    tenant.client().send(0, &SlabUnmap { address, size: SLAB }, &[]);
    tenant.client().send(0, &GrantReturn { device: 0, size: SLAB }, &[]);
    until("the return", || !tenant.worker.told("return").is_empty());
    assert_eq!(gpu.find(SECRET), None);
}

/// Starts a session with a secret in memory that other processes of the lease may import. Returns the memory, too.
fn sharing() -> (Session, File) {
    let mut worker = Worker::start("normal", GRANTED);
    let base = worker.client.open().arena_base;
    assert_eq!(worker.client.call(0, &Grant { device: 0, least: GRANTED, want: GRANTED }, &[]).0, 0);
    worker.client.map(base, SLAB);
    worker.client.stream(B, NON_BLOCKING, 0);
    let mut tenant = Session { worker, base };
    tenant.write(0, SECRET);
    assert_eq!(tenant.client().call(0, &SlabExport { address: base }, &[]).0, 0);
    let file = File::from(tenant.worker.files.lock().expect("list").pop().expect("the memory"));
    assert!(is_in(&file));
    (tenant, file)
}

fn is_in(memory: &File) -> bool {
    let mut bytes = vec![0; SECRET.len()];
    memory.read_exact_at(&mut bytes, 0).expect("read");
    bytes == SECRET
}

#[test]
fn what_processes_shared_is_overwritten_by_the_last_that_has_it() {
    let (mut tenant, memory) = sharing();
    let address = tenant.base;
    tenant.client().send(0, &SlabUnmap { address, size: SLAB }, &[]);
    until("the return", || !tenant.worker.told("freed").is_empty());
    assert!(!is_in(&memory));
}

#[test]
fn what_processes_shared_is_overwritten_when_the_session_of_the_last_ends() {
    let (tenant, memory) = sharing();
    let told = tenant.worker.hang_up();
    assert!(!is_in(&memory));
    assert_eq!(told.iter().filter(|packet| packet["op"] == "left").count(), 0);
}

#[test]
fn a_session_that_ends_leaves_nothing_though_a_kernel_runs() {
    let gpu = Gpu::used("end");
    let mut tenant = gpu.session(&[]);
    tenant.write(0, SECRET);
    tenant.peek(4096, SLAB, 8192);
    assert_eq!(tenant.synchronize(B), 0);
    let told = tenant.worker.hang_up();
    assert_eq!(gpu.find(SECRET), None);
    assert_eq!(told.iter().filter(|packet| packet["op"] == "left").count(), 0);
}

#[test]
fn what_a_killed_worker_left_is_shown_to_nobody() {
    let gpu = Gpu::used("killed");
    let mut victim = gpu.session(&[]);
    victim.write(0, SECRET);
    victim.worker.process.kill().expect("killed");
    victim.worker.process.wait().expect("ended");
    assert!(gpu.find(SECRET).is_some(), "nobody could overwrite it");
    let mut next = gpu.session(&[]);
    let base = next.base;
    next.client().send(0, &SlabMap { device: 0, address: base + SLAB, size: SLAB }, &[]);
    assert_eq!(next.read(0, 2 * SLAB), vec![0; 2 * SLAB as usize]);
    assert_eq!(gpu.find(SECRET), None);
}

#[test]
fn what_a_broken_context_leaves_is_told_to_the_appliance() {
    let gpu = Gpu::used("broken");
    let mut tenant = gpu.session(&[]);
    tenant.write(0, SECRET);
    tenant.peek_at([0x10; 3]);
    assert_eq!(tenant.synchronize(A), 700);
    let told = tenant.worker.hang_up();
    assert!(gpu.find(SECRET).is_some(), "the driver fills nothing in a broken context");
    let left: Vec<_> = told.iter().filter(|packet| packet["op"] == "left").collect();
    assert_eq!(left.iter().map(|packet| packet["size"].as_u64()).collect::<Vec<_>>(), [Some(SLAB)]);
    assert_eq!(gpu.session(&[]).read(0, SLAB), vec![0; SLAB as usize]);
}

/// Starts a worker of the same lease, which has mapped nothing yet.
fn next_of_the_lease() -> Session {
    let mut worker = Worker::start("normal", GRANTED);
    let base = worker.client.open().arena_base;
    worker.client.stream(B, NON_BLOCKING, 0);
    Session { worker, base }
}

/// Ends a session with a secret in memory, and asks it for memory of a size. Returns the memory that it hands on.
fn left(asked: u64) -> (Session, Option<File>) {
    left_and_asked_later(asked, Duration::ZERO)
}

/// Asks so much later. The session may have ended by then.
fn left_and_asked_later(asked: u64, later: Duration) -> (Session, Option<File>) {
    let mut tenant = next_of_the_lease();
    assert_eq!(tenant.client().call(0, &Grant { device: 0, least: GRANTED, want: GRANTED }, &[]).0, 0);
    let base = tenant.base;
    tenant.client().map(base, SLAB);
    tenant.write(0, SECRET);
    tenant.client().link.stream.shutdown(Shutdown::Both).expect("connected");
    assert_eq!(tenant.worker.wait_told("ending", 0)["offers"], true);
    std::thread::sleep(later);
    tenant.worker.order_if_alive(&json!({"op": "handon", "device": 0, "least": asked}));
    until("an answer, or the end", || {
        !tenant.worker.told("handon").is_empty() || tenant.worker.process.try_wait().expect("a process").is_some()
    });
    let file = tenant.worker.files.lock().expect("list").pop().map(File::from);
    (tenant, file)
}

#[test]
fn what_a_process_leaves_goes_to_the_next_of_its_lease_that_waits_for_it() {
    let (mut tenant, file) = left(SLAB - 4096);
    let file = file.expect("the memory");
    assert_eq!(tenant.worker.wait_told("handon", 0)["zeroed"], true);
    assert!(!is_in(&file), "it is overwritten before");
    let mut next = next_of_the_lease();
    next.worker.order(&json!({"op": "inherit", "device": 0, "size": SLAB, "zeroed": true}), Some(file.as_fd()));
    let base = next.base;
    next.client().map(base, SLAB);
    assert_eq!(next.read(0, SLAB), vec![0; SLAB as usize]);
    next.write(0, SECRET);
    assert!(is_in(&file), "it is the same memory");
    tenant.worker.order(&json!({"op": "handedon", "taken": true}), None);
    assert!(tenant.worker.process.wait().expect("ended").success());
    assert!(is_in(&file), "it is another session's");
    assert_eq!(next.worker.hang_up().iter().filter(|packet| packet["op"] == "left").count(), 0);
    assert!(!is_in(&file), "who has it overwrites it");
}

/// The appliance first asks the other processes of the lease what they have returned, and waits for a second for one that
/// has no CPU. An offer that is over by then helps nobody.
#[test]
fn an_offer_outlasts_the_question_that_comes_before_it() {
    let handed_on = (0..8).find(|_| left_and_asked_later(SLAB, Duration::from_secs(1)).1.is_some());
    assert!(handed_on.is_some(), "of eight sessions none still had its memory a second later");
}

#[test]
fn what_was_handed_on_and_not_taken_is_overwritten_by_who_had_it() {
    let (mut tenant, file) = left(SLAB);
    tenant.worker.order(&json!({"op": "handedon", "taken": false}), None);
    assert!(tenant.worker.process.wait().expect("ended").success());
    assert!(!is_in(&file.expect("the memory")));
}

#[test]
fn what_is_not_as_large_as_was_asked_for_is_handed_to_nobody() {
    let (tenant, file) = left(2 * SLAB);
    assert!(file.is_none());
    assert!(tenant.worker.told("left").is_empty());
}

#[test]
fn what_was_inherited_and_does_not_fit_is_overwritten_before_it_is_released() {
    let (_tenant, file) = left(SLAB);
    let file = file.expect("the memory");
    file.write_all_at(SECRET, 0).expect("written");
    let mut next = next_of_the_lease();
    next.worker.order(&json!({"op": "inherit", "device": 0, "size": SLAB}), Some(file.as_fd()));
    // With the inherited memory it was granted as much as it maps, but that memory does not have the slab's size.
    assert_eq!(next.client().call(0, &Grant { device: 0, least: SLAB, want: SLAB }, &[]).0, 0);
    let base = next.base;
    next.client().map(base, 2 * SLAB);
    assert_eq!(next.read(0, 2 * SLAB), vec![0; 2 * SLAB as usize]);
    until("it is overwritten", || !is_in(&file));
}

#[test]
fn what_was_inherited_is_zeroed_unless_it_was_said_to_be() {
    for zeroed in [false, true] {
        let (_tenant, file) = left(SLAB);
        let file = file.expect("the memory");
        file.write_all_at(SECRET, 0).expect("written");
        let mut next = next_of_the_lease();
        next.worker.order(&json!({"op": "inherit", "device": 0, "size": SLAB, "zeroed": zeroed}), Some(file.as_fd()));
        let base = next.base;
        next.client().map(base, SLAB);
        assert_eq!(next.read(0, SECRET.len() as u64) == SECRET, zeroed);
    }
}

#[test]
fn what_was_inherited_and_never_mapped_is_overwritten_at_the_end_or_when_it_is_given_back() {
    for gives_back in [false, true] {
        let (_tenant, file) = left(SLAB);
        let file = file.expect("the memory");
        file.write_all_at(SECRET, 0).expect("written");
        let mut next = next_of_the_lease();
        next.worker.order(&json!({"op": "inherit", "device": 0, "size": SLAB}), Some(file.as_fd()));
        assert_eq!(next.client().call(0, &MemoryQuery { device: 0 }, &[]).0, 0);
        if gives_back {
            next.client().send(0, &GrantReturn { device: 0, size: SLAB }, &[]);
            until("it is returned", || !next.worker.told("return").is_empty());
        } else {
            next.worker.hang_up();
        }
        assert!(!is_in(&file));
    }
}

#[test]
fn nothing_is_handed_on_while_a_kernel_runs_that_may_write_to_it() {
    let mut tenant = next_of_the_lease();
    assert_eq!(tenant.client().call(0, &Grant { device: 0, least: GRANTED, want: GRANTED }, &[]).0, 0);
    let base = tenant.base;
    tenant.client().stream(A, NON_BLOCKING, 0);
    tenant.client().map(base, SLAB);
    tenant.write(0, SECRET);
    tenant.peek(4096, SLAB / 2, 8192);
    assert_eq!(tenant.synchronize(B), 0);
    let told = tenant.worker.hang_up();
    let ending = told.iter().find(|packet| packet["op"] == "ending").expect("told");
    assert_eq!(ending["offers"], false);
}
