//! The client's side of a session, for tests.

use driverapi::device_bytes::device_bytes;
use protocol::{
    ContextCreate, Decoder, Ending, HEADER_BYTES, Header, ImageChunk, KernelDescribe, KernelInfo, Message, ModuleLoad,
    ModuleLoaded, Open, Opened, Reader, Reply, SlabMap, StreamCreate, WIRE_VERSION, Wire, Writer, table_hash,
};
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// A connection that carries frames to a worker and back.
pub trait Link {
    fn send(&mut self, header: Header, payload: Vec<u8>);
    /// Returns bytes that came; may wait a short time for some.
    fn receive(&mut self) -> Vec<u8>;
}

#[derive(Debug, Clone)]
pub struct Received {
    pub code: u32,
    pub seq: u64,
    pub payload: Vec<u8>,
}

pub struct Client<L> {
    pub link: L,
    pub seq: u64,
    decoder: Decoder,
    /// Everything that came, in order.
    pub inbox: Vec<Received>,
}

pub const CONTEXT: u64 = 1;
pub const LEGACY: u64 = 10;

impl<L: Link> Client<L> {
    pub fn new(link: L) -> Self {
        Client { link, seq: 0, decoder: Decoder::new(), inbox: Vec::new() }
    }

    /// Sends a command; returns its number.
    pub fn send<M: Message>(&mut self, stream_id: u64, message: &M, tail: &[u8]) -> u64 {
        let mut w = Writer::new();
        w.put(message).raw(tail);
        self.send_raw(M::CODE, stream_id, w.bytes)
    }

    pub fn send_raw(&mut self, code: u32, stream_id: u64, payload: Vec<u8>) -> u64 {
        self.seq += 1;
        let header = Header { len: payload.len() as u32, code, seq: self.seq, stream_id, ack: 0 };
        self.link.send(header, payload);
        self.seq
    }

    pub fn receive(&mut self) {
        let bytes = self.link.receive();
        self.decoder.feed(&bytes);
        while let Some((header, payload)) = self.decoder.next_frame().expect("frames") {
            self.inbox.push(Received { code: header.code, seq: header.seq, payload: payload.to_vec() });
        }
    }

    /// Waits for the first frame that satisfies `wanted`, and returns it.
    pub fn wait(&mut self, what: &str, wanted: impl Fn(&Received) -> bool) -> Received {
        for _ in 0..20_000 {
            if let Some(found) = self.inbox.iter().find(|r| wanted(r)) {
                return found.clone();
            }
            if let Some(ending) = self.inbox.iter().find(|r| r.code == Ending::CODE) {
                panic!("session ended: {:?}", Ending::decode(&ending.payload));
            }
            self.receive();
        }
        panic!("{what} did not come; inbox: {:?}", self.inbox.iter().map(|r| (r.code, r.seq)).collect::<Vec<_>>());
    }

    /// Returns the code and tail of a command's reply.
    pub fn reply(&mut self, seq: u64) -> (u32, Vec<u8>) {
        let received = self.wait(&format!("reply {seq}"), |r| r.code == Reply::CODE && r.seq == seq);
        let (reply, tail) = Reply::decode(&received.payload).expect("reply");
        (reply.code, tail.to_vec())
    }

    pub fn has_reply(&self, seq: u64) -> bool {
        self.inbox.iter().any(|r| r.code == Reply::CODE && r.seq == seq)
    }

    pub fn call<M: Message>(&mut self, stream_id: u64, message: &M, tail: &[u8]) -> (u32, Vec<u8>) {
        let seq = self.send(stream_id, message, tail);
        self.reply(seq)
    }

    /// Opens a session with a context and its legacy stream.
    pub fn open(&mut self) -> Opened {
        self.open_in(WIRE_VERSION)
    }

    /// Opens a session as a client that speaks this version of the wire.
    pub fn open_in(&mut self, wire_version: u32) -> Opened {
        let table_hash = table_hash(wire_version).expect("a version that is spoken");
        let open = Open { wire_version, table_hash, client_pid: 1, client_name: "test".into() };
        let (code, tail) = self.call(0, &open, &[]);
        assert_eq!(code, 0);
        self.send(
            0,
            &ContextCreate { context: CONTEXT, primary: true, legacy_stream: LEGACY, ..Default::default() },
            &[],
        );
        Reader::new(&tail).get().expect("opened")
    }

    /// Maps memory that was granted before.
    pub fn map(&mut self, address: u64, size: u64) {
        self.send(0, &SlabMap { device: 0, address, size }, &[]);
    }

    pub fn stream(&mut self, stream: u64, flags: u32, priority: i32) {
        self.send(0, &StreamCreate { stream, context: CONTEXT, flags, priority }, &[]);
    }

    /// Loads an image, sending it first.
    pub fn load(&mut self, module: u64, image: &[u8]) -> (u32, ModuleLoaded) {
        self.load_as(module, image, device_bytes(&[image]))
    }

    /// Loads an image and states that it takes `bytes`.
    pub fn load_as(&mut self, module: u64, image: &[u8], bytes: u64) -> (u32, ModuleLoaded) {
        let hash: [u8; 32] = Sha256::digest(image).into();
        for (i, piece) in image.chunks(1 << 20).enumerate() {
            self.send(0, &ImageChunk { hash, offset: (i << 20) as u64, total: image.len() as u64 }, piece);
        }
        let load = ModuleLoad { module, context: CONTEXT, hash, options: vec![], eager: false, bytes };
        let (code, tail) = self.call(0, &load, &[]);
        (code, Reader::new(&tail).get().expect("loaded"))
    }

    /// Loads a kernel, and returns its description.
    pub fn describe(&mut self, module: u64, kernel: u32) -> (u32, Option<KernelInfo>) {
        let (code, tail) = self.call(0, &KernelDescribe { module, kernel }, &[]);
        (code, Reader::new(&tail).get().ok())
    }

    /// Returns the bytes that `CopyToHost` number `seq` brought, and the code of its reply.
    pub fn host_bytes(&mut self, seq: u64) -> (u32, Vec<u8>) {
        let (code, _) = self.reply(seq);
        let mut pieces = HashMap::new();
        for r in self.inbox.iter().filter(|r| r.code == protocol::HostBytes::CODE && r.seq == seq) {
            let (piece, bytes) = protocol::HostBytes::decode(&r.payload).expect("bytes");
            pieces.insert(piece.offset, bytes.to_vec());
        }
        let mut all = Vec::new();
        while let Some(piece) = pieces.remove(&(all.len() as u64)) {
            all.extend(piece);
        }
        (code, all)
    }
}

pub fn encode(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&header.encode());
    bytes.extend_from_slice(payload);
    bytes
}

pub fn encoded<T: Wire>(value: &T) -> Vec<u8> {
    let mut w = Writer::new();
    w.put(value);
    w.bytes
}

/// A packed row of bytes.
pub fn row(width: u64) -> protocol::Extent {
    protocol::Extent::linear(width)
}
