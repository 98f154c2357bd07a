//! Limits of large copies on this machine: memory, page faults and sockets, and in the same run copies to and from a
//! share.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use serde_json::{Value, json};

use crate::driver::{Driver, Session};
use crate::options::Options;
use crate::processor;
use crate::samples::{median, noise};

const SIZES: [usize; 4] = [64 << 10, 1 << 20, 16 << 20, 64 << 20];
const LARGEST: usize = 64 << 20;
const STREAMS: [usize; 4] = [1, 2, 4, 8];
/// The largest number of bytes for one socket call.
const PIECE: usize = 1 << 20;
const PAGE: usize = 4096;
/// The number of measured runs for each figure. One more run before them is not counted.
const RUNS: usize = 5;

/// A figure: the throughput, and the processor time that this process used.
struct Rate {
    name: String,
    gigabytes_per_s: f64,
    cpu_s_per_gigabyte: f64,
}

/// Prints a JSON list. Ratios are relative to memcpy of the largest size.
///
/// # Errors
/// The first failure.
pub fn measure(options: &Options) -> Result<(), String> {
    let bytes = noise(LARGEST);
    let mut target = vec![1; LARGEST];
    let mut rates = Vec::new();
    for len in SIZES {
        let copy = |target: &mut Vec<u8>| {
            each(options, len, |at| {
                target[at..at + len].copy_from_slice(&bytes[at..at + len]);
                Ok(())
            })
        };
        rates.push(rate(format!("memcpy {}", named(len)), options.bulk(), || copy(&mut target))?);
    }
    let memcpy = rates[SIZES.len() - 1].gigabytes_per_s;
    rates.push(rate("page faults".into(), options.bulk(), || each(options, LARGEST, |_| fault_in()))?);
    for count in STREAMS {
        let ends = (0..count).map(|_| tcp_pair()).collect::<io::Result<Vec<_>>>().map_err(failed)?;
        rates.push(streams(format!("tcp x{count}"), options, &ends, &bytes, &mut target)?);
    }
    let ends = [UnixStream::pair().map_err(failed)?];
    rates.push(streams("unix x1".into(), options, &ends, &bytes, &mut target)?);
    let driver = Driver::load(&options.library)?;
    copies(options, &driver.start()?, &bytes, &mut target, &mut rates)?;
    println!("{:#}", rates.iter().map(|rate| rate.shown(memcpy)).collect::<Value>());
    Ok(())
}

impl Rate {
    fn shown(&self, memcpy: f64) -> Value {
        json!({
            "name": self.name,
            "gigabytes_per_s": self.gigabytes_per_s,
            "to_memcpy": self.gigabytes_per_s / memcpy,
            "cpu_s_per_gigabyte": self.cpu_s_per_gigabyte,
        })
    }
}

fn copies(
    options: &Options,
    session: &Session<'_>,
    bytes: &[u8],
    target: &mut [u8],
    rates: &mut Vec<Rate>,
) -> Result<(), String> {
    let device = session.alloc(LARGEST)?;
    for len in SIZES {
        let bulk = options.bulk().max(len);
        let size = named(len);
        let pinned = session.pinned(len)?;
        rates.push(rate(format!("pageable HtoD {size}"), bulk, || {
            each(options, len, |at| session.to_device(device + at as u64, &bytes[at..at + len]))?;
            session.synchronize()
        })?);
        rates.push(rate(format!("pageable DtoH {size}"), bulk, || {
            each(options, len, |at| session.to_host(&mut target[at..at + len], device + at as u64))
        })?);
        rates.push(rate(format!("pinned HtoD {size}"), bulk, || {
            each(options, len, |at| pinned.to_device(device + at as u64))?;
            session.synchronize()
        })?);
        rates.push(rate(format!("pinned DtoH {size}"), bulk, || {
            each(options, len, |at| pinned.to_host(device + at as u64))?;
            session.synchronize()
        })?);
    }
    session.free(device)
}

/// Calls `once` until all bytes are copied, each time with another offset within memory of the largest size.
fn each(options: &Options, len: usize, mut once: impl FnMut(usize) -> Result<(), String>) -> Result<(), String> {
    (0..(options.bulk() / len).max(1)).try_for_each(|turn| once(turn * len % LARGEST))
}

fn rate(name: String, bytes: usize, mut run: impl FnMut() -> Result<(), String>) -> Result<Rate, String> {
    run()?;
    let (mut seconds, mut processor_seconds) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let (started, before) = (Instant::now(), processor::seconds());
        run()?;
        seconds.push(started.elapsed().as_secs_f64());
        processor_seconds.push(processor::seconds() - before);
    }
    let gigabytes = bytes as f64 / 1e9;
    Ok(Rate {
        name,
        gigabytes_per_s: gigabytes / median(seconds),
        cpu_s_per_gigabyte: median(processor_seconds) / gigabytes,
    })
}

/// Maps new memory and writes each page once.
fn fault_in() -> Result<(), String> {
    let (read_write, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the mapping is new, written within its length, and unmapped before other code has its address.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), LARGEST, read_write, private, -1, 0);
        if memory == libc::MAP_FAILED {
            return Err(failed(io::Error::last_os_error()));
        }
        libc::madvise(memory, LARGEST, libc::MADV_NOHUGEPAGE);
        for at in (0..LARGEST).step_by(PAGE) {
            memory.cast::<u8>().add(at).write_volatile(1);
        }
        libc::munmap(memory, LARGEST);
    }
    Ok(())
}

/// Sends the bytes over all connections at once, with a thread for each end.
fn streams<S: Send + Sync>(
    name: String,
    options: &Options,
    ends: &[(S, S)],
    bytes: &[u8],
    target: &mut [u8],
) -> Result<Rate, String>
where
    for<'s> &'s S: Read + Write,
{
    let part = LARGEST / ends.len();
    let rounds = (options.bulk() / LARGEST).max(1);
    rate(name, rounds * LARGEST, || {
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for ((to, from), (source, sink)) in ends.iter().zip(bytes.chunks(part).zip(target.chunks_mut(part))) {
                threads.push(scope.spawn(move || repeated(rounds, || send(to, source))));
                threads.push(scope.spawn(move || repeated(rounds, || receive(from, sink))));
            }
            threads.into_iter().try_for_each(|thread| thread.join().expect("panics reach the caller").map_err(failed))
        })
    })
}

fn repeated(rounds: usize, mut once: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    (0..rounds).try_for_each(|_| once())
}

fn send(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    bytes.chunks(PIECE).try_for_each(|piece| to.write_all(piece))
}

fn receive(mut from: impl Read, bytes: &mut [u8]) -> io::Result<()> {
    bytes.chunks_mut(PIECE).try_for_each(|piece| from.read_exact(piece))
}

fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    near.set_nodelay(true)?;
    Ok((near, listener.accept()?.0))
}

fn named(len: usize) -> String {
    if len < 1 << 20 { format!("{} KiB", len >> 10) } else { format!("{} MiB", len >> 20) }
}

fn failed(error: impl std::fmt::Display) -> String {
    format!("the reference for bulk copies failed: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick() -> Options {
        Options::parse(["--quick".to_owned()].into_iter()).unwrap()
    }

    #[test]
    fn all_bytes_cross_all_connections() {
        let ends: Vec<_> = (0..4).map(|_| tcp_pair().unwrap()).collect();
        let (bytes, mut target) = (noise(LARGEST), vec![0; LARGEST]);
        let rate = streams("x".into(), &quick(), &ends, &bytes, &mut target).unwrap();
        assert!(bytes == target && rate.gigabytes_per_s > 0.0);
    }

    #[test]
    fn places_follow_each_other_and_begin_anew() {
        let mut places = Vec::new();
        let options = Options::parse(std::iter::empty()).unwrap();
        each(&options, 16 << 20, |at| {
            places.push(at >> 20);
            Ok(())
        })
        .unwrap();
        assert_eq!(places, [0, 16, 32, 48].repeat(4));
    }
}
