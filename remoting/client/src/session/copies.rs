//! Copies between the program's memory and the device.

use super::pending::{Pending, Source, Waiter};
use super::{DeviceBox, HostBox, Known, Session, Slot, lock};
use crate::Code;
use crate::locks::{Wait, assert_may_wait};
use crate::program::stats;
use protocol::{
    BULK_CHUNK, CopyToDevice, CopyToDeviceLate, CopyToDeviceShared, CopyToHost, CopyToHostShared, Message, NeedBytes,
    SEND_WINDOW, SupplyBytes,
};
use std::borrow::Cow;
use std::sync::Arc;

/// The maximum number of outstanding bytes at which a copy of the program may be sent. The worker releases the bytes of
/// the program's copies when their streams reach them, so the rest of the window is for the library's own streams.
const PROGRAM_WINDOW: u64 = SEND_WINDOW - BULK_CHUNK as u64;

/// Returns `len` packed bytes from `offset` on. Borrows them if they lie together, and copies them otherwise.
fn gather(from: &HostBox, offset: u64, len: u64) -> Cow<'static, [u8]> {
    // SAFETY: the program promised that the source of the copy is readable until the copy is complete.
    let read = |(address, count)| unsafe {
        std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(address), count)
    };
    let mut runs = from.runs(offset, len).map(read);
    match (runs.next(), runs.next()) {
        (None, _) => Cow::Borrowed(&[]),
        (Some(only), None) => Cow::Borrowed(only),
        (Some(first), Some(second)) => {
            let mut all = Vec::with_capacity(len as usize);
            all.extend_from_slice(first);
            all.extend_from_slice(second);
            runs.for_each(|run| all.extend_from_slice(run));
            Cow::Owned(all)
        }
    }
}

impl Session {
    /// Copies to the device. Returns when the program may change the source. With `may_wait` that may be only when the
    /// stream reaches the copy; otherwise the current bytes are sent at once.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn copy_to_device(
        self: &Arc<Self>,
        stream_id: u64,
        to: &DeviceBox,
        from: &HostBox,
        may_wait: bool,
    ) -> Result<(), Code> {
        let offset = self.send_by_ring(stream_id, to, from, may_wait)?;
        if offset == from.packed() || (offset == 0 && self.send_by_stripes(stream_id, to, from)?) {
            return Ok(());
        }
        let sent = self.send_pieces(stream_id, to, from, offset, Session::reserve_window);
        self.own_tails();
        sent
    }

    /// Like [`Session::copy_to_device`] without `may_wait`, for a stream of the library. Never waits for the program's
    /// streams.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn copy_to_device_of_library(
        self: &Arc<Self>,
        stream_id: u64,
        to: &DeviceBox,
        from: &HostBox,
    ) -> Result<(), Code> {
        let offset = self.send_by_ring(stream_id, to, from, false)?;
        let sent = self.send_pieces(stream_id, to, from, offset, Session::reserve_window_of_library);
        self.own_tails();
        sent
    }

    fn send_pieces(
        &self,
        stream_id: u64,
        to: &DeviceBox,
        from: &HostBox,
        mut offset: u64,
        reserve: fn(&Session, u64) -> Result<(), Code>,
    ) -> Result<(), Code> {
        let total = from.packed();
        while offset < total {
            let len = (total - offset).min(BULK_CHUNK as u64);
            reserve(self, len)?;
            let message = CopyToDevice { context: to.context, address: to.address, extent: to.extent.clone(), offset };
            match gather(from, offset, len) {
                Cow::Borrowed(piece) => self.post_borrowed(stream_id, &message, piece)?,
                Cow::Owned(piece) => self.post_tail(stream_id, &message, &piece)?,
            };
            offset += len;
        }
        self.note_work();
        Ok(())
    }

    /// Queues a copy whose bytes the worker reads when the stream reaches it: the worker requests them, or reads shared
    /// memory. The program may not change them before.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn copy_to_device_late(self: &Arc<Self>, stream_id: u64, to: &DeviceBox, from: &HostBox) -> Result<(), Code> {
        self.supply_late(stream_id, to, from, Waiter::Nobody)
    }

    /// Like [`Session::copy_to_device_late`]. `waiter` is notified when the worker has read the bytes.
    pub(super) fn supply_late(
        self: &Arc<Self>,
        stream_id: u64,
        to: &DeviceBox,
        from: &HostBox,
        waiter: Waiter,
    ) -> Result<(), Code> {
        self.start_jobs()?;
        let DeviceBox { context, address, ref extent } = *to;
        let (extent, supply) = (extent.clone(), Some(Pending::Supply(Source::Host(*from), waiter)));
        match self.shared_place(from) {
            Some(from) => {
                let message = CopyToDeviceShared { context, address, extent, from };
                self.append(CopyToDeviceShared::CODE, stream_id, &[], supply, true, |w| {
                    w.put(&message);
                })?;
            }
            None => {
                let message = CopyToDeviceLate { context, address, extent };
                self.append(CopyToDeviceLate::CODE, stream_id, &[], supply, false, |w| {
                    w.put(&message);
                })?;
            }
        }
        self.note_work();
        Ok(())
    }

    /// Copies to the program's memory and waits until all bytes have arrived.
    ///
    /// # Errors
    /// The copy's code.
    pub fn copy_to_host(self: &Arc<Self>, stream_id: u64, to: &HostBox, from: &DeviceBox) -> Result<(), Code> {
        stats::round_trip();
        if let Some(done) = self.receive_by_ring(stream_id, to, from, true) {
            return done;
        }
        if let Some(done) = self.receive_by_stripes(stream_id, to, from) {
            return done;
        }
        self.receive_alone(stream_id, to, from)
    }

    /// Like [`Session::copy_to_host`], for a stream of the library. Never waits for the program's streams.
    ///
    /// # Errors
    /// The copy's code.
    pub fn copy_to_host_of_library(
        self: &Arc<Self>,
        stream_id: u64,
        to: &HostBox,
        from: &DeviceBox,
    ) -> Result<(), Code> {
        stats::round_trip();
        let done = self.receive_by_ring(stream_id, to, from, false);
        done.unwrap_or_else(|| self.receive_alone(stream_id, to, from))
    }

    fn receive_alone(&self, stream_id: u64, to: &HostBox, from: &DeviceBox) -> Result<(), Code> {
        let slot = Slot::new();
        let command = self.ask_for_bytes(stream_id, to, from, 0, Waiter::Thread(Arc::clone(&slot)))?;
        self.wait(&slot)?.success()?;
        self.note_complete(stream_id, Known::Told, command);
        Ok(())
    }

    /// Queues a copy to the program's memory. Its bytes arrive before any later command of the stream completes.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn copy_to_host_later(&self, stream_id: u64, to: &HostBox, from: &DeviceBox) -> Result<(), Code> {
        self.ask_for_bytes(stream_id, to, from, 0, Waiter::Nobody).map(drop)
    }

    /// Requests as many bytes as `to` has. The first is at `offset` in the packed form of `from`.
    pub(super) fn ask_for_bytes(
        &self,
        stream_id: u64,
        to: &HostBox,
        from: &DeviceBox,
        offset: u64,
        waiter: Waiter,
    ) -> Result<u64, Code> {
        let DeviceBox { context, address, ref extent } = *from;
        let (extent, len) = (extent.clone(), to.packed());
        let flush = !matches!(waiter, Waiter::Nobody);
        let landing = Some(Pending::Landing(*to, waiter));
        let number = match self.shared_place(to) {
            Some(to) => {
                let message = CopyToHostShared { context, address, extent, offset, len, to };
                self.append(CopyToHostShared::CODE, stream_id, &[], landing, true, |w| {
                    w.put(&message);
                })?
            }
            None => {
                let message = CopyToHost { context, address, extent, offset, len };
                self.append(CopyToHost::CODE, stream_id, &[], landing, flush, |w| {
                    w.put(&message);
                })?
            }
        };
        self.note_work();
        Ok(number)
    }

    /// Returns whether `len` bytes of copies can be sent without waiting for the worker.
    pub fn has_window(&self, len: u64) -> bool {
        let window = lock(&self.window);
        window.has(len, PROGRAM_WINDOW)
    }

    /// Waits until `len` bytes of the program's copies can be sent.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn reserve_window(&self, len: u64) -> Result<(), Code> {
        assert_may_wait(Wait::Work);
        self.reserve(len, PROGRAM_WINDOW)
    }

    /// Waits until `len` bytes of the library's own copies can be sent, at most [`BULK_CHUNK`]. That does not depend on
    /// the program's streams, because the program's copies leave so much room.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn reserve_window_of_library(&self, len: u64) -> Result<(), Code> {
        self.reserve(len, SEND_WINDOW)
    }

    fn reserve(&self, len: u64, most: u64) -> Result<(), Code> {
        loop {
            let slot = Slot::new();
            {
                let mut window = lock(&self.window);
                if window.has(len, most) {
                    window.outstanding += len;
                    return Ok(());
                }
                window.waiters.push(Arc::clone(&slot));
            }
            self.flush()?;
            self.wait(&slot)?;
        }
    }

    /// Sends requested bytes on the session's job thread, which may block. The reader calls this and must not block.
    pub(super) fn supply(&self, command: u64, from: Source, need: &NeedBytes) -> Result<(), String> {
        let NeedBytes { offset, len } = *need;
        let packed = match &from {
            Source::Host(from) => from.packed(),
            Source::Peer(from, _) => from.packed(),
        };
        if offset.checked_add(len).is_none_or(|end| end > packed) {
            return Err("the appliance asked for more bytes than a copy has".into());
        }
        match from {
            Source::Host(from) => self.jobs.soon(move |session| session.supply_from_host(command, &from, offset, len)),
            Source::Peer(from, to) => Session::fetch(command, from, to, offset, len)?,
        }
        Ok(())
    }

    fn supply_from_host(&self, command: u64, from: &HostBox, mut offset: u64, len: u64) {
        let end = offset + len;
        while offset < end {
            let len = (end - offset).min(BULK_CHUNK as u64);
            if self.post_tail(0, &SupplyBytes { command, offset }, &gather(from, offset, len)).is_err() {
                return;
            }
            offset += len;
        }
        if self.flush().is_err() || end != from.packed() {
            return;
        }
        // The lock is released at the end of this statement. A thread that appends a command takes this lock while it
        // holds that of the outbox.
        let supplied = self.pending.lock().remove(&command);
        if let Some(Pending::Supply(_, waiter)) = supplied {
            let may_read = matches!(waiter, Waiter::Thread(_));
            waiter.supplied(0);
            // The thread that waits for this copy may be the reader, which only an arriving frame wakes.
            if may_read {
                self.probe_surely();
            }
        }
    }
}
