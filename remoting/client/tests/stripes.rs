//! Copies over stripes to and from a worker that the test plays, and that violates the protocol on a stripe.

mod worker;

use protocol::{
    Acknowledge, CopyToDeviceStriped, CopyToHostStriped, Extent, HostBytes, Landed, NeedBytes, PieceHeader, Probe,
    Reply, SupplyBytes, WIRE_VERSION,
};
use remotegpu_client::session::{DeviceBox, HostBox, Session};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use worker::Worker;

const PIECE: usize = protocol::BULK_CHUNK;
/// The least that goes over stripes.
const SIZE: usize = 8 << 20;

/// A session with one stripe, its worker, and the worker's end of the stripe.
fn start() -> (Arc<Session>, Worker, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("socket pair");
    let (session, worker) = worker::start(WIRE_VERSION, ours.into(), theirs.into(), None);
    let (ours, stripe) = UnixStream::pair().expect("socket pair");
    let ours = Mutex::new(Some(OwnedFd::from(ours)));
    session.stripe_by(1, move |_| ours.lock().expect("no panic").take());
    (session, worker, stripe)
}

fn device() -> DeviceBox {
    DeviceBox { context: 1, address: 4096, extent: Extent::linear(SIZE as u64) }
}

/// Copies to the host into the middle of 16 MiB of memory; returns the result and all of the memory.
fn read(session: &Arc<Session>) -> JoinHandle<(Result<(), u32>, Vec<u8>)> {
    let session = Arc::clone(session);
    thread::spawn(move || {
        let mut memory = vec![7u8; 2 * SIZE];
        let to = HostBox::linear(memory[SIZE / 2..].as_mut_ptr().expose_provenance(), SIZE as u64);
        let done = session.copy_to_host(1, &to, &device());
        (done, memory)
    })
}

fn pattern() -> Vec<u8> {
    (0..SIZE).map(|at| (at / 7) as u8).collect()
}

/// Answers a copy to the host: what the stripe does not carry any more goes by the session's connection.
fn answer(worker: &mut Worker, stripe: &UnixStream, mut carries: impl FnMut(&UnixStream, u64, &[u8]) -> bool) {
    let (bytes, mut done) = (pattern(), 0);
    while done < SIZE {
        let frame = worker.next().expect("a frame");
        if frame.header.code == <Landed as protocol::Message>::CODE {
            continue;
        }
        let (copy, _) = <CopyToHostStriped as protocol::Message>::decode(&frame.payload).expect("decodes");
        let at = copy.address as usize - 4096;
        let piece = &bytes[at..at + copy.len as usize];
        if !carries(stripe, frame.header.seq, piece) {
            let _ = stripe.shutdown(Shutdown::Both);
            worker.push(frame.header.seq, &HostBytes { offset: 0 }, piece);
        }
        worker.push(frame.header.seq, &Reply { code: 0 }, &[]);
        done += piece.len();
    }
}

fn carry(mut stripe: &UnixStream, command: u64, piece: &[u8]) -> bool {
    let header = PieceHeader { command, len: piece.len() as u64 }.encode();
    stripe.write_all(&header).and_then(|()| stripe.write_all(piece)).is_ok()
}

#[track_caller]
fn assert_only_the_copy_was_written(read: JoinHandle<(Result<(), u32>, Vec<u8>)>) {
    let (done, memory) = read.join().expect("no panic");
    assert_eq!(done, Ok(()));
    let (before, rest) = memory.split_at(SIZE / 2);
    let (copy, after) = rest.split_at(SIZE);
    assert!(copy == pattern(), "the bytes of the copy");
    assert!(before.iter().chain(after).all(|byte| *byte == 7), "and nothing else");
}

#[test]
fn a_stripe_carries_a_copy_to_the_host() {
    let (session, mut worker, stripe) = start();
    let read = read(&session);
    answer(&mut worker, &stripe, carry);
    assert_only_the_copy_was_written(read);
}

#[test]
fn a_stripe_that_ends_at_any_place_loses_nothing() {
    for place in [0, 1, PieceHeader::BYTES, PieceHeader::BYTES + 1, PIECE / 2, PieceHeader::BYTES + PIECE - 1] {
        let (session, mut worker, stripe) = start();
        let read = read(&session);
        let mut pieces = 0;
        answer(&mut worker, &stripe, |mut stripe, command, piece| {
            pieces += 1;
            if pieces < 3 {
                return carry(stripe, command, piece);
            }
            if pieces == 3 {
                let header = PieceHeader { command, len: piece.len() as u64 }.encode();
                let _ = stripe.write_all(&[&header[..], piece].concat()[..place]);
            }
            false
        });
        assert_only_the_copy_was_written(read);
    }
}

#[test]
fn a_piece_of_another_command_or_length_ends_its_stripe_alone() {
    let lies: [fn(u64, u64) -> PieceHeader; 5] = [
        |command, len| PieceHeader { command: command + 100, len },
        |_, len| PieceHeader { command: 0, len },
        |command, len| PieceHeader { command, len: len + 1 },
        |command, len| PieceHeader { command, len: len - 1 },
        |command, _| PieceHeader { command, len: u64::MAX },
    ];
    for lie in lies {
        let (session, mut worker, stripe) = start();
        let read = read(&session);
        let mut lied = false;
        answer(&mut worker, &stripe, |mut stripe, command, piece| {
            if !std::mem::replace(&mut lied, true) {
                // The client may have closed it before all of it is sent.
                let _ = stripe.write_all(&lie(command, piece.len() as u64).encode());
                let _ = stripe.write_all(&[9; 2 * PIECE]);
            }
            false
        });
        assert_only_the_copy_was_written(read);
    }
}

#[test]
fn bytes_that_a_stripe_does_not_take_are_sent_where_they_are_asked_for() {
    let (session, mut worker, mut stripe) = start();
    let write = thread::spawn(move || {
        let bytes = pattern();
        let from = HostBox::linear(bytes.as_ptr().expose_provenance(), SIZE as u64);
        session.copy_to_device(1, &device(), &from, true)
    });
    let (bytes, mut arrived) = (pattern(), vec![0; SIZE]);
    let mut commands = Vec::new();
    while commands.len() < SIZE / PIECE {
        let (header, copy, _) = worker.expect::<CopyToDeviceStriped>();
        commands.push((header.seq, copy.address as usize - 4096, copy.len as usize));
    }
    let mut header = [0; PieceHeader::BYTES];
    stripe.read_exact(&mut header).expect("a header");
    let (seq, at, len) = commands.remove(0);
    assert_eq!(PieceHeader::decode(&header), PieceHeader { command: seq, len: len as u64 });
    stripe.read_exact(&mut arrived[at..at + len]).expect("the first piece");
    worker.push(seq, &Reply { code: 0 }, &[]);
    // Within the second.
    stripe.read_exact(&mut [0; PIECE / 2]).expect("half of it");
    stripe.shutdown(Shutdown::Both).expect("closed");
    for (seq, at, len) in commands {
        worker.push(seq, &NeedBytes { offset: 0, len: len as u64 }, &[]);
        let (_, supplied, tail) = worker.expect::<SupplyBytes>();
        assert_eq!((supplied.command, supplied.offset), (seq, 0));
        arrived[at..at + len].copy_from_slice(&tail);
        // The thread that copies may be reading: an answer wakes it.
        worker.expect::<Probe>();
        worker.push(0, &Acknowledge {}, &[]);
    }
    assert_eq!(write.join().expect("no panic"), Ok(()));
    assert!(arrived == bytes);
}
