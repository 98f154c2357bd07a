//! Page-locked memory that the client shares with a worker on the same machine. A copy then sends only the address of
//! its bytes.

use super::parts::sharing::{Channel, LEAST, PATIENCE, file, give};
use super::{HostBox, Session, lock};
use crate::locks::Guard;
use crate::program::{process, sys};
use protocol::{CopyToDeviceShared, Message, SharedMemory, since};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;

impl Session {
    /// Sets the function that connects to the worker to share memory.
    pub fn share_memory_by(&self, connect: impl Fn() -> Option<OwnedFd> + Send + Sync + 'static) {
        let _ = self.shared.connect.set(Box::new(connect));
    }

    /// Opens the connection for shared memory now. A worker on this machine notices the end of this process by the end
    /// of this connection, even if the session uses a network.
    pub fn show_end(&self) {
        drop(self.channel());
    }

    fn channel(&self) -> Guard<'_, Channel> {
        let mut channel = self.shared.channel.lock();
        if let Channel::Unused = *channel {
            let opened = self.shared.connect.get().and_then(|connect| connect());
            let opened = opened.filter(|channel| set_socket_timeout(channel, Timeout::Recv, Some(PATIENCE)).is_ok());
            opened.iter().for_each(|channel| process::close_in_children(channel.as_raw_fd()));
            *channel = opened.map_or(Channel::Over { _kept: None }, Channel::Open);
        }
        channel
    }

    /// Backs an address range of this process with zeroed memory and offers it to the worker. Returns false, without
    /// any change, if the worker is on another machine or there is no memory. [`Session::shares`] tells whether the
    /// worker took it.
    ///
    /// # Safety
    /// Same as [`sys::back`].
    pub unsafe fn back_shared(&self, context: u64, address: usize, size: usize) -> bool {
        if (size as u64) < LEAST || self.wire < since(CopyToDeviceShared::CODE) {
            return false;
        }
        let mut channel = self.channel();
        let Channel::Open(open) = &*channel else { return false };
        let Ok(file) = file(size as u64) else { return false };
        // SAFETY: the caller vouches for the range, and the size of the file cannot change.
        if !unsafe { sys::back_with(address, size, file.as_fd(), 0) } {
            return false;
        }
        let memory = SharedMemory { context, address: address as u64, size: size as u64 };
        // The worker needs the context, and the command that creates it may still be unsent.
        match self.flush().map_err(|_| io::ErrorKind::NotConnected.into()).and_then(|()| give(open, &memory, &file)) {
            Ok(true) => {
                lock(&self.shared.pieces).insert(address, address + size);
                self.shared.any.store(true, SeqCst);
            }
            Ok(false) => {}
            Err(_) => self.share_nothing(&mut channel),
        }
        true
    }

    /// Ends the sharing of the range that starts at `address`. No copy may still use the range.
    pub fn end_shared(&self, address: usize) {
        if lock(&self.shared.pieces).remove(&address).is_none() {
            return;
        }
        let mut channel = self.shared.channel.lock();
        let Channel::Open(open) = &*channel else { return };
        let gone = SharedMemory { context: 0, address: address as u64, size: 0 }.encode();
        // A partial write counts as a failure.
        if !send(open, &gone, SendFlags::NOSIGNAL).is_ok_and(|sent| sent == gone.len()) {
            self.share_nothing(&mut channel);
        }
    }

    /// Checks whether the worker still shares memory after a reconnect. If the session has moved to another worker,
    /// sharing ends. Called by the reader, so it never blocks.
    pub(super) fn check_shared(&self) {
        let Some(mut channel) = self.shared.channel.try_lock() else { return };
        let Channel::Open(open) = &*channel else { return };
        if recv(open, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) != Err(Errno::AGAIN) {
            self.share_nothing(&mut channel);
        }
    }

    /// Ends sharing. From now on all copies are sent over the session's connection.
    fn share_nothing(&self, channel: &mut Channel) {
        if let Channel::Open(open) = std::mem::take(channel) {
            *channel = Channel::Over { _kept: Some(open) };
        }
        self.shared.any.store(false, SeqCst);
        lock(&self.shared.pieces).clear();
    }

    /// Returns the address of a copy's bytes, if the worker shares them and the copy is large enough.
    pub(super) fn shared_place(&self, host: &HostBox) -> Option<u64> {
        if !self.shared.any.load(SeqCst) || host.packed() < LEAST {
            return None;
        }
        let (start, end) = host.span();
        let pieces = lock(&self.shared.pieces);
        let (_, last) = pieces.range(..=start).next_back()?;
        (end <= *last && (end - start) as u64 == host.packed()).then_some(start as u64)
    }

    /// Returns whether the worker shares this memory.
    pub fn shares(&self, host: &HostBox) -> bool {
        self.shared_place(host).is_some()
    }
}
