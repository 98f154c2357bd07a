//! Memory that the driver takes by itself, for limits of contexts, for modules and for the stacks of kernels. It is
//! charged before the driver is called.

use crate::driver::Result;
use crate::driver::loaded::Taken;
use crate::order::pending::Described;
use crate::session::commands::Session;
use crate::session::objects::Limit;
use crate::session::requests::Asker;
use driverapi::attributes::{CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, CU_LIMIT_STACK_SIZE};
use driverapi::errors::*;
use driverapi::limits;
use protocol::{ContextLimit, Fenced, Message};

impl Session {
    /// Sets a limit of a context. If the driver refuses the value, the old limit stays.
    pub fn context_limit(&mut self, seq: u64, c: &ContextLimit) -> Result<()> {
        let context = self.contexts.get(c.context)?;
        let (device, before) = (context.device, context.limits.get(&c.limit).map_or(0, |limit| limit.taken));
        let ordinal = self.driver.device(device as i32)?;
        let threads =
            limits::resident_threads(|which| self.driver.device_attribute(which, ordinal).unwrap_or(i32::MAX));
        let after = limits::taken(c.limit, c.value, threads).ok_or(CUDA_ERROR_UNSUPPORTED_LIMIT)?;
        let more = after.saturating_sub(before);
        self.memory.take(device, more)?;
        let set = self.enter(c.context).and_then(|()| self.driver.context_set_limit(c.limit, c.value));
        self.memory.give_back(device, if set.is_ok() { before.saturating_sub(after) } else { more });
        set?;
        self.contexts.get_mut(c.context)?.limits.insert(c.limit, Limit { value: c.value, taken: after });
        self.reply(seq, 0);
        Ok(())
    }

    /// Charges the stack of a kernel, and then describes the kernel to the client. If its threads need a larger stack
    /// than every earlier kernel of the context, the appliance is asked first. At a launch, the driver allocates stacks
    /// for as many threads as the device runs at a time.
    pub fn charge_stack(&mut self, described: Described) {
        match self.stack_missing(&described) {
            Ok((_, 0)) => self.kernel_described(&described),
            Ok((device, size)) => {
                let seq = described.seq;
                if !self.requests.grant(Asker::Stack(Box::new(described)), device, size, size) {
                    self.reply(seq, CUDA_ERROR_OUT_OF_MEMORY);
                }
            }
            Err(code) => self.reply(described.seq, code),
        }
    }

    /// Handles the appliance's answer to a charge for a stack. `size` is the charged size, or 0 if the appliance does
    /// not have enough memory.
    pub fn stack_charged(&mut self, described: &Described, device: u32, size: u64) {
        // Another kernel's stack may have been charged meanwhile, or the context may have been destroyed.
        let missing = self.stack_missing(described).map(|(_, missing)| missing);
        let context = self.modules.get(described.module).map(|module| module.context);
        match (missing, context) {
            (Ok(missing @ 1..), Ok(context)) if missing <= size && self.memory.take(device, size).is_ok() => {
                if let Ok(context) = self.contexts.get_mut(context) {
                    context.charged += size;
                    context.stacks += size;
                }
                self.kernel_described(described);
            }
            (Ok(0), _) => {
                self.discharge(device, 0, size);
                self.kernel_described(described);
            }
            (missing, _) => {
                self.discharge(device, 0, size);
                self.reply(described.seq, missing.err().unwrap_or(CUDA_ERROR_OUT_OF_MEMORY));
            }
        }
    }

    /// Returns the device, and the bytes that the kernel's stack needs beyond those that its context is already charged
    /// for.
    fn stack_missing(&self, described: &Described) -> Result<(u32, u64)> {
        let context = self.contexts.get(self.modules.get(described.module)?.context)?;
        let ordinal = self.driver.device(context.device as i32)?;
        let asked = described.info.attributes.iter().find(|(id, _)| *id == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
        let each = asked.map_or(0, |(_, bytes)| u64::try_from(*bytes).unwrap_or(0));
        let threads =
            limits::resident_threads(|which| self.driver.device_attribute(which, ordinal).unwrap_or(i32::MAX));
        let needed = limits::taken(CU_LIMIT_STACK_SIZE, each, threads).unwrap_or(0);
        let has = context.limits.get(&CU_LIMIT_STACK_SIZE).map_or(0, |limit| limit.taken) + context.stacks;
        Ok((context.device, needed.saturating_sub(has)))
    }

    /// Returns `size` bytes of granted memory to the appliance. `used` bytes of them had been counted as used.
    pub fn discharge(&mut self, device: u32, used: u64, size: u64) {
        self.memory.give_back(device, used);
        if size > 0 && self.grant_return(device, size).is_err() {
            self.late(CUDA_ERROR_UNKNOWN);
        }
    }

    /// Returns the memory that the driver has taken for a context: for its limits and its modules.
    pub fn taken_by(&self, context: u64) -> Result<Taken> {
        let of = self.contexts.get(context)?;
        let modules = self.modules.live().filter(|(_, module)| module.context == context);
        let bytes = of.limits.values().map(|limit| limit.taken).sum::<u64>()
            + modules.map(|(_, module)| module.loaded.taken.bytes).sum::<u64>();
        Ok(Taken { device: of.device, bytes })
    }

    /// Ends the charge for memory that the driver has freed, and notifies the client.
    pub fn gave_back(&mut self, taken: Taken, token: u64) {
        self.memory.give_back(taken.device, taken.bytes);
        self.out.push(Fenced::CODE, 0, &Fenced { token }, &[]);
    }
}
