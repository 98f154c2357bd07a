//! Opens and closes stripes, and executes the copies whose bytes they carry.

use crate::copying::copies::Target;
use crate::copying::stripes::{Arriving, Came, Stripe, Work};
use crate::driver::staging::Buffer;
use crate::driver::{Code, Result};
use crate::order::command::{Command, Frame};
use crate::order::completions::Action;
use crate::session::commands::{Outcome, Session};
use driverapi::errors::*;
use protocol::{
    BULK_CHUNK, CopyToDeviceLate, CopyToDeviceStriped, CopyToHost, CopyToHostStriped, Extent, HostBytes, Message, since,
};
use rustix::net::{SendFlags, send};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

/// Limit on a session's stripes.
const MOST: usize = 8;
/// The number of pieces for which a stripe gets memory before their bytes arrive.
const LENT_AHEAD: usize = 4;

fn check_len(len: u64) -> Result<()> {
    if (1..=BULK_CHUNK as u64).contains(&len) { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

impl Session {
    /// Adds a stripe. Closes the socket instead if the number is not the newest, if there are too many stripes, if the
    /// client's wire version has no stripes, or if the session is held.
    pub fn open_stripe(&mut self, number: u64, socket: OwnedFd) {
        let known = since(CopyToDeviceStriped::CODE) <= self.out.wire;
        if !known || self.hold.holds() || number <= self.stripes.newest || self.stripes.open.len() >= MOST {
            return;
        }
        self.stripes.newest = number;
        // One byte always fits into the send buffer of a new socket.
        if send(&socket, &[carrier::ACCEPTED], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
            return;
        }
        let stripe = Stripe::new(socket);
        let (here, report) = (Arc::clone(&stripe), self.helpers.for_thread());
        let body = move || {
            let sends = Arc::clone(&here);
            let sender = thread::Builder::new().name("stripe-send".into()).spawn(move || {
                sends.send();
                sends.close();
            });
            if sender.is_ok() {
                here.receive(&|came| report(Box::new(move |session: &mut Session| session.striped(came))));
            }
            here.close();
            let _ = sender.map(thread::JoinHandle::join);
            report(Box::new(move |session| session.stripe_ended(number)));
        };
        if thread::Builder::new().name("stripe-receive".into()).spawn(body).is_ok() {
            self.stripes.open.insert(number, stripe);
        }
    }

    /// Removes a stripe. Called when both of its threads have ended.
    fn stripe_ended(&mut self, number: u64) {
        let ended = self.stripes.open.remove(&number);
        ended.into_iter().for_each(|stripe| stripe.tell(|work| *work = Work { closed: true, ..Work::default() }));
        self.stripes.arriving.retain(|_, piece| piece.stripe != number || piece.bytes.is_some());
        let left: Vec<u64> =
            self.stripes.leaving.iter().filter(|(_, (of, _))| *of == number).map(|(seq, _)| *seq).collect();
        for seq in left {
            let buffer = self.stripes.leaving.remove(&seq).and_then(|(_, buffer)| Arc::into_inner(buffer));
            // The buffer has no other owner: the threads have ended, and their shared state was cleared.
            buffer.into_iter().for_each(|buffer| self.send_unstriped(seq, buffer));
        }
    }

    /// Registers a command that has arrived. Its bytes may arrive before the command runs.
    pub fn expect_striped(&mut self, frame: &Frame) {
        let Command::CopyToDeviceStriped(c) = &frame.command else { return };
        let (Ok(()), Some(stripe)) = (check_len(c.len), self.stripes.open.get(&c.stripe)) else { return };
        stripe.tell(|work| {
            work.expected.insert(frame.seq, None);
            work.last = frame.seq;
        });
        let piece = Arriving {
            stripe: c.stripe,
            context: c.context,
            len: c.len as usize,
            lent: false,
            is_next: false,
            bytes: None,
        };
        self.stripes.arriving.insert(frame.seq, piece);
        self.lend_to_stripes();
    }

    /// Gives each stripe buffers for the next pieces.
    pub fn lend_to_stripes(&mut self) {
        let mut ahead: HashMap<u64, usize> = HashMap::new();
        let mut due = Vec::new();
        for (seq, piece) in self.stripes.arriving.iter().filter(|(_, piece)| piece.bytes.is_none()) {
            let count = ahead.entry(piece.stripe).or_default();
            *count += 1;
            if (*count <= LENT_AHEAD || piece.is_next) && !piece.lent {
                due.push(*seq);
            }
        }
        due.into_iter().for_each(|seq| self.lend_for(seq));
    }

    fn striped(&mut self, came: Came) {
        match came {
            Came::OutOfTurn(seq) => self.lend_out_of_turn(seq),
            Came::Bytes(seq, buffer) => self.striped_bytes(seq, buffer),
        }
    }

    fn lend_out_of_turn(&mut self, seq: u64) {
        self.stripes.arriving.entry(seq).and_modify(|piece| piece.is_next = true);
        self.lend_for(seq);
    }

    fn lend_for(&mut self, seq: u64) {
        let Some(&Arriving { stripe, context, len, lent: false, .. }) = self.stripes.arriving.get(&seq) else { return };
        // If there is no context or no buffer yet, this is tried again after a completion.
        let (Ok(Some(buffer)), Some(stripe)) = (self.buffer(context, len), self.stripes.open.get(&stripe)) else {
            return;
        };
        stripe.tell(|work| {
            work.expected.insert(seq, Some(buffer));
        });
        self.stripes.arriving.entry(seq).and_modify(|piece| piece.lent = true);
    }

    fn striped_bytes(&mut self, seq: u64, buffer: Buffer) {
        // The error of a failed command was already reported.
        let Some(piece) = self.stripes.arriving.get_mut(&seq) else { return };
        self.stats.bytes_in += buffer.len() as u64;
        piece.bytes = Some(buffer);
        self.reply(seq, 0);
        self.lend_to_stripes();
    }

    pub fn copy_to_device_striped(&mut self, frame: &mut Frame) -> Result<Outcome> {
        let Command::CopyToDeviceStriped(c) = &frame.command else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let CopyToDeviceStriped { context, address, len, .. } = *c;
        check_len(len)?;
        let layout = self.target(address, &Extent::linear(len))?;
        self.same_context(frame.stream_id, context)?;
        match self.stripes.arriving.get(&frame.seq) {
            Some(piece) if piece.bytes.is_none() => return Ok(Outcome::Blocked),
            Some(_) => {}
            None => {
                let late = CopyToDeviceLate { context, address, extent: Extent::linear(len) };
                self.consumed(len);
                let outcome = self.copy_to_device_late(frame.seq, frame.stream_id, &late);
                frame.command = Command::CopyToDeviceLate(late);
                return outcome;
            }
        }
        let Some(stream) = self.begin(frame.stream_id)? else { return Ok(Outcome::Blocked) };
        let arrived = self.stripes.arriving.remove(&frame.seq).and_then(|piece| piece.bytes);
        let buffer = arrived.ok_or(CUDA_ERROR_UNKNOWN)?;
        let target = Target { address, layout, stream };
        if let Err(code) = self.send(frame.stream_id, &target, 0, &buffer, 0, len as usize) {
            self.late(code);
        }
        if let Err(code) = self.entry(frame.stream_id, frame.seq, Action::Consumed { bytes: len, _buffer: buffer }) {
            self.late(code);
        }
        Ok(Outcome::Done)
    }

    /// Reports that a `CopyToDeviceStriped` failed. If its bytes have not arrived, also closes the stripe, because the
    /// worker can no longer tell which command the bytes on it belong to.
    pub fn fail_striped(&mut self, seq: u64, len: u64, code: Code) {
        let piece = self.stripes.arriving.remove(&seq);
        if piece.as_ref().is_none_or(|piece| piece.bytes.is_none()) {
            self.reply(seq, code);
            let stripe = piece.and_then(|piece| self.stripes.open.get(&piece.stripe));
            stripe.into_iter().for_each(|stripe| stripe.close());
        }
        self.consumed(len);
        self.late(code);
    }

    pub fn copy_to_host_striped(&mut self, frame: &mut Frame) -> Result<Outcome> {
        let Command::CopyToHostStriped(c) = &frame.command else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let CopyToHostStriped { context, address, len, stripe } = *c;
        check_len(len)?;
        if !self.stripes.open.contains_key(&stripe) {
            frame.command =
                Command::CopyToHost(CopyToHost { context, address, extent: Extent::linear(len), offset: 0, len });
            return self.copy_to_host(frame);
        }
        let layout = self.target(address, &Extent::linear(len))?;
        self.same_context(frame.stream_id, context)?;
        let Some(stream) = self.begin(frame.stream_id)? else { return Ok(Outcome::Blocked) };
        let Some(buffer) = self.buffer(context, len as usize)? else { return Ok(Outcome::Blocked) };
        let target = Target { address, layout, stream };
        for piece in layout.pieces(0, len)? {
            let to = buffer.address(piece.host as usize, piece.bytes() as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            target.to_host(&self.driver, &self.memory, &piece, to)?;
            self.issued(frame.stream_id);
        }
        // A failure is reported by the reply.
        let _ = self.entry(frame.stream_id, frame.seq, Action::Striped { stripe, buffer });
        Ok(Outcome::Done)
    }

    /// Sends the bytes of a `CopyToHostStriped`, which the device has written to the buffer.
    pub fn send_striped(&mut self, seq: u64, number: u64, buffer: Buffer) {
        let Some(stripe) = self.stripes.open.get(&number) else { return self.send_unstriped(seq, buffer) };
        self.out.bytes_out += buffer.len() as u64;
        let buffer = Arc::new(buffer);
        self.stripes.leaving.insert(seq, (number, Arc::clone(&buffer)));
        stripe.tell(|work| work.to_send.push_back((seq, buffer)));
    }

    fn send_unstriped(&mut self, seq: u64, buffer: Buffer) {
        let all = 0..buffer.len();
        self.out.push_pinned(HostBytes::CODE, seq, &HostBytes { offset: 0 }, buffer, all);
        self.synchronised(seq, 0);
    }

    /// Releases the buffer of a copy after the client has received its bytes. The client may report this twice if the
    /// stripe has ended.
    pub fn landed(&mut self, seq: u64) {
        if self.stripes.leaving.remove(&seq).is_some() {
            self.synchronised(seq, 0);
        }
    }
}
