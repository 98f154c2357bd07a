//! Sessions that get frames which no client of ours would send: no crash, no hang, no large allocation.
//!
//! `REMOTEGPU_FUZZ_SECONDS` lets it run longer; the message names a failing seed.

mod common;

use common::client::encoded;
use common::fake::{self, GRANULARITY, STOPPED};
use protocol::{HEADER_BYTES, Header, Message, Open, Opened, Reader, Reply, TABLE_HASH, WIRE_VERSION};
use remotegpu_worker::io::frames::{FrameReader, Payload};
use remotegpu_worker::session::budgets::Budgets;
use remotegpu_worker::session::commands::Session;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The largest single allocation so far.
static LARGEST: AtomicUsize = AtomicUsize::new(0);
const ALLOWED: usize = 64 << 20;

struct Watching;

// SAFETY: passes everything to the system's allocator.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns a number for a field: mostly small, so that ids meet; sometimes an address, sometimes absurd.
    fn field(&mut self, base: u64) -> u64 {
        match self.below(12) {
            0..=6 => self.below(6),
            7 | 8 => base + self.below(5) * GRANULARITY,
            9 => GRANULARITY * self.below(5),
            10 => STOPPED as u64,
            _ => self.next() >> self.below(64),
        }
    }
}

/// Makes a message of the right length for its code, filled with such numbers.
fn payload(random: &mut Random, sample: &[u8], base: u64) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let size = [1, 4, 8, 8][random.below(4) as usize].min(bytes.len() - at);
        let value = random.field(base).to_le_bytes();
        bytes[at..at + size].copy_from_slice(&value[..size]);
        at += size;
    }
    match random.below(10) {
        0 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
        1 | 2 => bytes.extend((0..random.below(200)).map(|i| i as u8)),
        _ => {}
    }
    bytes
}

/// Opens a session. Returns the base of its arena, too.
fn open_session(seq: &mut u64) -> (Session, u64) {
    let mut session = Session::new(fake::driver(), None, Budgets::default()).expect("session");
    let open = Open { wire_version: WIRE_VERSION, table_hash: TABLE_HASH, client_pid: 1, client_name: String::new() };
    *seq = 0;
    let reply = give(&mut session, seq, Open::CODE, 0, encoded(&open));
    let (_, tail) = Reply::decode(&reply[HEADER_BYTES..]).expect("reply");
    let opened: Opened = Reader::new(tail).get().expect("opened");
    (session, opened.arena_base)
}

fn give(session: &mut Session, seq: &mut u64, code: u32, stream_id: u64, payload: Vec<u8>) -> Vec<u8> {
    *seq += 1;
    let header = Header { len: payload.len() as u32, code, seq: *seq, stream_id, ack: 0 };
    session.accept(&header, Payload::Heap(payload));
    session.turn();
    let mut answered = Vec::new();
    let sent = session.out.flush(|slices| {
        slices.iter().for_each(|slice| answered.extend_from_slice(slice));
        Ok(slices.iter().map(|s| s.len()).sum())
    });
    sent.expect("memory takes everything");
    answered
}

fn run(seed: u64, samples: &[(u32, Vec<u8>)]) {
    let mut random = Random(seed);
    let mut seq = 0;
    let (mut session, mut base) = open_session(&mut seq);
    for _ in 0..300 {
        if session.has_ended() {
            (session, base) = open_session(&mut seq);
        }
        let (code, sample) = &samples[random.below(samples.len() as u64) as usize];
        let code = match random.below(20) {
            0 => random.below(0x8000) as u32,
            1 => random.next() as u32,
            _ => *code,
        };
        let payload = payload(&mut random, sample, base);
        let stream_id = random.below(6);
        let started = Instant::now();
        give(&mut session, &mut seq, code, stream_id, payload);
        assert!(started.elapsed() < Duration::from_secs(1), "seed {seed}: command {code:#x} took too long");
        if random.below(8) == 0 {
            session.order(br#"{"op":"granted","id":1,"size":8388608}"#, None);
        }
        if random.below(16) == 0 {
            fake::world().go_on();
        }
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(largest <= ALLOWED, "seed {seed}: command {code:#x} made the worker allocate {largest} bytes");
    }
}

#[test]
fn sessions_survive_whatever_is_sent() {
    let samples: Vec<_> = protocol::samples().into_iter().filter(|(code, _)| (0x8001..0xc000).contains(code)).collect();
    // Otherwise a helper's panic would go unnoticed.
    std::panic::set_hook(Box::new(|info| {
        eprintln!("{info}");
        std::process::abort();
    }));
    let seconds = std::env::var("REMOTEGPU_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut seed = 0;
    while Instant::now() < until {
        run(seed, &samples);
        seed += 1;
    }
    println!("{seed} sessions");
}

#[test]
fn the_byte_stream_survives_whatever_is_sent() {
    for seed in 0..2000 {
        let (mut random, mut reader) = (Random(seed), FrameReader::default());
        for _ in 0..50 {
            let space = reader.space();
            let count = (random.below(100) as usize).min(space.len());
            for byte in &mut space[..count] {
                *byte = if random.below(3) == 0 { random.next() as u8 } else { 0 };
            }
            reader.filled(count);
            let frame = reader.next(|_, _| None);
            if frame.is_err() {
                break;
            }
        }
    }
    assert!(LARGEST.load(Ordering::Relaxed) <= ALLOWED);
}
