//! Connections of an offload acceptor, which has no network. It sends a packet on a socket that it inherited, and the
//! appliance's gateway answers with a connection. Programs that the acceptor starts reach this socket by a path.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use driverapi::descriptors::apart;
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags,
};
use rustix::net::{SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg};
use serde::Deserialize;

use super::limits::TIMEOUT;
use crate::program::sys;

/// The socket on which connections are requested.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Asking {
    /// The descriptor of the socket, in the acceptor and in processes that it forks.
    fd: RawFd,
    /// The path of the socket, for programs that the acceptor starts, where `fd` is another file. `None` if it may
    /// start none.
    path: Option<String>,
}

impl Asking {
    /// Requests a connection to the appliance. Several threads may call this at a time, because all answers are
    /// equivalent.
    ///
    /// # Errors
    /// Those of connect, sendmsg and recvmsg; `ConnectionAborted` if the answer contains no connection.
    pub fn connection(&self) -> io::Result<UnixStream> {
        let inherited = sys::inherited(self.fd)?;
        match (socket_type(inherited), &self.path) {
            (Ok(SocketType::SEQPACKET), _) => ask(inherited),
            (_, Some(path)) => {
                let made =
                    || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
                let socket = apart(made)?;
                rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_str())?)?;
                ask(socket)
            }
            (Err(error), None) => Err(error.into()),
            (Ok(_), None) => Err(Errno::NOTSOCK.into()),
        }
    }
}

fn ask(socket: impl AsFd) -> io::Result<UnixStream> {
    set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
    let question = [IoSlice::new(b"{}")];
    retry_on_intr(|| sendmsg(&socket, &question, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut answer = [0; 16];
    match recvmsg(&socket, &mut [IoSliceMut::new(&mut answer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
        Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
        received => received?,
    };
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let first: Option<OwnedFd> = descriptors.flatten().next();
    let first = first.ok_or(io::ErrorKind::ConnectionAborted)?;
    // The descriptor must not be 0, 1 or 2, even if one of them is free.
    Ok(fcntl_dupfd_cloexec(&first, 3)?.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use rustix::net::{SendAncillaryMessage, bind, listen, recv, socketpair};

    use super::*;

    /// Answers one request with `far`.
    fn answer(socket: &OwnedFd, far: &UnixStream) {
        let mut question = [0; 16];
        recv(socket, &mut question, RecvFlags::empty()).unwrap();
        let descriptors = [far.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(socket, &[IoSlice::new(b"{}")], &mut ancillary, SendFlags::empty()).unwrap();
    }

    fn lead(mut from: &UnixStream, mut to: &UnixStream) {
        from.write_all(b"x").unwrap();
        let mut byte = [0];
        to.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
    }

    fn packets() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn each_question_has_a_connection_as_its_answer() {
        let (ours, theirs) = packets();
        let (near, far) = UnixStream::pair().unwrap();
        let gateway = std::thread::spawn(move || answer(&theirs, &far));
        let given = Asking { fd: ours.as_raw_fd(), path: None }.connection().unwrap();
        gateway.join().unwrap();
        lead(&given, &near);
    }

    #[test]
    fn a_program_that_was_started_asks_by_the_path() {
        let path = std::env::temp_dir().join(format!("remotegpu-asking-{}", std::process::id()));
        let listening = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&listening, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listening, 1).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let gateway = std::thread::spawn(move || answer(&rustix::net::accept(&listening).unwrap(), &far));
        // In that process the descriptor number belongs to another file.
        let (other, _kept) = UnixStream::pair().unwrap();
        let asking = Asking { fd: other.as_raw_fd(), path: Some(path.display().to_string()) };
        let given = asking.connection();
        std::fs::remove_file(&path).unwrap();
        gateway.join().unwrap();
        lead(&given.unwrap(), &near);
    }

    #[test]
    fn a_gateway_that_is_gone_is_an_error() {
        let (ours, theirs) = packets();
        drop(theirs);
        for fd in [ours.as_raw_fd(), -1] {
            assert!(Asking { fd, path: None }.connection().is_err());
        }
    }
}
