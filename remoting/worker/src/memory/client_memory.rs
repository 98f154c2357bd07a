//! Page-locked memory of a client on this machine that is mapped in this process too: copies read and write it without
//! the wire.
//!
//! The client passes a descriptor on a connection of its own and waits for the answer, so that no command names memory
//! that is not mapped yet. Commands name the bytes by their address in the client. Bytes that are not shared, or no
//! longer (the session has moved), go over the wire.

use crate::copying::copies::Target;
use crate::driver::{Code, Driver, Handle, Result};
use crate::memory::pages::Pages;
use crate::order::command::{Command, Frame};
use crate::order::completions::Action;
use crate::session::commands::{Outcome, Session};
use crate::session::server::receive_packet;
use driverapi::errors::*;
use protocol::{CopyToDeviceLate, CopyToDeviceShared, CopyToHost, CopyToHostShared, NOT_SHARED, SHARED, SharedMemory};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, send};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

const PAGE: u64 = 4096;
/// Limit on a session's shared mappings.
const MOST: usize = 1 << 12;

/// A shared mapping. Each copy that the driver was given keeps it alive.
#[derive(Debug)]
pub struct Shared {
    memory: SharedMemory,
    pages: Pages,
    /// The context in which it was registered as page-locked memory.
    context: Handle,
}

#[derive(Default)]
pub struct ClientMemory {
    socket: Option<OwnedFd>,
    /// The client has closed its end. Its process keeps the end while it runs this program, and no network can cut it.
    closed: bool,
    /// Memory that came before its context was created.
    waits: Option<(SharedMemory, OwnedFd)>,
    /// The context in which a helper is registering memory.
    registers: Option<u64>,
    /// By the client's addresses.
    shared: BTreeMap<u64, Rc<Shared>>,
}

impl ClientMemory {
    /// Sets the socket on which the client shares memory from now on.
    pub fn follow(&mut self, socket: OwnedFd) {
        self.socket = Some(socket);
        self.closed = false;
    }

    /// Whether the client's process has ended, or runs another program.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the socket for the next descriptor, unless one is being handled.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        let free = self.registers.is_none() && self.waits.is_none();
        self.socket.as_ref().filter(|_| free).map(AsFd::as_fd)
    }

    pub fn registers_in(&self, context: u64) -> bool {
        self.registers == Some(context)
    }

    /// Forgets memory that was registered in a context which is gone.
    pub fn forget_context(&mut self, context: u64) {
        self.shared.retain(|_, shared| shared.memory.context != context);
    }

    /// Returns the address of the client's bytes in this process, if all of them are mapped.
    fn find(&self, address: u64, len: u64) -> Option<(Rc<Shared>, Handle)> {
        let (start, shared) = self.shared.range(..=address).next_back()?;
        let offset = address - start;
        let inside = offset.checked_add(len)? <= shared.memory.size;
        inside.then(|| (Rc::clone(shared), Handle(shared.pages.address() + offset as usize)))
    }

    /// Checks new memory. `most` limits the bytes of all mappings.
    fn check(&self, memory: &SharedMemory, most: u64) -> Result<()> {
        let SharedMemory { address, size, .. } = *memory;
        let end = address.checked_add(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let aligned = size > 0 && address.is_multiple_of(PAGE) && size.is_multiple_of(PAGE);
        let before = self.shared.range(..end).next_back();
        let free = before.is_none_or(|(start, other)| start + other.memory.size <= address);
        let bytes: u64 = self.shared.values().map(|shared| shared.memory.size).sum();
        let fits = self.shared.len() < MOST && bytes.checked_add(size).is_some_and(|all| all <= most);
        if aligned && free && fits { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    fn answer(&mut self, done: std::result::Result<(), Code>) {
        let answer = [if done.is_ok() { SHARED } else { NOT_SHARED }];
        let Some(socket) = &self.socket else { return };
        if send(socket, &answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
            self.socket = None;
        }
    }
}

impl Session {
    /// Takes the next piece that the client shares, or ends the sharing of one. Any other packet closes the connection.
    pub fn take_client_memory(&mut self) {
        let Some(socket) = self.client_memory.socket() else { return };
        let mut packet = [0; SharedMemory::BYTES];
        match receive_packet(socket, &mut packet, RecvFlags::DONTWAIT) {
            Ok((SharedMemory::BYTES, Some(file))) => {
                self.client_memory.waits = Some((SharedMemory::decode(&packet), file));
                self.register_waiting();
            }
            Ok((SharedMemory::BYTES, None)) if SharedMemory::decode(&packet).size == 0 => {
                self.end_sharing(SharedMemory::decode(&packet).address);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => {
                self.client_memory.closed = matches!(done, Ok((0, None)));
                self.client_memory.socket = None;
            }
        }
    }

    /// Registers the memory that waits, once its context exists.
    pub fn register_waiting(&mut self) {
        let there = |(memory, _): &mut (SharedMemory, OwnedFd)| self.contexts.contains(memory.context);
        if let Some((memory, file)) = self.client_memory.waits.take_if(there)
            && let Err(code) = self.register(memory, &file)
        {
            self.client_memory.answer(Err(code));
        }
    }

    fn register(&mut self, memory: SharedMemory, file: &OwnedFd) -> Result<()> {
        self.client_memory.check(&memory, self.budgets.client_bytes)?;
        let context = self.contexts.get(memory.context)?.handle;
        let pages = Pages::open(file, memory.size).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        self.client_memory.registers = Some(memory.context);
        self.helpers.start(
            move |driver| {
                driver.set_current(context)?;
                driver.host_register(&pages)?;
                Ok(Shared { memory, pages, context })
            },
            |session: &mut Session, shared: Result<Shared>| {
                session.client_memory.registers = None;
                let done = shared.map(|shared| {
                    session.client_memory.shared.insert(shared.memory.address, Rc::new(shared));
                });
                session.client_memory.answer(done);
            },
        );
        Ok(())
    }

    fn end_sharing(&mut self, address: u64) {
        let Some(shared) = self.client_memory.shared.remove(&address) else { return };
        match Rc::try_unwrap(shared) {
            Ok(shared) => self.helpers.start_in_order(
                move |driver: &Driver| {
                    // Fails only if the client has already destroyed the context.
                    let _ = driver.set_current(shared.context).and_then(|()| driver.host_unregister(&shared.pages));
                },
                |_, ()| {},
            ),
            Err(_) => self.end(CUDA_ERROR_UNKNOWN, "memory was taken back that a copy uses"),
        }
    }

    pub fn copy_to_device_shared(&mut self, frame: &mut Frame) -> Result<Outcome> {
        let Command::CopyToDeviceShared(c) = &frame.command else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let CopyToDeviceShared { context, address, ref extent, from } = *c;
        let layout = self.target(address, extent)?;
        let Some((shared, host)) = self.client_memory.find(from, layout.bytes()) else {
            let late = CopyToDeviceLate { context, address, extent: extent.clone() };
            let outcome = self.copy_to_device_late(frame.seq, frame.stream_id, &late);
            frame.command = Command::CopyToDeviceLate(late);
            return outcome;
        };
        self.same_context(frame.stream_id, context)?;
        let Some(stream) = self.begin(frame.stream_id)? else { return Ok(Outcome::Blocked) };
        let len = layout.bytes();
        let target = Target { address, layout, stream };
        self.copy_shared(frame, shared, &target, 0, len, |session, piece| {
            let from = Handle(host.0 + piece.host as usize);
            target.to_device(&session.driver, &session.memory, piece, from)
        })
    }

    pub fn copy_to_host_shared(&mut self, frame: &mut Frame) -> Result<Outcome> {
        let Command::CopyToHostShared(c) = &frame.command else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let CopyToHostShared { context, address, ref extent, offset, len, to } = *c;
        let Some((shared, host)) = self.client_memory.find(to, len) else {
            let extent = extent.clone();
            frame.command = Command::CopyToHost(CopyToHost { context, address, extent, offset, len });
            return self.copy_to_host(frame);
        };
        let layout = self.target(address, extent)?;
        self.same_context(frame.stream_id, context)?;
        let Some(stream) = self.begin(frame.stream_id)? else { return Ok(Outcome::Blocked) };
        let target = Target { address, layout, stream };
        self.copy_shared(frame, shared, &target, offset, len, |session, piece| {
            let to = Handle(host.0 + piece.host as usize);
            target.to_host(&session.driver, &session.memory, piece, to)
        })
    }

    /// Gives each piece to the driver; the reply follows when all are complete.
    fn copy_shared(
        &mut self,
        frame: &Frame,
        shared: Rc<Shared>,
        target: &Target,
        offset: u64,
        len: u64,
        copy: impl Fn(&Session, &crate::copying::layout::Piece) -> Result<()>,
    ) -> Result<Outcome> {
        let mut failed = 0;
        for piece in target.layout.pieces(offset, len)? {
            if let Err(code) = copy(self, &piece) {
                failed = code;
                break;
            }
            self.issued(frame.stream_id);
        }
        // After an error, the pieces that the driver accepted before complete first.
        if let Err(code) = self.entry(frame.stream_id, frame.seq, Action::Shared { code: failed, _memory: shared }) {
            self.late(code);
        }
        Ok(Outcome::Done)
    }
}
