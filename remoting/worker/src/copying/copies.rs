//! Copies between the client and the device, and on the device.

use crate::copying::late_copies::LateCopy;
use crate::copying::layout::{Layout, Piece};
use crate::driver::staging::Buffer;
use crate::driver::{Driver, Handle, Result};
use crate::io::frames::Payload;
use crate::memory::slabs::Memory;
use crate::order::command::{Command, Frame};
use crate::order::completions::Action;
use crate::session::commands::{Outcome, Session};
use driverapi::constants::{CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST};
use driverapi::errors::*;
use driverapi::types::{BoxEnd, CUDA_MEMCPY3D};
use protocol::{BULK_CHUNK, Consumed, CopyOnDevice, CopyToDeviceLate, Extent, Message, NeedBytes, SupplyBytes};
use std::collections::VecDeque;

/// While this many bytes wait to be sent to the client, a copy that the client does not wait for adds no more. So few
/// bytes stay in the processor's cache until they are sent.
const AHEAD: usize = 2 * BULK_CHUNK;

/// Limit on the pieces of a late copy that are requested and not yet received.
const ASKED_AHEAD: usize = 2;

fn host_side(host: Handle, piece: &Piece) -> BoxEnd {
    let (pitch, slice) = (piece.width, piece.width * piece.height);
    BoxEnd { kind: CU_MEMORYTYPE_HOST, address: host.0 as u64, pitch, slice }
}

fn device_side(address: u64, pitch: u64, slice: u64, piece: &Piece) -> Result<BoxEnd> {
    // The driver takes the distance between slices as a number of rows.
    let slice = if piece.depth == 1 { pitch * piece.height } else { slice };
    if piece.depth > 1 && slice.checked_div(pitch).unwrap_or(0) * pitch != slice {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(BoxEnd { kind: CU_MEMORYTYPE_DEVICE, address, pitch, slice })
}

fn boxed(memory: &Memory, from: &BoxEnd, to: &BoxEnd, piece: &Piece) -> CUDA_MEMCPY3D {
    let mut copy = CUDA_MEMCPY3D::between(to, from, [piece.width, piece.height, piece.depth]);
    memory.name_arrays(&mut copy);
    copy
}

/// The device side of a copy, in device memory or in an array.
pub struct Target {
    pub address: u64,
    pub layout: Layout,
    pub stream: Handle,
}

impl Target {
    pub fn to_device(&self, driver: &Driver, memory: &Memory, piece: &Piece, host: Handle) -> Result<()> {
        let device = self.address + piece.device;
        if piece.is_linear() && !memory.is_array(device) {
            return driver.copy_to_device(device, host, piece.width as usize, self.stream);
        }
        let target = device_side(device, self.layout.pitch, self.layout.slice, piece)?;
        driver.copy_3d(&boxed(memory, &host_side(host, piece), &target, piece), self.stream)
    }

    pub fn to_host(&self, driver: &Driver, memory: &Memory, piece: &Piece, host: Handle) -> Result<()> {
        let device = self.address + piece.device;
        if piece.is_linear() && !memory.is_array(device) {
            return driver.copy_to_host(host, device, piece.width as usize, self.stream);
        }
        let source = device_side(device, self.layout.pitch, self.layout.slice, piece)?;
        driver.copy_3d(&boxed(memory, &source, &host_side(host, piece), piece), self.stream)
    }
}

impl Session {
    /// Returns the layout of a box in the session's memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the box is not entirely in memory of the session.
    pub fn target(&self, address: u64, extent: &Extent) -> Result<Layout> {
        let layout = Layout::new(extent)?;
        self.memory.check(address, layout.span())?;
        Ok(layout)
    }

    /// Notifies the client that `bytes` of its send window are free again, for a command that never got a buffer.
    pub fn consumed(&mut self, bytes: u64) {
        self.out.push(Consumed::CODE, 0, &Consumed { bytes }, &[]);
    }

    /// Takes a page-locked buffer of the context. Returns `None` if no buffer is free; then a helper is allocating
    /// more.
    pub fn buffer(&mut self, context: u64, len: usize) -> Result<Option<Buffer>> {
        let buffer = self.contexts.get(context)?.staging.take(len);
        if buffer.is_none() {
            self.grow_staging(context, len);
        }
        Ok(buffer)
    }

    /// Copies `len` bytes, which begin at offset `from` of the buffer, to the packed box at `offset`, in the stream.
    /// Operations that the driver has accepted are counted even if a later one fails.
    pub fn send(
        &mut self,
        stream_id: u64,
        target: &Target,
        offset: u64,
        buffer: &Buffer,
        from: usize,
        len: usize,
    ) -> Result<()> {
        for piece in target.layout.pieces(offset, len as u64)? {
            let host =
                buffer.address(from + piece.host as usize, piece.bytes() as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            target.to_device(&self.driver, &self.memory, &piece, host)?;
            self.issued(stream_id);
        }
        Ok(())
    }

    pub fn copy_to_device(&mut self, frame: &mut Frame) -> Result<Outcome> {
        let Command::CopyToDevice(c) = &frame.command else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let (context, address, offset) = (c.context, c.address, c.offset);
        let layout = self.target(address, &c.extent)?;
        let len = frame.tail().len();
        if len > BULK_CHUNK {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        layout.pieces(offset, len as u64)?;
        self.same_context(frame.stream_id, context)?;
        let Some(stream) = self.begin(frame.stream_id)? else { return Ok(Outcome::Blocked) };
        let (buffer, from) = match std::mem::replace(&mut frame.payload, Payload::Heap(Vec::new())) {
            Payload::Pinned(buffer) => (buffer, frame.tail),
            Payload::Heap(bytes) => {
                let Some(mut buffer) = self.buffer(context, len)? else {
                    frame.payload = Payload::Heap(bytes);
                    return Ok(Outcome::Blocked);
                };
                buffer.bytes_mut().copy_from_slice(bytes.get(frame.tail..).unwrap_or_default());
                (buffer, 0)
            }
        };
        let target = Target { address, layout, stream };
        if let Err(code) = self.send(frame.stream_id, &target, offset, &buffer, from, len) {
            self.late(code);
        }
        let consumed = Action::Consumed { bytes: len as u64, _buffer: buffer };
        if let Err(code) = self.entry(frame.stream_id, frame.seq, consumed) {
            self.late(code);
        }
        Ok(Outcome::Done)
    }

    /// Checks that a copy names the context of its stream.
    pub fn same_context(&self, stream_id: u64, context: u64) -> Result<()> {
        if self.streams.get(stream_id)?.context == context { Ok(()) } else { Err(CUDA_ERROR_INVALID_CONTEXT) }
    }

    /// Starts a copy whose bytes are requested when the stream reaches it. The stream is held until all bytes have been
    /// supplied.
    pub fn copy_to_device_late(&mut self, seq: u64, stream_id: u64, c: &CopyToDeviceLate) -> Result<Outcome> {
        let layout = self.target(c.address, &c.extent)?;
        self.same_context(stream_id, c.context)?;
        let Some(_) = self.begin(stream_id)? else { return Ok(Outcome::Blocked) };
        if layout.bytes() == 0 {
            return Ok(Outcome::Done);
        }
        let copy = LateCopy {
            stream_id,
            context: c.context,
            address: c.address,
            layout,
            asked: 0,
            answered: 0,
            buffers: VecDeque::new(),
            reached: false,
        };
        self.late_copies.0.insert(seq, copy);
        if let Err(code) = self.entry(stream_id, seq, Action::LateCopy) {
            self.late(code);
        }
        Ok(Outcome::Held)
    }

    /// Requests pieces of a late copy while buffers are free.
    pub fn ask_for_bytes(&mut self, seq: u64) {
        loop {
            let Some(copy) = self.late_copies.0.get_mut(&seq) else { return };
            copy.reached = true;
            let len = (copy.layout.bytes() - copy.asked).min(BULK_CHUNK as u64);
            if len == 0 || copy.buffers.len() >= ASKED_AHEAD {
                return;
            }
            let (context, offset) = (copy.context, copy.asked);
            match self.buffer(context, len as usize) {
                Ok(Some(buffer)) => {
                    let Some(copy) = self.late_copies.0.get_mut(&seq) else { return };
                    copy.asked += len;
                    copy.buffers.push_back(buffer);
                    self.out.push(NeedBytes::CODE, seq, &NeedBytes { offset, len }, &[]);
                }
                Ok(None) => return,
                Err(code) => {
                    self.late_copies.0.remove(&seq);
                    self.reply(seq, code);
                    self.late(code);
                    return self.finish(seq);
                }
            }
        }
    }

    /// Repeats the requests of late copies that found no free buffer.
    pub fn retry_late_copies(&mut self) {
        let reached = |(seq, copy): (&u64, &LateCopy)| (copy.reached && copy.buffers.is_empty()).then_some(*seq);
        let seqs: Vec<u64> = self.late_copies.0.iter().filter_map(reached).collect();
        seqs.into_iter().for_each(|seq| self.ask_for_bytes(seq));
    }

    pub fn supply_bytes(&mut self, c: &SupplyBytes, bytes: &[u8]) -> Result<()> {
        let asked = self.late_copies.0.get_mut(&c.command).and_then(|copy| {
            let fits = copy.answered == c.offset && copy.buffers.front()?.len() == bytes.len();
            let buffer = if fits { copy.buffers.pop_front() } else { None }?;
            copy.answered += bytes.len() as u64;
            Some((buffer, copy.stream_id, copy.address, copy.layout, copy.answered == copy.layout.bytes()))
        });
        let Some((mut buffer, stream_id, address, layout, last)) = asked else {
            self.end(CUDA_ERROR_UNKNOWN, "bytes were supplied that were not asked for");
            return Ok(());
        };
        buffer.bytes_mut().copy_from_slice(bytes);
        if last {
            self.late_copies.0.remove(&c.command);
            self.finish(c.command);
        } else {
            self.ask_for_bytes(c.command);
        }
        // The stream is empty, so it has room. None of its work runs before this function returns.
        let stream = self.begin(stream_id)?.ok_or(CUDA_ERROR_UNKNOWN)?;
        let sent = self.send(stream_id, &Target { address, layout, stream }, c.offset, &buffer, 0, bytes.len());
        let marked = self.entry(stream_id, c.command, Action::Consumed { bytes: 0, _buffer: buffer });
        sent.and(marked)
    }

    /// Cancels a late copy whose bytes the client does not send. Bytes that have arrived stay copied.
    pub fn supply_cancel(&mut self, command: u64) -> Result<()> {
        self.late_copies.0.remove(&command).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.finish(command);
        Ok(())
    }

    /// Copies to the client in pieces, as buffers become free. The stream is held until the driver has the last piece.
    pub fn copy_to_host(&mut self, frame: &mut Frame) -> Result<Outcome> {
        let Command::CopyToHost(c) = &frame.command else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let (context, address, stream_id, seq) = (c.context, c.address, frame.stream_id, frame.seq);
        let layout = self.target(address, &c.extent)?;
        self.same_context(stream_id, context)?;
        let (start, total) = (c.offset, c.len);
        layout.pieces(start, total)?;
        let mut failed = 0;
        while frame.progress < total && failed == 0 {
            if self.is_far_ahead(seq) {
                return Ok(Outcome::Blocked);
            }
            let len = (total - frame.progress).min(BULK_CHUNK as u64);
            let Some(stream) = self.begin(stream_id)? else { return Ok(Outcome::Blocked) };
            let Some(buffer) = self.buffer(context, len as usize)? else { return Ok(Outcome::Blocked) };
            let target = Target { address, layout, stream };
            for piece in layout.pieces(start + frame.progress, len)? {
                let host =
                    buffer.address(piece.host as usize, piece.bytes() as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                if let Err(code) = target.to_host(&self.driver, &self.memory, &piece, host) {
                    failed = code;
                    break;
                }
                self.issued(stream_id);
            }
            let offset = frame.progress;
            frame.progress += len;
            let landed = match failed {
                0 => Action::HostBytes { offset, buffer },
                _ => Action::Consumed { bytes: 0, _buffer: buffer },
            };
            if let Err(code) = self.entry(stream_id, seq, landed) {
                failed = code;
            }
        }
        if failed == 0 && total > 0 {
            self.piggyback(stream_id, seq, Action::Reply(0));
        } else if failed == 0 {
            let Some(_) = self.begin(stream_id)? else { return Ok(Outcome::Blocked) };
            let _ = self.entry_if_needed(stream_id, seq, Action::Reply(0));
        } else {
            self.piggyback(stream_id, seq, Action::Reply(failed));
        }
        Ok(Outcome::Done)
    }

    fn is_far_ahead(&self, seq: u64) -> bool {
        let on_the_way = self.out.unsent() + self.completions.bytes_pending() * BULK_CHUNK;
        on_the_way >= AHEAD && !self.is_waited_for(seq)
    }

    /// Checks a copy on the device. Returns the layouts of its target and its source.
    fn ends(&self, c: &CopyOnDevice) -> Result<(Layout, Layout)> {
        let to = Extent { pitch: c.to_pitch, slice: c.to_slice, ..c.extent.clone() };
        Ok((self.target(c.to, &to)?, self.target(c.from, &c.extent)?))
    }

    /// Converts a copy on the device into the form that the driver takes.
    ///
    /// # Errors
    /// `INVALID_VALUE` if an address is outside of device memory, or if the distance between slices is not a multiple
    /// of the pitch.
    pub fn box_on_device(&self, c: &CopyOnDevice) -> Result<CUDA_MEMCPY3D> {
        self.ends(c)?;
        let e = &c.extent;
        let piece = Piece { host: 0, device: 0, width: e.width, height: e.height, depth: e.depth };
        let source = device_side(c.from, e.pitch, e.slice, &piece)?;
        let target = device_side(c.to, c.to_pitch, c.to_slice, &piece)?;
        Ok(boxed(&self.memory, &source, &target, &piece))
    }

    pub fn copy_on_device(&mut self, stream_id: u64, c: &CopyOnDevice) -> Result<Outcome> {
        let (to, from) = self.ends(c)?;
        self.same_context(stream_id, c.context)?;
        let Some(stream) = self.begin(stream_id)? else { return Ok(Outcome::Blocked) };
        if from.bytes() == 0 {
            return Ok(Outcome::Done);
        }
        let one_row = from.height * from.depth == 1 && to.height * to.depth == 1;
        if one_row && !self.memory.is_array(c.to) && !self.memory.is_array(c.from) {
            self.driver.copy_on_device(c.to, c.from, from.bytes() as usize, stream)?;
        } else {
            self.driver.copy_3d(&self.box_on_device(c)?, stream)?;
        }
        self.issued(stream_id);
        Ok(Outcome::Done)
    }
}
