//! Connections in an acceptor of offload. It has no network: the gateway of its appliance hands it connections, one for each
//! packet that it sends on a socket which it was started with.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags};
use rustix::net::{recvmsg, sendmsg};

use super::TIMEOUT;
use crate::sys;

/// Asks on `socket` for a connection to the appliance. Any thread may, at any time: all answers are alike.
///
/// # Errors
/// As sendmsg and recvmsg; `ConnectionAborted` if the answer has no connection.
pub fn connection(socket: RawFd) -> io::Result<UnixStream> {
    let socket = sys::inherited(socket)?;
    set_socket_timeout(socket, Timeout::Recv, Some(TIMEOUT))?;
    let question = [IoSlice::new(b"{}")];
    retry_on_intr(|| sendmsg(socket, &question, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut answer = [0; 16];
    match recvmsg(socket, &mut [IoSliceMut::new(&mut answer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
        Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
        received => received?,
    };
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let first: Option<OwnedFd> = descriptors.flatten().next();
    first.map(UnixStream::from).ok_or_else(|| io::ErrorKind::ConnectionAborted.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, AsRawFd};

    use rustix::net::{AddressFamily, SendAncillaryMessage, SocketFlags, SocketType, recv, socketpair};

    use super::*;

    fn packets() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn each_question_has_a_connection_as_its_answer() {
        let (ours, theirs) = packets();
        let (mut near, far) = UnixStream::pair().unwrap();
        let gateway = std::thread::spawn(move || {
            let mut question = [0; 16];
            recv(&theirs, &mut question, RecvFlags::empty()).unwrap();
            let descriptors = [far.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            sendmsg(&theirs, &[IoSlice::new(b"{}")], &mut ancillary, SendFlags::empty()).unwrap();
        });
        let mut given = connection(ours.as_raw_fd()).unwrap();
        gateway.join().unwrap();
        given.write_all(b"x").unwrap();
        let mut byte = [0];
        near.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
    }

    #[test]
    fn a_gateway_that_is_gone_is_an_error() {
        let (ours, theirs) = packets();
        drop(theirs);
        assert!(connection(ours.as_raw_fd()).is_err());
        assert!(connection(-1).is_err());
    }
}
