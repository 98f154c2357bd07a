//! Gives generated calls access to a session: looks up the driver's handles for the client's ids.

use crate::driver::{Driver, Handle, Raw, Result};
use crate::generated;
use crate::session::commands::{Outcome, Session};
use crate::session::current::CurrentContext;
use crate::session::objects::{Context, Event, Module, Table};
use crate::session::settings::{Change, Setting};
use driverapi::errors::*;
use protocol::{NO_FUNCTION, Reader, Writer, function};

/// Looks up the driver's handle for a client's id, and makes the object's context current. An error is the `CUresult`
/// that the driver would return.
pub trait Objects {
    /// Makes a context current.
    fn enter(&self, context: u64) -> Result<()>;
    /// Returns the driver event of the latest record.
    fn event(&self, id: u64) -> Result<Raw>;
    fn function(&self, module: u64, kernel: u32) -> Result<Raw>;
}

struct Lookup<'a> {
    driver: &'a Driver,
    current: &'a CurrentContext,
    contexts: &'a Table<Context>,
    events: &'a Table<Event>,
    modules: &'a Table<Module>,
    /// Whether the function may be called without a function (kernel) of the program.
    without_function: bool,
}

impl Objects for Lookup<'_> {
    fn enter(&self, context: u64) -> Result<()> {
        self.current.set(self.driver, self.contexts.get(context)?.handle)
    }

    fn event(&self, id: u64) -> Result<Raw> {
        let event = self.events.get(id)?;
        self.enter(event.context)?;
        event.latest().ok_or(CUDA_ERROR_INVALID_HANDLE)?.map(|record| record.handle.raw())
    }

    fn function(&self, module: u64, kernel: u32) -> Result<Raw> {
        if kernel == NO_FUNCTION && self.without_function {
            return self.enter(module).map(|()| std::ptr::null_mut());
        }
        let module = self.modules.get(module)?;
        self.enter(module.context)?;
        let kernel = module.kernel(kernel)?;
        // The driver may still have older settings, for a launch that came before a change.
        kernel.settings.apply(self.driver, kernel.function, kernel.settings.wanted())?;
        Ok(kernel.function.raw())
    }
}

/// Whether this function has a reply, for success and for errors.
pub fn replies(number: u32) -> bool {
    matches!(generated::class(number), Some(generated::Class::Sync))
}

impl Session {
    pub fn enter(&self, context: u64) -> Result<()> {
        self.current.set(&self.driver, self.contexts.get(context)?.handle)
    }

    fn note_initial(&mut self, module: u64, kernel: u32, setting: Setting) {
        let Ok(context) = self.modules.get(module).map(|module| module.context) else { return };
        if self.enter(context).is_ok()
            && let Ok(module) = self.modules.get_mut(module)
            && let Ok(kernel) = module.kernel_mut(kernel)
        {
            kernel.settings.note_initial(&self.driver, kernel.function, setting);
        }
    }

    pub fn generated(&mut self, seq: u64, stream_id: u64, number: u32, payload: &[u8]) -> Result<Outcome> {
        let Some(class) = generated::class(number) else {
            self.end(CUDA_ERROR_UNKNOWN, &format!("there is no function {number}"));
            return Ok(Outcome::Done);
        };
        let stream = match stream_id {
            0 => Handle::NULL,
            _ => match self.begin(stream_id)? {
                Some(stream) => stream,
                None => return Ok(Outcome::Blocked),
            },
        };
        if let Some(elapsed) = self.elapsed_since_elsewhere(number, payload) {
            self.reply_with(seq, 0, &elapsed?, &[]);
            return Ok(Outcome::Done);
        }
        let change = Change::read(number, payload);
        if let Some(Change { module, kernel, setting, .. }) = change {
            self.note_initial(module, kernel, setting);
        }
        let objects = Lookup {
            driver: &self.driver,
            current: &self.current,
            contexts: &self.contexts,
            events: &self.events,
            modules: &self.modules,
            without_function: matches!(
                number,
                function::CU_OCCUPANCY_MAX_ACTIVE_CLUSTERS | function::CU_OCCUPANCY_MAX_POTENTIAL_CLUSTER_SIZE
            ),
        };
        let mut answer = Writer::new();
        let called = generated::call(
            number,
            &self.driver.functions,
            &objects,
            stream.raw(),
            &mut Reader::new(payload),
            &mut answer,
        );
        let result = match called {
            Ok(result) => result,
            Err(e) => {
                self.end(CUDA_ERROR_UNKNOWN, &format!("call of function {number} is malformed: {e}"));
                return Ok(Outcome::Done);
            }
        };
        if stream_id != 0 && result == 0 {
            self.issued(stream_id);
        }
        if let Some(Change { module, kernel, setting, value }) = change
            && result == 0
            && let Ok(module) = self.modules.get_mut(module)
            && let Ok(kernel) = module.kernel_mut(kernel)
        {
            kernel.settings.note(setting, value);
        }
        match class {
            generated::Class::Sync => {
                let tail = if result == 0 { &answer.bytes[..] } else { &[] };
                self.out.push(
                    <protocol::Reply as protocol::Message>::CODE,
                    seq,
                    &protocol::Reply { code: result },
                    tail,
                );
            }
            generated::Class::Async if result != 0 => self.late(result),
            generated::Class::Async => {}
        }
        Ok(Outcome::Done)
    }
}
