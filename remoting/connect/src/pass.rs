//! Forwards bytes between the program and the acceptor.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

const PIECE: usize = 256 << 10;
/// The time for which the acceptor may still send after the program has closed its end.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The interval of the check for an acceptor that does not read.
const WINDOW_EVERY: Duration = Duration::from_secs(1);

/// The end that closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Program,
    Acceptor,
}

/// Forwards bytes until either end closes, and returns that end. `connection` may be a socket of any family. `program`
/// is left open.
pub fn both_ways(program: &UnixStream, connection: UnixStream) -> Ended {
    let clones = (program.try_clone(), program.try_clone(), connection.try_clone(), connection.try_clone());
    let (Ok(from_program), Ok(to_program), Ok(from_acceptor), Ok(socket)) = clones else { return Ended::Program };
    let (sender, ended) = mpsc::channel();
    let up = sender.clone();
    thread::spawn(move || {
        // Send this before the acceptor gets EOF, so that the acceptor never counts as the first to close.
        let _ = up.send(if copy(from_program, &connection) { Ended::Program } else { Ended::Acceptor });
        let _ = connection.shutdown(Shutdown::Write);
    });
    thread::spawn(move || {
        let _ = sender.send(if copy(from_acceptor, &to_program) { Ended::Acceptor } else { Ended::Program });
    });
    let first = loop {
        match ended.recv_timeout(WINDOW_EVERY) {
            Err(RecvTimeoutError::Timeout) => drop(carrier::follow_window(&socket)),
            ended => break ended.unwrap_or(Ended::Program),
        }
    };
    if first == Ended::Program {
        // The last bytes are in flight; the acceptor closes after it has received them.
        let _ = ended.recv_timeout(LAST_WORDS);
    }
    first
}

/// Copies until an end closes. Returns true if `from` closed, and false if `to` accepts no more bytes.
fn copy(mut from: UnixStream, mut to: &UnixStream) -> bool {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece) {
            Ok(count @ 1..) if to.write_all(&piece[..count]).is_ok() => {}
            Ok(1..) => return false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::time::Instant;

    use rustix::net::sockopt::tcp_user_timeout;

    use super::*;

    #[test]
    fn bytes_pass_both_ways_until_an_end_closes() {
        let (mut program, inner) = UnixStream::pair().unwrap();
        let (far, mut acceptor) = UnixStream::pair().unwrap();
        let passing = thread::spawn(move || both_ways(&inner, far));
        let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i >> 7) as u8).collect();
        let expected = sent.clone();
        let echo = thread::spawn(move || {
            let mut got = vec![0; sent.len()];
            acceptor.read_exact(&mut got).unwrap();
            acceptor.write_all(&got).unwrap();
            // The program closes its sending side first, and still receives the acceptor's later bytes.
            assert_eq!(acceptor.read(&mut [0]).unwrap(), 0);
            acceptor.write_all(b"bye").unwrap();
        });
        program.write_all(&expected).unwrap();
        let mut got = vec![0; expected.len()];
        program.read_exact(&mut got).unwrap();
        assert!(got == expected);
        program.shutdown(Shutdown::Write).unwrap();
        let mut last = String::new();
        program.read_to_string(&mut last).unwrap();
        assert_eq!(last, "bye");
        echo.join().unwrap();
        assert_eq!(passing.join().unwrap(), Ended::Program);
    }

    #[test]
    fn an_acceptor_that_does_not_read_is_waited_for() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        carrier::configure(&near).unwrap();
        let (seen, mut acceptor) = (near.try_clone().unwrap(), listener.accept().unwrap().0);
        let (mut program, inner) = UnixStream::pair().unwrap();
        // Reads and writes use the descriptor; its family does not matter.
        let passing = thread::spawn(move || both_ways(&inner, OwnedFd::from(near).into()));
        let writing = thread::spawn(move || program.write_all(&vec![7; 16 << 20]).unwrap());
        let begun = Instant::now();
        while tcp_user_timeout(&seen).unwrap() != 0 {
            assert!(begun.elapsed() < Duration::from_secs(6), "the connection would be lost after 8 s");
            thread::sleep(Duration::from_millis(10));
        }
        drop(seen);
        assert_eq!(std::io::copy(&mut acceptor, &mut std::io::sink()).unwrap(), 16 << 20);
        writing.join().unwrap();
        drop(acceptor);
        assert_eq!(passing.join().unwrap(), Ended::Program);
    }

    #[test]
    fn it_ends_when_the_acceptor_is_gone() {
        let (_program, inner) = UnixStream::pair().unwrap();
        let (far, acceptor) = UnixStream::pair().unwrap();
        drop(acceptor);
        assert_eq!(both_ways(&inner, far), Ended::Acceptor);
    }
}
