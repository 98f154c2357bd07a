//! Memory that the driver takes by itself, for limits of contexts and for modules: counted before the driver is asked.

use crate::driver::Result;
use crate::objects::Taken;
use crate::session::Session;
use driverapi::errors::*;
use driverapi::limits;
use protocol::{ContextLimit, Fenced, Message};

impl Session {
    /// A limit that the driver refuses leaves what was.
    pub fn context_limit(&mut self, seq: u64, c: &ContextLimit) -> Result<()> {
        let context = self.contexts.get(c.context)?;
        let (device, before) = (context.device, context.limits.get(&c.limit).copied().unwrap_or(0));
        let ordinal = self.driver.device(device as i32)?;
        let threads =
            limits::resident_threads(|which| self.driver.device_attribute(which, ordinal).unwrap_or(i32::MAX));
        let after = limits::taken(c.limit, c.value, threads).ok_or(CUDA_ERROR_UNSUPPORTED_LIMIT)?;
        let more = after.saturating_sub(before);
        self.memory.take(device, more)?;
        let set = self.enter(c.context).and_then(|()| self.driver.context_set_limit(c.limit, c.value));
        self.memory.give_back(device, if set.is_ok() { before.saturating_sub(after) } else { more });
        set?;
        self.contexts.get_mut(c.context)?.limits.insert(c.limit, after);
        self.reply(seq, 0);
        Ok(())
    }

    /// What a context's driver takes for it: for its limits and the modules that are loaded there.
    pub fn taken_by(&self, context: u64) -> Result<Taken> {
        let of = self.contexts.get(context)?;
        let modules = self.modules.live().filter(|(_, module)| module.context == context);
        let bytes = of.limits.values().sum::<u64>() + modules.map(|(_, module)| module.loaded.taken.bytes).sum::<u64>();
        Ok(Taken { device: of.device, bytes })
    }

    /// The driver has given it back; the client is told.
    pub fn gave_back(&mut self, taken: Taken, token: u64) {
        self.memory.give_back(taken.device, taken.bytes);
        self.out.push(Fenced::CODE, 0, &Fenced { token }, &[]);
    }
}
