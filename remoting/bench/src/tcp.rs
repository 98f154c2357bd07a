//! The reference: what plain TCP does between two processes of this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::samples::{gigabits_per_second, median_seconds, noise};

const SMALL: usize = 64;
const BULK: usize = 256 << 20;

pub struct Figures {
    pub round_trip_us: f64,
    pub gigabits_per_second: f64,
}

/// A connection to a process that sends small messages back and acknowledges bulk with one byte.
pub struct Reference {
    stream: TcpStream,
    peer: Child,
}

impl Reference {
    /// # Errors
    /// If this program cannot start itself.
    pub fn start() -> Result<Reference, String> {
        let program = std::env::current_exe().map_err(failed)?;
        let mut peer = Command::new(program)
            .arg("--tcp-peer")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut line = String::new();
        let output = peer.stdout.take().ok_or("the TCP peer has no output")?;
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
        let port: u16 = line.trim().parse().map_err(failed)?;
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Reference { stream, peer })
    }

    /// # Errors
    /// If the connection breaks.
    pub fn measure(&mut self, quick: bool) -> Result<Figures, String> {
        let (times, bulk) = if quick { (1000, BULK / 8) } else { (10_000, BULK) };
        let mut message = [0; SMALL];
        let round_trip = median_seconds(times, || {
            self.request(SMALL)?;
            self.stream.read_exact(&mut message).map_err(failed)
        })?;
        let bytes = noise(bulk);
        let seconds = median_seconds(3, || {
            self.request(bulk)?;
            self.stream.write_all(&bytes).map_err(failed)?;
            self.stream.read_exact(&mut [0]).map_err(failed)
        })?;
        Ok(Figures { round_trip_us: round_trip * 1e6, gigabits_per_second: gigabits_per_second(bulk, seconds) })
    }

    /// The first 8 bytes of a message say how long it is; a small one is sent whole, of a large one this is extra.
    fn request(&mut self, len: usize) -> Result<(), String> {
        let mut message = [0; SMALL];
        message[..8].copy_from_slice(&(len as u64).to_le_bytes());
        self.stream.write_all(&message).map_err(failed)
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // It ends by itself when the connection does; this only keeps it from being left behind.
        let _ = self.peer.kill();
        let _ = self.peer.wait();
    }
}

/// The other end, in a process of its own.
///
/// # Errors
/// If there is no port to be had.
pub fn serve_as_peer() -> Result<(), String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    println!("{}", listener.local_addr().map_err(failed)?.port());
    let (mut stream, _) = listener.accept().map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let mut buffer = vec![0; 1 << 20];
    let mut message = [0; SMALL];
    while stream.read_exact(&mut message).is_ok() {
        let mut len = [0; 8];
        len.copy_from_slice(&message[..8]);
        let mut left = u64::from_le_bytes(len) as usize;
        if left == SMALL {
            stream.write_all(&message).map_err(failed)?;
            continue;
        }
        while left > 0 {
            let room = left.min(buffer.len());
            left -= stream.read(&mut buffer[..room]).ok().filter(|got| *got > 0).ok_or("the benchmark left")?;
        }
        stream.write_all(&[1]).map_err(failed)?;
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> String {
    format!("the raw TCP reference failed: {error}")
}
