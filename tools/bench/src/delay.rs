//! A slow network: a TCP proxy that forwards every byte after a fixed delay.
//!
//! Each direction of a connection has a thread that reads and adds a time stamp, and a thread that writes when the
//! delay has passed. Bytes in flight wait in parallel, so the delay does not reduce the bandwidth.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::options::Route;

const PIECE: usize = 256 << 10;
/// The maximum number of bytes in flight: 5 GB/s times the longest measured delay, 10 ms, with some reserve.
const UNDER_WAY: usize = 64 << 20;

/// Accepts connections on all routes, without end.
///
/// # Errors
/// If the proxy cannot listen on an address.
pub fn serve(delay: Duration, routes: &[Route]) -> Result<(), String> {
    let listeners = routes
        .iter()
        .map(|route| {
            TcpListener::bind(route.listen).map_err(|error| format!("cannot listen on {}: {error}", route.listen))
        })
        .collect::<Result<Vec<_>, _>>()?;
    println!("ready");
    thread::scope(|scope| {
        for (listener, route) in listeners.iter().zip(routes) {
            scope.spawn(move || accept(listener, route, delay));
        }
    });
    Ok(())
}

fn accept(listener: &TcpListener, route: &Route, delay: Duration) {
    for near in listener.incoming().flatten() {
        // If the target cannot be reached, the client's connection is closed.
        if let Ok(far) = TcpStream::connect(route.target) {
            let _ = join(near, far, delay);
        }
    }
}

fn join(near: TcpStream, far: TcpStream, delay: Duration) -> io::Result<()> {
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_again, far_again) = (near.try_clone()?, far.try_clone()?);
    pass(near, far, delay);
    pass(far_again, near_again, delay);
    Ok(())
}

/// Forwards one direction of a connection.
fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let line = Arc::new(Line::default());
    let end = Arc::clone(&line);
    thread::spawn(move || {
        let mut piece = vec![0; PIECE];
        while let Ok(count @ 1..) = from.read(&mut piece)
            && end.put(Instant::now() + delay, &piece[..count])
        {}
        end.put(Instant::now() + delay, &[]);
        // The writer may have ended while the other end still sends.
        let _ = from.shutdown(Shutdown::Read);
    });
    thread::spawn(move || {
        while let Some((due, bytes)) = line.take() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if bytes.is_empty() || to.write_all(&bytes).is_err() {
                break;
            }
        }
        line.close();
        let _ = to.shutdown(Shutdown::Write);
    });
}

/// The bytes in flight of one direction. Each piece has the time at which it is due; an empty piece is EOF.
#[derive(Default)]
struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    closed: bool,
}

impl Line {
    /// Appends a piece, and blocks while too many bytes are in flight. Returns false if the writer has ended.
    fn put(&self, due: Instant, bytes: &[u8]) -> bool {
        let mut state = self.wait(|state| state.bytes < UNDER_WAY || state.closed);
        state.bytes += bytes.len();
        state.pieces.push_back((due, bytes.to_vec()));
        self.changed.notify_all();
        !state.closed
    }

    fn take(&self) -> Option<(Instant, Vec<u8>)> {
        let mut state = self.wait(|state| !state.pieces.is_empty());
        let piece = state.pieces.pop_front();
        state.bytes -= piece.as_ref().map_or(0, |(_, bytes)| bytes.len());
        self.changed.notify_all();
        piece
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn wait(&self, ready: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.lock(), |state| !ready(state)).unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::noise;

    const DELAY: Duration = Duration::from_millis(50);

    /// Returns a connection through the proxy, and its other end.
    fn connection() -> (TcpStream, TcpStream) {
        let (entry, target) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let route = Route { listen: entry.local_addr().unwrap(), target: target.local_addr().unwrap() };
        let near = TcpStream::connect(route.listen).unwrap();
        thread::spawn(move || accept(&entry, &route, DELAY));
        (near, target.accept().unwrap().0)
    }

    #[test]
    fn every_byte_arrives_in_order_and_no_sooner_than_it_should() {
        let (near, far) = connection();
        for (mut from, mut to) in [(&near, &far), (&far, &near)] {
            let sent = noise(1 << 20);
            let mut got = vec![0; sent.len()];
            let started = Instant::now();
            thread::scope(|scope| {
                scope.spawn(|| from.write_all(&sent).unwrap());
                to.read_exact(&mut got).unwrap();
            });
            assert!(started.elapsed() >= DELAY);
            assert!(got == sent);
        }
    }

    #[test]
    fn pieces_wait_side_by_side() {
        let (mut near, mut far) = connection();
        let reader = thread::spawn(move || {
            let mut arrived = Vec::new();
            let mut byte = [0];
            while let Ok(1) = far.read(&mut byte) {
                arrived.push(Instant::now());
            }
            arrived
        });
        let mut sent = Vec::new();
        for _ in 0..100 {
            sent.push(Instant::now());
            near.write_all(&[1]).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        drop(near);
        let arrived = reader.join().unwrap();
        assert_eq!(arrived.len(), 100);
        assert!(arrived.iter().zip(&sent).all(|(there, here)| *there - *here >= DELAY));
        // Sequential delays would take 100 times the delay, 5 s.
        assert!(arrived[99] - arrived[0] < 50 * DELAY);
    }

    #[test]
    fn an_end_that_closes_is_seen_by_the_other_after_its_last_bytes() {
        let (mut near, mut far) = connection();
        near.write_all(b"last words").unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        let mut got = String::new();
        far.read_to_string(&mut got).unwrap();
        assert_eq!(got, "last words");
        far.write_all(b"answer").unwrap();
        drop(far);
        got.clear();
        near.read_to_string(&mut got).unwrap();
        assert_eq!(got, "answer");
    }
}
