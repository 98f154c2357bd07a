//! Memory and events that several sessions of a lease share. The appliance passes a descriptor from one worker to
//! another, and charges the lease once for the memory.

use crate::driver::Result;
use crate::memory::mapping::place;
use crate::memory::slabs::Slab;
use crate::order::completions::Action;
use crate::order::shared_events::{Page, Then};
use crate::packets::{Request, Token};
use crate::session::commands::Session;
use crate::session::requests::Sharing;
use driverapi::errors::*;
use protocol::{EventImport, Exported, SlabImport};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

impl Session {
    pub fn slab_export(&mut self, seq: u64, address: u64) -> Result<()> {
        let slab = self.memory.slabs.get(&address).filter(|slab| slab.memory != 0);
        let slab = slab.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if slab.shared.is_some() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let file = self.driver.memory_export(slab.memory)?;
        self.requests.export(Sharing::Slab { seq, address }, slab.device, slab.size, file)
    }

    pub fn slab_import(&mut self, seq: u64, c: &SlabImport) -> Result<()> {
        if c.device >= self.device_count {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        let token = Token(c.token);
        self.memory.check_place(c.address, c.size)?;
        if let Some((address, device, size)) = self.memory.shared(token) {
            if (device, size) != (c.device, c.size) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let memory = self.driver.memory_retain(address)?;
            self.place_shared(c, memory)?;
            self.reply(seq, 0);
            return Ok(());
        }
        self.requests.import(Sharing::SlabFrom { seq, message: c.clone() }, token)
    }

    pub fn event_export(&mut self, seq: u64, event: u64) -> Result<()> {
        self.check_not_shared(event)?;
        let page = Rc::new(Page::create().map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?);
        let file = page.file().map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        self.requests.export(Sharing::Event { seq, event, page }, 0, 0, file)
    }

    pub fn event_import(&mut self, seq: u64, c: &EventImport) -> Result<()> {
        self.check_not_shared(c.event)?;
        self.requests.import(Sharing::EventFrom { seq, message: c.clone() }, Token(c.token))
    }

    fn check_not_shared(&self, event: u64) -> Result<()> {
        self.events.get(event)?;
        if self.shared_events.contains(event) { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    /// Handles the appliance's answer to an export: the token of the export, or `None` if the appliance has no room for
    /// it.
    pub fn exported(&mut self, id: u64, token: Option<Token>) {
        match (self.requests.shared(id), token) {
            (Some(Sharing::Slab { seq, address }), Some(token)) => {
                self.memory.share(address, token);
                if self.memory.shared(token).is_none() {
                    // The client has unmapped the memory meanwhile.
                    self.requests.push(Request::Release { token });
                }
                self.reply_with(seq, 0, &Exported { token: token.0 }, &[]);
            }
            (Some(Sharing::Event { seq, event, page }), Some(token)) => {
                let code = self.share_event(event, page, token).err().unwrap_or(0);
                self.reply_with(seq, code, &Exported { token: token.0 }, &[]);
            }
            (Some(Sharing::Slab { seq, .. } | Sharing::Event { seq, .. }), None) => {
                self.reply(seq, CUDA_ERROR_OUT_OF_MEMORY);
            }
            _ => {}
        }
    }

    /// Handles the appliance's answer to an import: the file of another session's export, or `None` if there is no such
    /// export.
    pub fn imported(&mut self, id: u64, device: u32, size: u64, file: Option<OwnedFd>) {
        let (seq, token, taken) = match (self.requests.shared(id), file) {
            (Some(Sharing::SlabFrom { seq, message }), Some(file)) => {
                let placed = match (device, size) == (message.device, message.size) {
                    true => self.place_imported(&message, &file),
                    false => Err(CUDA_ERROR_INVALID_VALUE),
                };
                (seq, Token(message.token), placed)
            }
            (Some(Sharing::EventFrom { seq, message }), Some(file)) => {
                let token = Token(message.token);
                let page = Page::open(file).map_err(|_| CUDA_ERROR_INVALID_HANDLE);
                (seq, token, page.and_then(|page| self.share_event(message.event, Rc::new(page), token)))
            }
            (Some(Sharing::SlabFrom { seq, .. } | Sharing::EventFrom { seq, .. }), None) => {
                return self.reply(seq, CUDA_ERROR_INVALID_HANDLE);
            }
            _ => return,
        };
        if taken.is_err() && self.memory.shared(token).is_none() {
            self.requests.push(Request::Release { token });
        }
        self.reply(seq, taken.err().unwrap_or(0));
    }

    /// Shares an event: reports its latest record and every later record to the other sessions.
    fn share_event(&mut self, event: u64, page: Rc<Page>, token: Token) -> Result<()> {
        let local = self.events.get_mut(event)?;
        local.followed = true;
        let (context, latest) = (local.context, local.latest().and_then(Result::ok));
        self.shared_events.insert(event, context, Rc::clone(&page), token);
        if let Some(record) = latest {
            // A session that imports the event waits for the work that was recorded before the export.
            let number = page.record();
            self.watch(0, record, Action::SharedRecord { page, number });
        }
        Ok(())
    }

    fn place_imported(&mut self, c: &SlabImport, file: &OwnedFd) -> Result<()> {
        self.memory.check_place(c.address, c.size)?;
        let memory = self.driver.memory_import(file.as_fd())?;
        self.place_shared(c, memory)
    }

    fn place_shared(&mut self, c: &SlabImport, memory: u64) -> Result<()> {
        let device = self.driver.device(c.device as i32)?;
        let memory = place(&self.driver, memory, c.address, c.size, device)?;
        let shared = Some(Token(c.token));
        self.memory.slabs.insert(c.address, Slab { shared, ..Slab::new(c.size, c.device, memory) });
        self.show_to_peers(c.address)
    }
}

impl Session {
    pub fn shared_event_record(&mut self, seq: u64, event: u64, generation: u64) -> Result<()> {
        self.shared_events.record(event, generation)?;
        self.reply(seq, 0);
        Ok(())
    }

    pub fn shared_event_gate(&mut self, seq: u64, event: u64, gate: u64) -> Result<()> {
        let complete = self.shared_events.wait(event, Then::OpenGate(gate))?;
        self.reply(seq, if complete { 0 } else { CUDA_ERROR_NOT_READY });
        Ok(())
    }

    pub fn shared_event_synchronize(&mut self, seq: u64, event: u64) -> Result<()> {
        if self.shared_events.wait(event, Then::Reply(seq))? {
            self.synchronised(seq, 0);
        }
        Ok(())
    }

    pub fn shared_event_query(&mut self, seq: u64, event: u64) -> Result<()> {
        let code = if self.shared_events.is_complete(event)? { 0 } else { CUDA_ERROR_NOT_READY };
        // Bytes that have already arrived are sent first.
        self.collect();
        match code {
            0 => self.publish(seq, 0, Action::Answer { of_event: false }),
            code => self.reply(seq, code),
        }
        Ok(())
    }

    /// Continues the commands that waited for records which are now complete. Returns whether there were any.
    pub fn take_shared_waits(&mut self) -> bool {
        let ready = self.shared_events.ready();
        for then in &ready {
            match *then {
                Then::OpenGate(gate) => self.gate_open(gate),
                Then::Reply(seq) => self.synchronised(seq, 0),
            }
        }
        !ready.is_empty()
    }

    pub fn shared_event_done(&mut self, event: u64, generation: u64) {
        let ended = self.shared_events.done(event, generation);
        self.give_up(ended);
    }

    pub fn shared_event_destroy(&mut self, event: u64) {
        let ended = self.shared_events.destroy(event);
        self.give_up(ended);
    }

    /// Removes the shared events of a context. The context's work is complete, and its events are destroyed.
    pub fn end_shared_events(&mut self, context: u64) {
        let ended = self.shared_events.end_context(context);
        self.give_up(ended);
    }

    fn give_up(&mut self, tokens: impl IntoIterator<Item = Token>) {
        for token in tokens {
            self.requests.push(Request::Release { token });
        }
    }
}
