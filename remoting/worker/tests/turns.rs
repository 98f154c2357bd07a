//! Workers on the software GPU that take turns. The tests count work, and turns last by a clock of the test: the
//! processor time of the workers, or one that stands still. So nothing here depends on how busy the machine is.

mod common;

use common::client::{CONTEXT, LEGACY, encoded};
use common::session::{A, B, LIMIT, MODULE, Test, start_on};
use common::worker::Worker;
use protocol::{ContextSynchronize, StreamSynchronize, UNCOUNTED};
use remotegpu_worker::gateway::turns::Turns;
use remotegpu_worker::packets::{LeasePart, UsedTime};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, mpsc};

const LEASES: [[u8; 16]; 2] = [[1; 16], [2; 16]];
/// Number of launches between two waits.
const PIECE: u32 = 8;

/// `work(n)` counts to `n`.
const PTX: &str = r#"
.version 7.0
.target sm_70
.address_size 64

.visible .entry work(.param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    ld.param.u32 %r1, [n];
    mov.u32 %r2, 0;
again:
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra again;
    ret;
}
"#;

/// Returns the processes' time on processors.
fn processor_time(processes: &[AtomicI32]) -> u64 {
    let of = |process: &AtomicI32| {
        let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: both places live during the calls.
        let failed = unsafe {
            libc::clock_getcpuclockid(process.load(Ordering::Relaxed), &mut clock) != 0
                || libc::clock_gettime(clock, &mut time) != 0
        };
        if failed { 0 } else { time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 }
    };
    processes.iter().filter(|process| process.load(Ordering::Relaxed) != 0).map(of).sum()
}

fn join(turns: &Turns, session: u8, lease: [u8; 16]) -> Test {
    let environment = [("REMOTEGPU_SOFTGPU_THREADS", "1")];
    let give = |socket| turns.join([session; 16], lease, socket);
    start_on(Worker::start_taking_turns("normal", LIMIT, &environment, &[], Some(&give)))
}

fn share(turns: &Turns, weights: [u32; 2]) {
    for (lease, weight) in LEASES.into_iter().zip(weights) {
        turns.share(lease, vec![LeasePart { gpu: 0, weight, limit: 1000 }]);
    }
}

fn load(t: &mut Test) -> u32 {
    let (code, loaded) = t.client().load(MODULE, PTX.as_bytes());
    assert_eq!(code, 0, "{}", loaded.log);
    assert_eq!(t.client().describe(MODULE, 0).0, 0);
    0
}

/// Launches pieces of work; returns the numbers of the commands that wait for them.
fn launch(t: &mut Test, stream: u64, pieces: u32, n: u32) -> Vec<u64> {
    let piece = |_| {
        (0..PIECE).for_each(|_| t.launch(stream, 0, 1, 1, &encoded(&n)));
        t.client().send(stream, &StreamSynchronize { launches: UNCOUNTED }, &[])
    };
    (0..pieces).map(piece).collect()
}

fn completed(t: &Test, waits: &[u64]) -> usize {
    waits.iter().filter(|seq| t.worker.client.has_reply(**seq)).count()
}

#[test]
fn backlogged_leases_get_three_to_one() {
    let processes: Arc<[AtomicI32; 2]> = Arc::default();
    let (clock, (tell, used)) = (processes.clone(), mpsc::channel::<Vec<UsedTime>>());
    let turns = Turns::start_by(move || processor_time(&*clock), move |times| drop(tell.send(times))).expect("thread");
    share(&turns, [750, 250]);
    let mut both = [join(&turns, 10, LEASES[0]), join(&turns, 11, LEASES[1])];
    for (process, t) in processes.iter().zip(&mut both) {
        load(t);
        process.store(t.worker.process.id() as i32, Ordering::Relaxed);
    }
    // Each piece takes milliseconds: other work of a worker, which its clock counts too, is little, even with a
    // sanitizer.
    let waits = both.each_mut().map(|t| launch(t, A, 900, 20_000));
    let mut count = || {
        both.iter_mut().for_each(|t| t.client().receive());
        [0, 1].map(|i| completed(&both[i], &waits[i]))
    };
    let begin = loop {
        let now = count();
        if now.iter().all(|done| *done > 30) {
            break now;
        }
    };
    let end = loop {
        let now = count();
        if now[0] - begin[0] >= 540 {
            break now;
        }
    };
    let [more, less] = [0, 1].map(|i| (end[i] - begin[i]) as f64);
    // Exactly three to one is the arbiter's own test, by a clock that stands still. Here a piece takes what the machine
    // gives, and a turn more or less at either end is a twentieth.
    assert!((more / less / 3.0 - 1.0).abs() <= 0.15, "{more} and {less} pieces: {}", more / less);
    drop(turns);
    let sum = |lease: [u8; 16]| {
        let name: String = lease.iter().map(|byte| format!("{byte:02x}")).collect();
        used.try_iter().flatten().filter(|each| each.lease == name).map(|each| each.nanoseconds).sum::<u64>()
    };
    assert!(sum(LEASES[0]) > 0, "what was used is told");
}

#[test]
fn a_worker_that_is_killed_in_its_turn_holds_nobody() {
    // Time stands still: no turn ends by itself.
    let turns = Turns::start_by(|| 0, |_| {}).expect("thread");
    share(&turns, [500, 500]);
    let (mut first, mut second) = (join(&turns, 10, LEASES[0]), join(&turns, 11, LEASES[1]));
    let kernel = first.load();
    first.launch(A, kernel("spin"), 1, 1, &encoded(&first.base));
    // A launch after that one, in another stream: its completion is reported once the turn has come.
    first.launch(B, kernel("count"), 1, 1, &encoded(&(first.base + 64)));
    assert_eq!(first.synchronize(B), 0);
    load(&mut second);
    let waits = launch(&mut second, A, 1, 100);
    // Commands that are no launch wait for no turn.
    second.write(B, 0, &[1; 4]);
    assert_eq!(second.read(B, 0, 4), [1; 4]);
    assert_eq!(completed(&second, &waits), 0, "it is the first one's turn");
    first.worker.process.kill().expect("it runs");
    assert_eq!(second.client().reply(waits[0]).0, 0);
}

#[test]
fn an_idle_neighbour_holds_nobody() {
    let turns = Turns::start_by(|| 0, |_| {}).expect("thread");
    share(&turns, [900, 100]);
    let (mut idle, mut busy) = (join(&turns, 10, LEASES[0]), join(&turns, 11, LEASES[1]));
    load(&mut idle);
    // It had its turn, and has nothing more to do.
    let waits = launch(&mut idle, A, 1, 100);
    assert_eq!(idle.client().reply(waits[0]).0, 0);
    load(&mut busy);
    let waits = launch(&mut busy, A, 100, 1000);
    assert_eq!(busy.client().reply(waits[99]).0, 0);
}

#[test]
fn kernels_that_wait_for_each_other_come_to_an_end() {
    let turns = Turns::start(|_| {}).expect("thread");
    share(&turns, [500, 500]);
    let (mut waiting, mut other) = (join(&turns, 10, LEASES[0]), join(&turns, 11, LEASES[1]));
    load(&mut other);
    let waits = launch(&mut other, A, 50, 20_000);
    let kernel = waiting.load();
    // More launches than may be queued come before the kernel that releases the first: it is launched although nothing
    // completes.
    waiting.launch(A, kernel("spin"), 1, 1, &encoded(&waiting.base));
    for _ in 0..2000 {
        waiting.launch(B, kernel("count"), 1, 1, &encoded(&(waiting.base + 64)));
    }
    waiting.launch(B, kernel("count"), 1, 1, &encoded(&waiting.base));
    assert_eq!(waiting.client().call(0, &ContextSynchronize { context: CONTEXT, launches: UNCOUNTED }, &[]).0, 0);
    assert_eq!(waiting.read(LEGACY, 64, 4), 2000u32.to_le_bytes());
    assert_eq!(other.client().reply(waits[49]).0, 0);
}
