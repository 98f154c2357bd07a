//! A worker that a test plays.

use protocol::{Decoder, Header, Message, Open, Opened, Reply, StreamFence, Writer};
use remotegpu_client::session::{Opening, Reconnect, Session};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

/// The test's end of the connection.
pub struct Worker {
    pub socket: UnixStream,
    decoder: Decoder,
}

pub struct Frame {
    pub header: Header,
    pub payload: Vec<u8>,
}

impl Worker {
    /// The next frame; `None` when the client has closed.
    pub fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some((header, payload)) = self.decoder.next_frame().expect("frames") {
                return Some(Frame { header, payload: payload.to_vec() });
            }
            let mut buffer = [0; 1 << 16];
            let count = self.socket.read(&mut buffer).ok().filter(|count| *count > 0)?;
            self.decoder.feed(&buffer[..count]);
        }
    }

    /// Returns the next frame. A fence comes after many commands of a stream, to report its progress; it is skipped.
    pub fn expect<M: Message>(&mut self) -> (Header, M, Vec<u8>) {
        let mut frame = self.next().expect("a frame");
        while frame.header.code == StreamFence::CODE && M::CODE != StreamFence::CODE {
            frame = self.next().expect("a frame");
        }
        assert_eq!(frame.header.code, M::CODE, "{:?}", protocol::message_name(frame.header.code));
        let (message, tail) = M::decode(&frame.payload).expect("decodes");
        (frame.header, message, tail.to_vec())
    }

    pub fn push<M: Message>(&mut self, seq: u64, message: &M, tail: &[u8]) {
        // The client may be gone: some tests break the connection on purpose.
        let _ = self.socket.write_all(&frame(seq, message, tail));
    }
}

/// A frame as it travels.
pub fn frame<M: Message>(seq: u64, message: &M, tail: &[u8]) -> Vec<u8> {
    let mut w = Writer::new();
    w.put(message).raw(tail);
    let header = Header { len: w.bytes.len() as u32, code: M::CODE, seq, stream_id: 0, ack: 0 };
    [&header.encode()[..], &w.bytes].concat()
}

/// A session that speaks this version of the wire. Its arena is small and lies where nothing else is.
pub fn start(wire: u32, ours: OwnedFd, theirs: OwnedFd, reconnect: Option<Reconnect>) -> (Arc<Session>, Worker) {
    static ARENAS: AtomicU64 = AtomicU64::new(0x5900_0000_0000);
    let worker = thread::spawn(move || {
        // Reads and writes go to the descriptor whatever its family.
        let mut worker = Worker { socket: theirs.into(), decoder: Decoder::new() };
        let (header, open, _) = worker.expect::<Open>();
        assert_eq!((header.seq, open.wire_version, Some(open.table_hash)), (1, wire, protocol::table_hash(wire)));
        let arena_base = ARENAS.fetch_add(1 << 32, SeqCst);
        let mut tail = Writer::new();
        tail.put(&Opened { arena_base, arena_size: 1 << 30, granularity: 1 << 21, image_bytes: 0 });
        worker.push(1, &Reply { code: 0 }, &tail.bytes);
        worker
    });
    let opening = Opening::new(wire);
    let mut client = UnixStream::from(ours);
    client.write_all(opening.frame()).expect("sent");
    let session = Session::start(client.into(), "test", opening, reconnect).expect("starts");
    (session, worker.join().expect("worker"))
}
