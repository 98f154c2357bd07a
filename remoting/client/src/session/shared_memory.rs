//! Page-locked memory that a worker on this machine shares: copies say where in it the bytes lie.

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
    /// Sets the way to reach the worker for memory that both share.
    pub fn share_memory_by(&self, connect: impl Fn() -> Option<OwnedFd> + Send + Sync + 'static) {
        let _ = self.shared.connect.set(Box::new(connect));
    }

    /// Connects for memory at once: by the end of that connection a worker on this machine sees the end of this
    /// process, whatever network the session goes by.
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

    /// Backs addresses of this process with zeroed memory that the worker has too. Returns false if the worker is
    /// elsewhere, or there is no memory; nothing was changed then.
    ///
    /// # Safety
    /// As [`sys::back`].
    pub unsafe fn back_shared(&self, context: u64, address: usize, size: usize) -> bool {
        if (size as u64) < LEAST || self.wire < since(CopyToDeviceShared::CODE) {
            return false;
        }
        let mut channel = self.channel();
        let Channel::Open(open) = &*channel else { return false };
        let Ok(file) = file(size as u64) else { return false };
        // SAFETY: as the caller vouches; the file has this size for good.
        if !unsafe { sys::back_with(address, size, file.as_fd(), 0) } {
            return false;
        }
        let memory = SharedMemory { context, address: address as u64, size: size as u64 };
        // The worker waits for the context, whose creation may not have been sent.
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

    /// Ends sharing of the memory that starts there. No copy uses it any more.
    pub fn end_shared(&self, address: usize) {
        if lock(&self.shared.pieces).remove(&address).is_none() {
            return;
        }
        let mut channel = self.shared.channel.lock();
        let Channel::Open(open) = &*channel else { return };
        let gone = SharedMemory { context: 0, address: address as u64, size: 0 }.encode();
        // A partial write is a failure, too.
        if !send(open, &gone, SendFlags::NOSIGNAL).is_ok_and(|sent| sent == gone.len()) {
            self.share_nothing(&mut channel);
        }
    }

    /// Checks the sharing after a reconnect, which may have led to another worker: then nothing is shared with it. For
    /// the reader, which may not wait.
    pub(super) fn check_shared(&self) {
        let Some(mut channel) = self.shared.channel.try_lock() else { return };
        let Channel::Open(open) = &*channel else { return };
        if recv(open, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) != Err(Errno::AGAIN) {
            self.share_nothing(&mut channel);
        }
    }

    /// Stops sharing: all copies go by the wire from now on.
    fn share_nothing(&self, channel: &mut Channel) {
        if let Channel::Open(open) = std::mem::take(channel) {
            *channel = Channel::Over { _kept: Some(open) };
        }
        self.shared.any.store(false, SeqCst);
        lock(&self.shared.pieces).clear();
    }

    /// Returns where the bytes of a copy lie, if the worker has them too and the copy is large enough.
    pub(super) fn shared_place(&self, host: &HostBox) -> Option<u64> {
        if !self.shared.any.load(SeqCst) || host.packed() < LEAST {
            return None;
        }
        let (start, end) = host.span();
        let pieces = lock(&self.shared.pieces);
        let (_, last) = pieces.range(..=start).next_back()?;
        (end <= *last && (end - start) as u64 == host.packed()).then_some(start as u64)
    }

    /// Whether the worker has this memory, too.
    pub fn shares(&self, host: &HostBox) -> bool {
        self.shared_place(host).is_some()
    }
}
