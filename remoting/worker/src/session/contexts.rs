//! Creates and destroys contexts. Helpers do this, because both take long and may block.

use crate::driver::events::EventPool;
use crate::driver::staging::Pool;
use crate::driver::{Code, Driver, Handle, Result};
use crate::order::command::StreamKind;
use crate::order::completions::{Action, Then, Watch};
use crate::session::commands::{Outcome, Session};
use crate::session::created::{Created, allocate, create, create_or_take, destroy};
use crate::session::objects::{Context, Stream};
use crate::session::requests::Asker;
use driverapi::errors::*;
use protocol::{ContextCreate, ContextDestroy, Fenced, Message};
use std::collections::HashMap;

impl Session {
    /// Creates a context before a client connects.
    ///
    /// # Errors
    /// The driver's error.
    pub fn warm_up(&mut self) -> Result<()> {
        self.warm = Some(create(&self.driver, 0, 0, true)?);
        self.driver.set_current(Handle::NULL)
    }

    pub fn context_create(&mut self, seq: u64, c: &ContextCreate) -> Result<Outcome> {
        if self.contexts.contains(c.context) || self.streams.contains(c.legacy_stream) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if self.contexts.is_full() {
            let code = self.out_of("contexts", self.budgets.contexts);
            return self.poison_context(c.context, c.legacy_stream, code);
        }
        if c.device >= self.device_count {
            return self.poison_context(c.context, c.legacy_stream, CUDA_ERROR_INVALID_DEVICE);
        }
        // A second id for the same primary context is refused, because the charge for the context would outlive it.
        if c.primary && self.contexts.live().any(|(_, other)| other.primary && other.device == c.device) {
            return self.poison_context(c.context, c.legacy_stream, CUDA_ERROR_INVALID_VALUE);
        }
        if *self.uncharged.entry(c.device).or_insert(c.context) == c.context || self.budgets.context_bytes == 0 {
            self.make_context(seq, c, 0);
            return Ok(Outcome::Held);
        }
        let bytes = self.budgets.context_bytes;
        if self.requests.grant(Asker::Context(seq, c.clone()), c.device, bytes, bytes) {
            return Ok(Outcome::Held);
        }
        self.poison_context(c.context, c.legacy_stream, CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Handles the appliance's answer to a charge for a further context of a device. `size` is the charged size, or 0
    /// if it was refused.
    pub fn context_charged(&mut self, seq: u64, c: &ContextCreate, size: u64) {
        match self.memory.take(c.device, size) {
            Ok(()) if size > 0 => self.make_context(seq, c, size),
            _ => self.no_context(seq, c, CUDA_ERROR_OUT_OF_MEMORY),
        }
    }

    fn make_context(&mut self, seq: u64, c: &ContextCreate, charged: u64) {
        let (c, asked, warm) = (c.clone(), c.clone(), self.warm.take());
        self.helpers.start(
            move |driver| create_or_take(driver, warm, &asked),
            move |session: &mut Session, created| match created {
                Ok(created) => {
                    session.context_created(&c, created, charged);
                    session.finish(seq);
                }
                Err(code) => {
                    session.discharge(c.device, charged, charged);
                    session.no_context(seq, &c, code);
                }
            },
        );
    }

    fn no_context(&mut self, seq: u64, c: &ContextCreate, code: Code) {
        self.uncharged.retain(|_, context| *context != c.context);
        let _ = self.poison_context(c.context, c.legacy_stream, code);
        self.late(code);
        self.finish(seq);
    }

    fn poison_context(&mut self, context: u64, legacy: u64, code: Code) -> Result<Outcome> {
        self.contexts.insert(context, Err(code));
        self.streams.insert(legacy, Err(code));
        Err(code)
    }

    fn context_created(&mut self, c: &ContextCreate, created: Created, charged: u64) {
        let ContextCreate { context: id, device, primary, flags, legacy_stream: legacy } = *c;
        let staging = Pool::default();
        for (size, buffers) in created.buffers {
            staging.add(size, buffers);
        }
        let context = Context {
            handle: created.handle,
            device,
            primary,
            flags,
            internal: created.internal,
            legacy,
            staging,
            events: EventPool::new(created.handle),
            legacy_unmarked: false,
            streams: vec![legacy],
            limits: HashMap::new(),
            charged,
            stacks: 0,
            zeros: None,
        };
        self.contexts.insert(id, Ok(context));
        self.streams.insert(legacy, Ok(Stream::new(id, StreamKind::Legacy, Handle::NULL, 0, 0)));
    }

    /// Returns any context of a device, and its id.
    pub fn context_on(&self, device: u32) -> Option<(u64, &Context)> {
        self.contexts.live().find(|(_, context)| context.device == device)
    }

    /// Runs `then` when all work given to the context so far is complete.
    pub fn context_join(&mut self, context: u64, seq: u64, then: Then) -> Result<()> {
        let streams = self.contexts.get(context)?.streams.clone();
        self.join(context, &streams, seq, then);
        Ok(())
    }

    /// Destroys a context in three steps: its work completes, its page-locked buffers return, and the driver destroys
    /// it.
    pub fn context_destroy(&mut self, seq: u64, c: &ContextDestroy) -> Result<Outcome> {
        self.mirrors.forget_context(c.context);
        self.context_join(c.context, seq, Then::DestroyContext { context: c.context, token: c.token })?;
        Ok(Outcome::Held)
    }

    /// Destroys a context whose work is complete. Returns false if some of its page-locked buffers are still in use.
    pub fn close_context(&mut self, seq: u64, id: u64, token: u64) -> bool {
        let zeroes = |watch: &Watch| matches!(watch.action, Action::Zeroed(slab) if slab.context == id);
        if self.completions.watches.iter().any(zeroes) || self.client_memory.registers_in(id) {
            return false;
        }
        self.end_arrays(id);
        let (Ok(context), Ok(taken)) = (self.contexts.get(id), self.taken_by(id)) else {
            // The client destroyed the context twice, before the first destruction was done.
            self.late(CUDA_ERROR_INVALID_CONTEXT);
            self.out.push(Fenced::CODE, 0, &Fenced { token }, &[]);
            self.finish(seq);
            return true;
        };
        let Some(mut buffers) = context.staging.close() else { return false };
        buffers.extend(context.zeros);
        let (handle, internal, primary) = (context.handle, context.internal, context.primary);
        let (device, streams, charged) = (context.device as i32, context.streams.clone(), context.charged);
        let _ = self.contexts.remove(id);
        for stream in streams {
            let _ = self.streams.remove(stream);
            self.forget_batches(stream);
        }
        self.topology.forget_context(id);
        self.modules.retain(|module| module.context != id);
        self.graphs.retain(|graph| graph.context != id);
        self.events.retain(|event| event.context != id);
        self.end_shared_events(id);
        self.memory.forget_context(id);
        self.client_memory.forget_context(id);
        // This context may be destroyed before another one is made current, so it must not stay current.
        let _ = self.current.set(&self.driver, Handle::NULL);
        let destroy = move |driver: &Driver| destroy(driver, handle, internal, buffers, primary, device);
        let then = move |session: &mut Session, destroyed: Result<()>| {
            if let Err(code) = destroyed {
                session.late(code);
            }
            session.uncharged.retain(|_, context| *context != id);
            session.discharge(taken.device, charged, charged);
            session.gave_back(taken, token);
            session.finish(seq);
        };
        // Memory that is sent ahead is read with the stream of this context.
        if self.hold.sends_ahead {
            self.helpers.start_in_order(destroy, then);
        } else {
            self.helpers.start(destroy, then);
        }
        true
    }

    /// Lets a helper allocate more buffers, after a pool had no buffer for `len` bytes.
    pub fn grow_staging(&mut self, context: u64, len: usize) {
        let pinned: u64 = self.contexts.live().map(|(_, c)| c.staging.bytes()).sum();
        let room = self.budgets.pinned_bytes.saturating_sub(pinned);
        let Ok(c) = self.contexts.get(context) else { return };
        let (Some(growth), handle, pool_of) = (c.staging.grow(len, room), c.handle, context) else { return };
        let size = growth.size;
        self.helpers.start(
            move |driver| {
                driver.set_current(handle)?;
                allocate(driver, &growth)
            },
            move |session: &mut Session, buffers: Result<Vec<Handle>>| {
                session.late_in(pool_of, buffers.as_ref().map(drop).map_err(|code| *code));
                if let Ok(context) = session.contexts.get(pool_of) {
                    context.staging.add(size, buffers.unwrap_or_default());
                }
            },
        );
    }
}
