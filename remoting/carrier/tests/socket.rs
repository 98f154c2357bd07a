//! Tests of the kernel's behaviour towards a peer that does not read.

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::tcp_user_timeout;

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

#[test]
fn a_peer_that_does_not_read_is_given_time_until_it_reads() {
    let (mut near, mut far) = pair();
    carrier::configure(&near).unwrap();
    assert!(!carrier::follow_window(&near));
    assert_eq!(tcp_user_timeout(&near).unwrap(), 8_000);

    near.set_nonblocking(true).unwrap();
    let full = loop {
        if let Err(error) = near.write(&[7; 65536]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    // The last segments may still be in flight.
    while !carrier::follow_window(&near) {
        std::thread::yield_now();
    }
    assert_eq!(tcp_user_timeout(&near).unwrap(), 0);

    let reader = std::thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()));
    while carrier::follow_window(&near) {
        std::thread::yield_now();
    }
    assert_eq!(tcp_user_timeout(&near).unwrap(), 8_000);
    drop(near);
    reader.join().unwrap().unwrap();
}

#[test]
fn a_socket_that_is_not_tcp_is_left_alone() {
    let (near, _far) = UnixStream::pair().unwrap();
    assert!(!carrier::follow_window(&near));
    assert!(carrier::configure(&near).is_err());
}
