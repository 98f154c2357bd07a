//! Copies between the program's memory and the device.

use super::{HostBox, Pending, Session, Slot, lock};
use crate::call::Code;
use crate::{log, stats, sys};
use driverapi::errors::CUDA_ERROR_OUT_OF_MEMORY;
use protocol::{
    BULK_CHUNK, CopyToDevice, CopyToDeviceLate, CopyToHost, Extent, Message, NeedBytes, SEND_WINDOW, SupplyBytes,
};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc;

/// The device side of a copy.
#[derive(Clone)]
pub struct DeviceBox {
    pub context: u64,
    pub address: u64,
    pub extent: Extent,
}

/// Bytes that the worker asked for.
pub struct Supply {
    command: u64,
    from: HostBox,
    offset: u64,
    len: u64,
}

/// The packed bytes from `offset` on: where they lie, or gathered if they lie apart.
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
    /// Sends the bytes as they are now; returns when the program may change them.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn copy_to_device(&self, lane: u64, to: &DeviceBox, from: &HostBox) -> Result<(), Code> {
        let total = from.packed();
        let mut offset = 0;
        while offset < total {
            let len = (total - offset).min(BULK_CHUNK as u64);
            self.reserve_window(len)?;
            let message = CopyToDevice { context: to.context, address: to.address, extent: to.extent.clone(), offset };
            self.post_tail(lane, &message, &gather(from, offset, len))?;
            offset += len;
        }
        self.note_work();
        Ok(())
    }

    /// Lets the worker ask for the bytes when the stream gets there.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn copy_to_device_late(self: &Arc<Self>, lane: u64, to: &DeviceBox, from: &HostBox) -> Result<(), Code> {
        self.start_supplying()?;
        let message = CopyToDeviceLate { context: to.context, address: to.address, extent: to.extent.clone() };
        self.append(CopyToDeviceLate::CODE, lane, &[], Some(Pending::Supply(*from)), false, |w| {
            w.put(&message);
        })?;
        self.note_work();
        Ok(())
    }

    /// Copies and waits until the bytes have landed.
    ///
    /// # Errors
    /// The copy's code.
    pub fn copy_to_host(&self, lane: u64, to: &HostBox, from: &DeviceBox) -> Result<(), Code> {
        let slot = Slot::new();
        self.ask_for_bytes(lane, to, from, Some(Arc::clone(&slot)))?;
        stats::round_trip();
        self.wait(&slot)?.success().map(drop)
    }

    /// Copies; the bytes land before anything that completes later in stream order.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn copy_to_host_later(&self, lane: u64, to: &HostBox, from: &DeviceBox) -> Result<(), Code> {
        self.ask_for_bytes(lane, to, from, None)
    }

    fn ask_for_bytes(&self, lane: u64, to: &HostBox, from: &DeviceBox, slot: Option<Arc<Slot>>) -> Result<(), Code> {
        let message = CopyToHost { context: from.context, address: from.address, extent: from.extent.clone() };
        let flush = slot.is_some();
        self.append(CopyToHost::CODE, lane, &[], Some(Pending::Landing(*to, slot)), flush, |w| {
            w.put(&message);
        })?;
        self.note_work();
        Ok(())
    }

    /// Is there room to send this much at once?
    pub fn has_window(&self, len: u64) -> bool {
        let window = lock(&self.window);
        window.outstanding == 0 || window.outstanding + len <= SEND_WINDOW
    }

    fn reserve_window(&self, len: u64) -> Result<(), Code> {
        loop {
            let slot = Slot::new();
            {
                let mut window = lock(&self.window);
                if window.outstanding == 0 || window.outstanding + len <= SEND_WINDOW {
                    window.outstanding += len;
                    return Ok(());
                }
                window.waiters.push(Arc::clone(&slot));
            }
            self.flush()?;
            self.wait(&slot)?;
        }
    }

    /// Has bytes sent by a thread that may block, which the reader may not.
    pub(super) fn supply(&self, command: u64, from: HostBox, need: NeedBytes) -> Result<(), String> {
        let (offset, len) = (need.offset, need.len);
        if offset.checked_add(len).is_none_or(|end| end > from.packed()) {
            return Err("the appliance asked for more bytes than a copy has".into());
        }
        let supplies = self.supplies.get().ok_or("the appliance asked for bytes too early")?;
        supplies.send(Supply { command, from, offset, len }).map_err(|_| "the sending thread is gone".to_owned())
    }

    fn start_supplying(self: &Arc<Self>) -> Result<(), Code> {
        let (sender, receiver) = mpsc::channel::<Supply>();
        if self.supplies.set(sender).is_err() {
            return Ok(());
        }
        let session = Arc::clone(self);
        sys::spawn("remotegpu-supply", move || session.supply_in_background(&receiver)).map_err(|error| {
            log::error(&format!("cannot start a thread: {error}"));
            CUDA_ERROR_OUT_OF_MEMORY
        })
    }

    fn supply_in_background(&self, jobs: &mpsc::Receiver<Supply>) {
        for job in jobs {
            let end = job.offset + job.len;
            let mut offset = job.offset;
            while offset < end {
                let len = (end - offset).min(BULK_CHUNK as u64);
                let message = SupplyBytes { command: job.command, offset };
                if self.post_tail(0, &message, &gather(&job.from, offset, len)).is_err() {
                    return;
                }
                offset += len;
            }
            if self.flush().is_err() {
                return;
            }
            if end == job.from.packed() {
                lock(&self.pending).remove(&job.command);
            }
        }
    }
}
