//! Sends and receives packets with descriptors on `SOCK_SEQPACKET` sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// Limit on a packet in bytes. The kernel truncates longer packets, which then are not valid JSON. The appliance sends
/// no such packet (`packets.py`).
const MAX_PACKET: usize = 64 << 10;

/// Sends one packet. Never waits.
///
/// # Errors
/// `WouldBlock` if the socket's queue is full. After any other error the receiver is gone.
pub fn send(socket: impl AsFd, packet: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut ancillary, flags)?;
    Ok(())
}

/// Receives one packet and its descriptors. Returns `None` if the other end is closed.
///
/// # Errors
/// `WouldBlock` if there is no packet.
pub fn receive(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut packet = vec![0; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut packet)], &mut ancillary, flags)?;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors: Vec<_> = descriptors.flatten().collect();
    if received.bytes == 0 && descriptors.is_empty() {
        return Ok(None);
    }
    packet.truncate(received.bytes);
    Ok(Some((packet, descriptors)))
}
