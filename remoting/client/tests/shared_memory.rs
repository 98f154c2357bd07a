//! Memory that a session shares with its worker, which the test plays: by a gateway's side of the memory connection
//! that answers as it should, or not.

mod worker;

use protocol::{CopyToDeviceLate, CopyToDeviceShared, CopyToHostShared, Extent, NeedBytes, SharedMemory, SupplyBytes};
use remotegpu_client::session::{DeviceBox, HostBox, Reconnect, Retry, Session};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use worker::Worker;

const SIZE: usize = 1 << 20;

/// A session that can share memory by this connection.
fn start(memory: UnixStream) -> (Arc<Session>, Worker) {
    let (ours, theirs) = UnixStream::pair().expect("socket pair");
    let memory = Mutex::new(Some(OwnedFd::from(memory)));
    let reconnect = Reconnect {
        grace: Duration::from_secs(1),
        connect: Box::new(|_, _| Err(Retry::Never("only one connection".into()))),
    };
    let (session, worker) = worker::start(protocol::WIRE_VERSION, ours.into(), theirs.into(), Some(reconnect));
    session.share_memory_by(move || memory.lock().expect("no panic").take());
    (session, worker)
}

/// Returns the message by which the client gives memory, and its descriptor.
fn given(socket: &UnixStream) -> (SharedMemory, std::fs::File) {
    let mut bytes = [0; SharedMemory::BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::empty());
    assert_eq!(message.expect("a message").bytes, SharedMemory::BYTES);
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    (SharedMemory::decode(&bytes), file.expect("a descriptor").into())
}

fn device() -> DeviceBox {
    let len = SIZE as u64;
    DeviceBox { context: 1, address: 4096, extent: Extent { width: len, height: 1, depth: 1, pitch: len, slice: len } }
}

/// Memory of the arena, which the worker has too if it answers so; and the descriptor that it was given.
fn shared(session: &Session, connection: UnixStream, answer: &'static [u8]) -> (HostBox, std::fs::File, UnixStream) {
    let address = session.arena().take_pinned(SIZE as u64, 4096).expect("room") as usize;
    let peer = thread::spawn(move || {
        let (memory, file) = given(&connection);
        (&connection).write_all(answer).expect("sent");
        if answer.is_empty() {
            connection.shutdown(std::net::Shutdown::Both).expect("closed");
        }
        (memory, file, connection)
    });
    // SAFETY: this part of the arena was just taken.
    assert!(unsafe { session.back_shared(1, address, SIZE) });
    let (memory, file, connection) = peer.join().expect("the peer");
    assert_eq!(memory, SharedMemory { context: 1, address: address as u64, size: SIZE as u64 });
    let seals = fcntl_get_seals(&file).expect("seals");
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    assert_eq!(fstat(&file).expect("a file").st_size as usize, SIZE);
    (HostBox::linear(address, SIZE as u64), file, connection)
}

#[test]
fn both_ends_have_the_same_bytes_and_commands_say_where() {
    let (ours, theirs) = UnixStream::pair().expect("socket pair");
    let (session, mut worker) = start(ours);
    let (memory, file, _connection) = shared(&session, theirs, b"K");
    let bytes: Vec<u8> = (0..SIZE).map(|at| at as u8).collect();
    file.write_all_at(&bytes, 0).expect("written");
    session.copy_to_device_late(1, &device(), &memory).expect("sent");
    let (header, copy, _) = worker.expect::<CopyToDeviceShared>();
    let seq = header.seq;
    assert_eq!((copy.from, &copy.extent), (memory.base as u64, &device().extent));
    // A worker that has lost the memory asks for the bytes.
    let half = SIZE as u64 / 2;
    worker.push(seq, &NeedBytes { offset: half, len: half }, &[]);
    let (_, supplied, tail) = worker.expect::<SupplyBytes>();
    assert_eq!((supplied.command, supplied.offset, &tail[..]), (seq, half, &bytes[SIZE / 2..]));
    session.copy_to_host_later(1, &memory, &device()).expect("sent");
    let (_, copy, _) = worker.expect::<CopyToHostShared>();
    assert_eq!((copy.to, copy.len), (memory.base as u64, SIZE as u64));
}

#[test]
fn what_the_worker_does_not_take_goes_by_the_wire() {
    for answer in [&b"N"[..], b"?", b"", b"NKKKK"] {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        let (session, mut worker) = start(ours);
        let (memory, _file, _connection) = shared(&session, theirs, answer);
        assert!(!session.shares(&memory), "{answer:?}");
        session.copy_to_device_late(1, &device(), &memory).expect("sent");
        session.flush().expect("sent");
        worker.expect::<CopyToDeviceLate>();
    }
}

#[test]
fn a_worker_that_takes_back_its_connection_is_given_nothing_more() {
    let (ours, theirs) = UnixStream::pair().expect("socket pair");
    let (session, _worker) = start(ours);
    let (memory, _file, connection) = shared(&session, theirs, b"K");
    assert!(session.shares(&memory));
    drop(connection);
    let address = session.arena().take_pinned(SIZE as u64, 4096).expect("room") as usize;
    // SAFETY: this part of the arena was just taken. It is backed, but not shared.
    assert!(unsafe { session.back_shared(1, address, SIZE) });
    assert!(!session.shares(&HostBox::linear(address, SIZE as u64)));
    // SAFETY: as above.
    assert!(!unsafe { session.back_shared(1, address, SIZE) }, "the connection is closed");
}

#[test]
fn the_connection_stays_open_with_the_process_though_nothing_is_shared() {
    for answer in [None, Some(&b"?"[..])] {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        let (session, _worker) = start(ours);
        session.show_end();
        if let Some(answer) = answer {
            let (memory, _file, _connection) = shared(&session, theirs.try_clone().expect("a copy"), answer);
            assert!(!session.shares(&memory));
        }
        theirs.set_nonblocking(true).expect("set");
        let end = (&theirs).read(&mut [0]).expect_err("neither bytes nor an end");
        assert_eq!(end.kind(), ErrorKind::WouldBlock);
    }
}
