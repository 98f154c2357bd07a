//! A worker that acts as the client of another worker, to create the same session there.

use crate::moving::image::Failed;
use protocol::{
    BULK_CHUNK, Consumed, CopyToDevice, Decoder, Ending, Extent, Fenced, Header, ImageChunk, Message, Reply,
    SEND_WINDOW, Wire, Writer,
};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The longest time to wait for bytes from the other worker, which may be compiling a large module.
const PATIENCE: Duration = Duration::from_secs(100);
const READ: usize = 256 << 10;

/// An answer of the other worker: its code, and the encoded fields after it.
pub type Answer = (u32, Vec<u8>);

pub struct Replay {
    socket: UnixStream,
    seq: u64,
    decoder: Decoder,
    buffer: Vec<u8>,
    received: u64,
    /// The commands that must be answered by 0, by number, with descriptions for error messages.
    expected: HashMap<u64, &'static str>,
    answers: HashMap<u64, Answer>,
    /// The number of copied bytes that the other worker has not consumed.
    outstanding: u64,
    /// The number of bytes of memory that were sent.
    pub copied: u64,
}

fn lost(error: io::Error) -> Failed {
    format!("OtherWorker: the connection to the worker there broke: {error}")
}

impl Replay {
    /// Creates a client on a connection to another worker.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn new(connection: OwnedFd) -> Result<Replay, Failed> {
        // This works for every kind of stream socket.
        let socket = UnixStream::from(connection);
        socket.set_nonblocking(false).map_err(lost)?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(lost)?;
        socket.set_write_timeout(Some(PATIENCE)).map_err(lost)?;
        Ok(Replay {
            socket,
            seq: 0,
            decoder: Decoder::new(),
            buffer: vec![0; READ],
            received: 0,
            expected: HashMap::new(),
            answers: HashMap::new(),
            outstanding: 0,
            copied: 0,
        })
    }

    /// Sends a command without waiting for an answer. Returns the command's number.
    ///
    /// # Errors
    /// Fails if the connection broke.
    pub fn tell<M: Message>(&mut self, stream_id: u64, message: &M, tail: &[u8]) -> Result<u64, Failed> {
        let mut w = Writer::new();
        w.put(message);
        self.send(M::CODE, stream_id, &w.bytes, tail)
    }

    /// Sends a command with encoded fields. Returns the command's number.
    ///
    /// # Errors
    /// Fails if the connection broke.
    pub fn send(&mut self, code: u32, stream_id: u64, fields: &[u8], tail: &[u8]) -> Result<u64, Failed> {
        self.seq += 1;
        let len = (fields.len() + tail.len()) as u32;
        let header = Header { len, code, seq: self.seq, stream_id, ack: self.received };
        let mut head = header.encode().to_vec();
        head.extend_from_slice(fields);
        self.write(&head)?;
        self.write(tail)?;
        Ok(self.seq)
    }

    /// Sends bytes unchanged.
    ///
    /// # Errors
    /// Fails if the connection broke.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        self.socket.write_all(bytes).map_err(lost)
    }

    /// Marks a command as one that must succeed. [`Replay::settle`] checks this later. `what` describes the command.
    pub fn expect(&mut self, seq: u64, what: &'static str) {
        self.expected.insert(seq, what);
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// Fails if the connection broke, or if the session at the other worker ended.
    pub fn call<M: Message>(&mut self, message: &M) -> Result<Answer, Failed> {
        let seq = self.tell(0, message, &[])?;
        loop {
            if let Some(answer) = self.answers.remove(&seq) {
                return Ok(answer);
            }
            self.read()?;
        }
    }

    /// Waits for the answers of all commands that must succeed.
    ///
    /// # Errors
    /// The description of a command that failed, and its code.
    pub fn settle(&mut self) -> Result<(), Failed> {
        while !self.expected.is_empty() {
            self.read()?;
        }
        Ok(())
    }

    /// Sends an image in pieces.
    ///
    /// # Errors
    /// Fails if the connection broke.
    pub fn image(&mut self, hash: [u8; 32], bytes: &[u8]) -> Result<(), Failed> {
        let total = bytes.len() as u64;
        for (at, piece) in bytes.chunks(READ).enumerate() {
            self.tell(0, &ImageChunk { hash, offset: (at * READ) as u64, total }, piece)?;
        }
        Ok(())
    }

    /// Sends bytes for memory of the other worker. If the memory is `fresh`, it contains zeros, and zeros are not sent.
    ///
    /// # Errors
    /// Fails if the connection broke, or if the session at the other worker ended.
    pub fn copy(&mut self, context: u64, stream_id: u64, at: u64, bytes: &[u8], fresh: bool) -> Result<(), Failed> {
        for (number, piece) in bytes.chunks(BULK_CHUNK).enumerate() {
            if fresh && piece.iter().all(|byte| *byte == 0) {
                continue;
            }
            let (address, width) = (at + (number * BULK_CHUNK) as u64, piece.len() as u64);
            let extent = Extent::linear(width);
            self.tell(stream_id, &CopyToDevice { context, address, extent, offset: 0 }, piece)?;
            (self.outstanding, self.copied) = (self.outstanding + width, self.copied + width);
            while self.outstanding > SEND_WINDOW / 4 {
                self.read()?;
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), Failed> {
        let count = match self.socket.read(&mut self.buffer).map_err(lost)? {
            0 => return Err("OtherWorker: the worker there has ended".into()),
            count => count,
        };
        self.received += count as u64;
        self.decoder.feed(&self.buffer[..count]);
        let malformed = |_| Failed::from("OtherWorker: the worker there answers what makes no sense");
        while let Some((header, payload)) = self.decoder.next_frame().map_err(|_| malformed(()))? {
            match header.code {
                Reply::CODE => {
                    let (reply, fields) = Reply::decode(payload).map_err(|_| malformed(()))?;
                    match self.expected.remove(&header.seq) {
                        Some(what) if reply.code != 0 => {
                            return Err(format!("{what}: the appliance there answers CUDA error {}", reply.code));
                        }
                        Some(_) => {}
                        None => drop(self.answers.insert(header.seq, (reply.code, fields.to_vec()))),
                    }
                }
                Consumed::CODE => {
                    let (consumed, _) = Consumed::decode(payload).map_err(|_| malformed(()))?;
                    self.outstanding = self.outstanding.saturating_sub(consumed.bytes);
                }
                Ending::CODE => {
                    let (ending, _) = Ending::decode(payload).map_err(|_| malformed(()))?;
                    return Err(format!("OtherWorker: the session there ended: {}", ending.reason));
                }
                Fenced::CODE => {}
                _ => {}
            }
        }
        Ok(())
    }

    /// Closes the sending side of the connection and waits until the other worker has read everything. Returns the
    /// number of bytes of memory that were sent.
    ///
    /// # Errors
    /// Fails if the connection broke.
    pub fn finish(mut self) -> Result<u64, Failed> {
        self.socket.shutdown(Shutdown::Write).map_err(lost)?;
        // Messages after this point are for the session's own client. The other worker sends them to the client again.
        while self.socket.read(&mut self.buffer).map_err(lost)? > 0 {}
        Ok(self.copied)
    }
}

/// Decodes the fields of a successful answer.
///
/// # Errors
/// A message with `what`, which names the failed command.
pub fn answered<T: Wire>((code, fields): &Answer, what: &str) -> Result<T, Failed> {
    let value = protocol::Reader::new(fields).get();
    match (code, value) {
        (0, Ok(value)) => Ok(value),
        (code, _) => Err(format!("{what}: the appliance there answers CUDA error {code}")),
    }
}
