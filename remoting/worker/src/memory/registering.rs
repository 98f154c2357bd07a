//! Takes memory that the client shares, registers it with the driver as page-locked memory, and unregisters it.

use crate::driver::pages::Pages;
use crate::driver::{Driver, Result};
use crate::io::packets::receive_packet;
use crate::memory::client_memory::Shared;
use crate::session::commands::Session;
use driverapi::errors::*;
use protocol::SharedMemory;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::os::fd::OwnedFd;
use std::rc::Rc;

impl Session {
    /// Takes the next piece of memory that the client shares, or ends the sharing of one. Any other packet closes the
    /// connection.
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

    /// Registers memory that was shared before its context existed, once the context exists.
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
                    // This fails only if the client has already destroyed the context.
                    let _ = driver.set_current(shared.context).and_then(|()| driver.host_unregister(&shared.pages));
                },
                |_, ()| {},
            ),
            Err(_) => self.end(CUDA_ERROR_UNKNOWN, "memory was taken back that a copy uses"),
        }
    }
}
