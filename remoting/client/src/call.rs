//! What every exported function has in common: the guard at the C boundary, access to the caller's pointers, and the
//! commands of generated functions.

use crate::answers::{self, Kind};
use crate::context::{self, Live};
use crate::copy::{Shape, Side, Timing};
use crate::fill::{self, Fill, Found};
use crate::log::{self, Level};
use crate::memory::mapped;
use crate::session::Reply;
use crate::stats::Counter;
use crate::stream::Target;
use crate::{event, graph, module, process, stream, sys};
use driverapi::errors::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_UNKNOWN,
};
use driverapi::refusals::is_asked_in_passing;
use driverapi::report;
use driverapi::types::{CUDA_MEMSET_NODE_PARAMS, CUevent, CUfunction, CUmodule, CUresult, CUstream};
use protocol::{Wire, Writer};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

pub type Code = CUresult;

/// Which stream the null handle means: the context's legacy stream, or one per host thread (`_ptds`, `_ptsz`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefaultStream {
    Legacy,
    PerThread,
}

pub const LEGACY: DefaultStream = DefaultStream::Legacy;
pub const PER_THREAD: DefaultStream = DefaultStream::PerThread;

/// Declares exported functions, which answer only after `cuInit`. A body is of type `Result<(), Code>` and may follow the
/// pointers it was given: that they are as CUDA documents them is the caller's promise to a C function.
#[macro_export]
macro_rules! exports {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident : $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, unused_variables, clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::call::Code {
            static COUNTER: $crate::stats::Counter = $crate::stats::Counter::new(stringify!($name));
            #[allow(unused_unsafe)]
            $crate::call::guard(&COUNTER, || {
                $crate::process::check_initialised()?;
                unsafe { $body }
            })
        }
    )*};
}

/// Declares exported functions that answer before `cuInit`, too.
#[macro_export]
macro_rules! early_exports {
    ($(fn $name:ident($($argument:ident : $type:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(clippy::missing_safety_doc)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::call::Code {
            static COUNTER: $crate::stats::Counter = $crate::stats::Counter::new(stringify!($name));
            #[allow(unused_unsafe)]
            $crate::call::guard(&COUNTER, || unsafe { $body })
        }
    )*};
}

/// Declares pairs of exported functions that differ in what the null stream means.
#[macro_export]
macro_rules! stream_exports {
    ($(fn $name:ident | $per_thread:ident($($argument:ident : $type:ty),* $(,)?) |$default:ident| $body:block)*) => {
        $crate::exports! {$(
            fn $name($($argument: $type),*) { let $default = $crate::call::LEGACY; $body }
            fn $per_thread($($argument: $type),*) { let $default = $crate::call::PER_THREAD; $body }
        )*}
    };
}

/// Runs the body of an exported function: counted, with errno kept, and no panic gets out.
pub fn guard(counter: &'static Counter, body: impl FnOnce() -> Result<(), Code>) -> Code {
    let errno = sys::errno();
    let result = process::check_alive().and_then(|()| {
        counter.begin();
        let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(CUDA_ERROR_UNKNOWN));
        counter.end();
        result
    });
    let code = result.err().unwrap_or(0);
    if code == CUDA_ERROR_NOT_SUPPORTED {
        report::refused(counter.name);
    }
    sys::set_errno(errno);
    if code != 0 && log::enabled(Level::Debug) {
        log::line(Level::Debug, &format!("{} -> {code}", counter.name));
    }
    code
}

/// Answers a function that this system does not provide; one line in the log for each.
///
/// # Errors
/// Always.
pub fn refused(name: &'static str) -> Result<(), Code> {
    static NAMED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    if NAMED.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
        let level = if is_asked_in_passing(name) { Level::Info } else { Level::Error };
        log::line(level, &format!("{name} is not provided by remotegpu; the program gets CUDA_ERROR_NOT_SUPPORTED"));
    }
    Err(CUDA_ERROR_NOT_SUPPORTED)
}

/// Stores a result where the caller wants it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a null pointer.
///
/// # Safety
/// `to` is null or valid for a write.
pub unsafe fn write<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller vouches.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// As [`write`], for results that the caller may leave out.
///
/// # Safety
/// `to` is null or valid for a write.
pub unsafe fn write_optional<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: as the caller vouches.
        unsafe { to.write_unaligned(value) };
    }
}

/// Reads an input structure.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a null pointer.
///
/// # Safety
/// `from` is null or valid for a read.
pub unsafe fn input<T: Copy>(from: *const T) -> Result<T, Code> {
    if from.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller vouches.
    Ok(unsafe { from.read_unaligned() })
}

/// Reads `count` consecutive values; an empty list may be a null pointer.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a null pointer.
///
/// # Safety
/// `from` is null or valid for reads of `count` values.
pub unsafe fn inputs<T: Copy>(from: *const T, count: usize) -> Result<Vec<T>, Code> {
    if from.is_null() && count > 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller vouches.
    Ok((0..count).map(|i| unsafe { from.add(i).read_unaligned() }).collect())
}

/// Reads a name.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a null pointer.
///
/// # Safety
/// `from` is null or a string that ends with a NUL.
pub unsafe fn text<'a>(from: *const c_char) -> Result<&'a CStr, Code> {
    if from.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller vouches.
    Ok(unsafe { CStr::from_ptr(from) })
}

/// Copies a text into the caller's buffer, cut to its length, always with a NUL.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` without a buffer.
///
/// # Safety
/// `to` is null or valid for writes of `len` bytes.
pub unsafe fn write_text(to: *mut c_char, len: usize, value: &str) -> Result<(), Code> {
    if to.is_null() || len == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let count = value.len().min(len - 1);
    // SAFETY: `count + 1 <= len`.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr(), to.cast(), count);
        to.add(count).write(0);
    }
    Ok(())
}

/// A command of a generated function under construction.
pub struct Call {
    number: u32,
    stream_id: u64,
    live: Arc<Live>,
    payload: Writer,
    /// Attributes of the function in question that the program has changed.
    settings: Vec<(u32, i32)>,
    /// The program's own memory that is filled in place of a command.
    filled: Option<Fill>,
    /// The call returns when the work is complete.
    waits: bool,
    /// The stream that the program named, which may capture.
    target: Option<Target>,
    /// The fill that the call is, as a node of a graph.
    fill_node: Option<CUDA_MEMSET_NODE_PARAMS>,
}

impl Call {
    fn new(number: u32, stream_id: u64, live: Arc<Live>) -> Call {
        let (payload, settings) = (Writer::new(), Vec::new());
        Call { number, stream_id, live, payload, settings, filled: None, waits: false, target: None, fill_node: None }
    }
}

impl Call {
    /// In the order of a stream: the header names it.
    ///
    /// # Errors
    /// As [`stream::resolve`].
    pub fn on_stream(number: u32, handle: CUstream, default: DefaultStream) -> Result<Call, Code> {
        let target = stream::resolve(handle, default)?;
        let mut call = Call::on_target(number, &target);
        call.target = Some(target);
        Ok(call)
    }

    /// In the order of a stream that was resolved already.
    pub fn on_target(number: u32, target: &Target) -> Call {
        Call::new(number, target.stream_id, Arc::clone(&target.live))
    }

    /// Of the current context, whose id is the first field.
    ///
    /// # Errors
    /// As [`context::current`].
    pub fn in_context(number: u32) -> Result<Call, Code> {
        let live = context::current()?;
        let id = live.id;
        let mut call = Call::new(number, 0, live);
        call.put(&id);
        Ok(call)
    }

    /// Of a function, whose module and place are the first two fields.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`, or why the function cannot be loaded.
    pub fn on_function(number: u32, handle: CUfunction) -> Result<Call, Code> {
        let function = module::function_or_kernel(handle)?;
        let mut call = Call::new(number, 0, Arc::clone(&function.module.live));
        call.settings = function.changed_attributes()?;
        call.put(&function.module.id).put(&function.index);
        Ok(call)
    }

    /// Notes that the call fills `rows` rows of `count` elements, `pitch` bytes from row to row, and answers where the
    /// device finds them. Page-locked memory that it does not have is filled here, when the call is sent.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub fn fills(
        &mut self,
        address: u64,
        element: &[u8],
        (count, rows, pitch): (usize, usize, usize),
        timing: Timing,
    ) -> Result<u64, Code> {
        let size = element.len() as u64;
        let width = (count as u64).checked_mul(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let shape = Shape { width, height: rows as u64, depth: 1 };
        let to = Side { address, pitch: pitch as u64, slice: 0 };
        let found = fill::find(&self.live, to, shape)?;
        if !address.is_multiple_of(size) || rows > 1 && !(pitch as u64).is_multiple_of(size) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.waits = found != Found::Device && timing == Timing::Synchronous;
        if timing == Timing::Asynchronous {
            let mut value = [0; 4];
            value[..element.len()].copy_from_slice(element);
            let (value, element_size) = (u32::from_le_bytes(value), element.len() as u32);
            let (dst, width, height) = (address, count, rows);
            self.fill_node =
                Some(CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, elementSize: element_size, width, height });
        } else if let Some(target) = &self.target {
            graph::check_waiting_call(target)?;
        }
        Ok(match found {
            Found::Device => address,
            Found::Mirrored(mirror) => mirror,
            Found::Host(memory) => {
                self.filled = Some(Fill::new(memory, element));
                address
            }
        })
    }

    pub fn put<T: Wire>(&mut self, value: &T) -> &mut Self {
        self.payload.put(value);
        self
    }

    /// Arguments that are encoded already.
    pub fn raw(&mut self, arguments: &[u8]) -> &mut Self {
        self.payload.raw(arguments);
        self
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub fn event(&mut self, handle: CUevent) -> Result<&mut Self, Code> {
        let id = event::get(handle)?.id;
        Ok(self.put(&id))
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub fn module(&mut self, handle: CUmodule) -> Result<&mut Self, Code> {
        let id = module::get(handle)?.id;
        Ok(self.put(&id))
    }

    /// Sends it; nothing is waited for, except by a synchronous fill of page-locked memory.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn send(self) -> Result<(), Code> {
        if let Some(target) = &self.target {
            let work = || self.fill_node.map(graph::Work::Fill).ok_or(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            if graph::capture(target, work)? {
                return Ok(());
            }
        }
        let session = &self.live.session;
        if let Some(fill) = self.filled {
            return fill.run(session, self.stream_id, self.waits);
        }
        session.post_raw(self.number, self.stream_id, &self.payload.bytes)?;
        if self.stream_id != 0 {
            session.note_work();
        }
        if self.waits {
            session.synchronise_stream(self.stream_id)?;
            mapped::after_wait(session)?;
        }
        Ok(())
    }

    /// Sends it and waits for the answer, unless that is known.
    ///
    /// # Errors
    /// The answer's code if it is not 0, or the session's sticky error.
    pub fn reply(self) -> Result<Reply, Code> {
        let (answers, kind) = (&self.live.answers, answers::kind(self.number));
        let ask = || self.live.session.call_raw(self.number, self.stream_id, &self.payload.bytes)?.success();
        if kind == Kind::Other {
            return ask();
        }
        let mut key = Writer::new();
        key.put(&self.number);
        if kind == Kind::Question {
            // With other attributes of its function it may have another answer.
            key.put(&self.settings);
        }
        key.raw(&self.payload.bytes);
        let known = match kind {
            Kind::Question => answers.answer(&key.bytes),
            Kind::Preference => answers.is_set(&key.bytes).then(Vec::new),
            Kind::Limit | Kind::Other => None,
        };
        if let Some(tail) = known {
            return Ok(Reply { code: 0, tail });
        }
        let reply = ask()?;
        match kind {
            Kind::Question => answers.note_answer(key.bytes, &reply.tail),
            Kind::Preference => answers.note_preference(&key.bytes),
            Kind::Limit | Kind::Other => answers.note_limit(),
        }
        Ok(reply)
    }
}
