//! Construction of the commands of generated functions.

use crate::devices::answers::{self, Kind};
use crate::devices::context::{self, Live};
use crate::objects::{event, library};
use crate::session::Reply;
use crate::{Code, module};
use driverapi::types::{CUevent, CUfunction, CUmodule};
use protocol::{NO_FUNCTION, Wire, Writer, function};
use std::sync::Arc;

/// A command of a generated function under construction.
pub struct Call {
    number: u32,
    live: Arc<Live>,
    payload: Writer,
    /// The attributes that the program has changed for the function which the command is about.
    settings: Vec<(u32, i32)>,
}

impl Call {
    fn new(number: u32, live: Arc<Live>) -> Call {
        Call { number, live, payload: Writer::new(), settings: Vec::new() }
    }

    /// Starts a command for the current context. The first field is the context's id.
    ///
    /// # Errors
    /// Those of [`context::current`].
    pub fn in_context(number: u32) -> Result<Call, Code> {
        let live = context::current()?;
        let id = live.id;
        let mut call = Call::new(number, live);
        call.put(&id);
        Ok(call)
    }

    /// Starts a command for a function. The first two fields are the function's module and index. If `handle` is null
    /// and the command allows that, they are the current context and [`NO_FUNCTION`].
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`, or the reason why the function cannot be loaded.
    pub fn on_function(number: u32, handle: CUfunction) -> Result<Call, Code> {
        // cuBLAS queries the clusters of the device without a function.
        let of_device = [function::CU_OCCUPANCY_MAX_ACTIVE_CLUSTERS, function::CU_OCCUPANCY_MAX_POTENTIAL_CLUSTER_SIZE];
        if handle.is_null() && of_device.contains(&number) {
            let mut call = Call::in_context(number)?;
            call.put(&NO_FUNCTION);
            return Ok(call);
        }
        let function = library::function_or_kernel(handle)?;
        let mut call = Call::new(number, Arc::clone(&function.module.live));
        call.settings = function.changed_attributes()?;
        call.put(&function.module.id).put(&function.index);
        Ok(call)
    }

    pub fn put<T: Wire>(&mut self, value: &T) -> &mut Self {
        self.payload.put(value);
        self
    }

    /// Adds the id of an event to the fields.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` if there is no such event.
    pub fn event(&mut self, handle: CUevent) -> Result<&mut Self, Code> {
        let id = event::get(handle)?.id;
        Ok(self.put(&id))
    }

    /// Adds the id of a module to the fields.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` if there is no such module.
    pub fn module(&mut self, handle: CUmodule) -> Result<&mut Self, Code> {
        let id = module::get(handle)?.id;
        Ok(self.put(&id))
    }

    /// Sends the command and waits for the answer, unless the answer is cached.
    ///
    /// # Errors
    /// The answer's code if it is not 0, or the session's sticky error.
    pub fn reply(self) -> Result<Reply, Code> {
        let (answers, kind) = (&self.live.answers, answers::kind(self.number));
        let ask = || self.live.session.call_raw(self.number, 0, &self.payload.bytes)?.success();
        if kind == Kind::Other {
            return ask();
        }
        let mut key = Writer::new();
        key.put(&self.number);
        if kind == Kind::Question {
            // The answer may depend on the function's changed attributes.
            key.put(&self.settings);
        }
        key.raw(&self.payload.bytes);
        let known = match kind {
            Kind::Question => answers.answer(&key.bytes),
            Kind::Preference => answers.is_set(&key.bytes).then(Vec::new),
            Kind::Other => None,
        };
        if let Some(tail) = known {
            return Ok(Reply { code: 0, tail });
        }
        let reply = ask()?;
        match kind {
            Kind::Question => answers.note_answer(key.bytes, &reply.tail),
            Kind::Preference => answers.note_preference(&key.bytes),
            Kind::Other => {}
        }
        Ok(reply)
    }
}
