//! The reference measurement: plain TCP, or a Unix socket, between two processes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::options::Options;
use crate::samples::{Repeat, gigabits_per_second, median_seconds, noise};

/// The address of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    /// A Unix socket.
    Path(PathBuf),
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if text.starts_with('/') {
            return Ok(Address::Path(text.into()));
        }
        text.parse().map(Address::Tcp).map_err(|_| format!("{text:?} is neither IP:PORT nor the path of a socket"))
    }
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

fn connect(address: &Address) -> io::Result<Box<dyn Stream>> {
    match address {
        Address::Path(path) => Ok(Box::new(UnixStream::connect(path)?)),
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
    }
}

const SMALL: usize = 64;
/// The size of a message in bytes, about the size of a launch on the wire.
const MESSAGE: usize = 128;

/// The kinds of request to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The peer returns messages of `SMALL` bytes, until one that begins with `LAST`.
    Echo = 1,
    /// The peer returns one byte when it has received all bytes.
    Put = 2,
    /// The peer sends the bytes.
    Get = 3,
}

const LAST: u8 = 0xff;

struct Request {
    kind: Kind,
    len: usize,
}

impl Request {
    const BYTES: usize = 16;
    const MAX_LEN: u64 = 1 << 30;

    fn to_bytes(&self) -> [u8; Self::BYTES] {
        (self.kind as u128 | (self.len as u128) << 64).to_le_bytes()
    }

    fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Request> {
        let both = u128::from_le_bytes(bytes);
        let kind = [Kind::Echo, Kind::Put, Kind::Get].into_iter().find(|kind| *kind as u64 == both as u64)?;
        let len = u64::try_from(both >> 64).ok().filter(|len| *len <= Self::MAX_LEN)?;
        Some(Request { kind, len: len as usize })
    }
}

/// The figures, each with its name in the output.
pub type Figures = [(&'static str, f64); 4];

/// A connection to the peer, and the peer if this program started it.
pub struct Reference {
    stream: Box<dyn Stream>,
    peer: Option<Child>,
    bytes: Vec<u8>,
}

impl Reference {
    /// Connects to the peer that `options` name, or starts one in a new process.
    ///
    /// # Errors
    /// If the peer cannot be reached, or cannot be started.
    pub fn start(options: &Options) -> Result<Reference, String> {
        let (peer, address) = match &options.reference {
            Some(address) => (None, address.clone()),
            None => start_peer().map(|(peer, address)| (Some(peer), address))?,
        };
        let stream = connect(&address).map_err(failed)?;
        Ok(Reference { stream, peer, bytes: noise(options.bulk()) })
    }

    /// Measures all figures of the reference.
    ///
    /// # Errors
    /// If the connection breaks.
    pub fn measure(&mut self, options: &Options) -> Result<Figures, String> {
        let bulk = self.bytes.len();
        let round_trip = self.round_trip(options.repeat(10_000)).map_err(failed)?;
        let message = self.message(options.repeat(100_000).times).map_err(failed)?;
        let put = median_seconds(options.repeat(5), || self.put(bulk, bulk).map_err(failed))?;
        let get = median_seconds(options.repeat(5), || self.get().map_err(failed))?;
        Ok([
            ("raw_tcp_rtt_us", round_trip * 1e6),
            ("raw_tcp_message_us", message * 1e6),
            ("raw_tcp_put_gbps", gigabits_per_second(bulk, put)),
            ("raw_tcp_get_gbps", gigabits_per_second(bulk, get)),
        ])
    }

    fn ask(&mut self, kind: Kind, len: usize) -> io::Result<()> {
        self.stream.write_all(&Request { kind, len }.to_bytes())
    }

    fn round_trip(&mut self, repeat: Repeat) -> io::Result<f64> {
        self.ask(Kind::Echo, 0)?;
        let mut message = [0; SMALL];
        let mut once = |first| {
            message[0] = first;
            self.stream.write_all(&message)?;
            self.stream.read_exact(&mut message)
        };
        let seconds = median_seconds(repeat, || once(0).map_err(failed)).map_err(io::Error::other)?;
        once(LAST)?;
        Ok(seconds)
    }

    /// Returns the seconds for each of many messages. Each is sent by its own write, and none is answered.
    fn message(&mut self, times: usize) -> io::Result<f64> {
        let started = Instant::now();
        self.put(MESSAGE * times, MESSAGE)?;
        Ok(started.elapsed().as_secs_f64() / times as f64)
    }

    fn put(&mut self, len: usize, piece: usize) -> io::Result<()> {
        self.ask(Kind::Put, len)?;
        for bytes in self.bytes[..len].chunks(piece) {
            self.stream.write_all(bytes)?;
        }
        self.stream.read_exact(&mut [0])
    }

    fn get(&mut self) -> io::Result<()> {
        self.ask(Kind::Get, self.bytes.len())?;
        self.stream.read_exact(&mut self.bytes)
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if let Some(peer) = &mut self.peer {
            // The peer also ends at EOF of its input; this makes sure that it ends now.
            let _ = peer.kill();
            let _ = peer.wait();
        }
    }
}

fn start_peer() -> Result<(Child, Address), String> {
    let program = std::env::current_exe().map_err(failed)?;
    let mut peer = Command::new(program)
        .args(["tcp-peer", "127.0.0.1:0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    let output = peer.stdout.take().ok_or("the TCP peer has no output")?;
    BufReader::new(output).read_line(&mut line).map_err(failed)?;
    Ok((peer, line.trim().parse()?))
}

/// Runs the other end: accepts one connection after the other, without end. Prints its address.
///
/// # Errors
/// If it cannot listen on the address.
pub fn serve_as_peer(address: &Address) -> Result<(), String> {
    let mut memory = Vec::new();
    // Errors of a connection are ignored, because the other end reports them.
    match address {
        Address::Path(path) => {
            let listener = UnixListener::bind(path).map_err(failed)?;
            println!("{}", path.display());
            loop {
                let _ = answer(listener.accept().map_err(failed)?.0, &mut memory);
            }
        }
        Address::Tcp(address) => {
            let listener = TcpListener::bind(address).map_err(failed)?;
            println!("{}", listener.local_addr().map_err(failed)?);
            loop {
                let (stream, _) = listener.accept().map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                let _ = answer(stream, &mut memory);
            }
        }
    }
}

/// Answers requests until the connection ends. `memory` is the source and target of all bytes, as on an appliance.
fn answer(mut stream: impl Stream, memory: &mut Vec<u8>) -> io::Result<()> {
    let mut request = [0; Request::BYTES];
    loop {
        stream.read_exact(&mut request)?;
        let Some(Request { kind, len }) = Request::from_bytes(request) else { return Ok(()) };
        if memory.len() < len {
            *memory = noise(len);
        }
        match kind {
            Kind::Echo => {
                let mut message = [0; SMALL];
                while message[0] != LAST {
                    stream.read_exact(&mut message)?;
                    stream.write_all(&message)?;
                }
            }
            Kind::Put => {
                stream.read_exact(&mut memory[..len])?;
                stream.write_all(&[1])?;
            }
            Kind::Get => stream.write_all(&memory[..len])?,
        }
    }
}

fn failed(error: impl std::fmt::Display) -> String {
    format!("the reference connection failed: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        let bytes = Request { kind: Kind::Get, len: 4096 }.to_bytes();
        let Request { kind, len } = Request::from_bytes(bytes).unwrap();
        assert_eq!((kind, len), (Kind::Get, 4096));
    }

    #[test]
    fn a_request_for_something_else_or_too_much_is_none() {
        assert!(Request::from_bytes([0; 16]).is_none());
        assert!(Request::from_bytes(Request { kind: Kind::Put, len: (1 << 30) + 1 }.to_bytes()).is_none());
    }
}
