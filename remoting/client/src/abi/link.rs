//! The entry points for the linker. The client collects the inputs, and the appliance links them.

use crate::Code;
use crate::boundary::{text, write, write_optional};
use crate::devices::context::{self, Live};
use crate::devices::handles::{Kind, Table};
use crate::exports;
use crate::module::{Image, JitOptions, Upload, call_with_images};
use crate::session::lock;
use driverapi::errors::*;
use driverapi::types::CUlinkState;
use protocol::{Link, LinkInput, Linked};
use std::ffi::{OsStr, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::without_provenance_mut;
use std::sync::{Arc, Mutex, OnceLock};

static LINKS: Table<LinkState> = Table::new(Kind::Link);

struct Input {
    kind: u32,
    name: String,
    image: Image,
}

struct LinkState {
    live: Arc<Live>,
    options: JitOptions,
    inputs: Mutex<Vec<Input>>,
    /// The output that `cuLinkComplete` returned to the program, with a trailing NUL if it is text. Valid until the
    /// link state is destroyed.
    output: OnceLock<Box<[u8]>>,
}

/// The kinds of input that CUDA defines.
const INPUT_KINDS: std::ops::RangeInclusive<u32> = 0..=5;

exports! {
    fn cuLinkCreate(count: c_uint, options: *mut c_uint, values: *mut *mut c_void, state: *mut CUlinkState) {
        create(count, options, values, state)
    }

    fn cuLinkCreate_v2(count: c_uint, options: *mut c_uint, values: *mut *mut c_void, state: *mut CUlinkState) {
        create(count, options, values, state)
    }

    fn cuLinkAddData(
        state: CUlinkState,
        kind: c_uint,
        data: *mut c_void,
        size: usize,
        name: *const c_char,
        count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
    ) {
        add_data(state, kind, data, size, name)
    }

    fn cuLinkAddData_v2(
        state: CUlinkState,
        kind: c_uint,
        data: *mut c_void,
        size: usize,
        name: *const c_char,
        count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
    ) {
        add_data(state, kind, data, size, name)
    }

    fn cuLinkAddFile(
        state: CUlinkState,
        kind: c_uint,
        path: *const c_char,
        count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
    ) {
        add_file(state, kind, path)
    }

    fn cuLinkAddFile_v2(
        state: CUlinkState,
        kind: c_uint,
        path: *const c_char,
        count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
    ) {
        add_file(state, kind, path)
    }

    fn cuLinkComplete(state: CUlinkState, image: *mut *mut c_void, size: *mut usize) {
        let state = get(state)?;
        let output = state.complete()?;
        write(image, output.as_ptr().cast_mut().cast())?;
        write_optional(size, output.len() - 1);
        Ok(())
    }

    fn cuLinkDestroy(state: CUlinkState) {
        LINKS.remove(state.addr()).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}

fn get(handle: CUlinkState) -> Result<Arc<LinkState>, Code> {
    crate::program::process::check_initialised()?;
    LINKS.get(handle.addr()).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

unsafe fn create(
    count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
    to: *mut CUlinkState,
) -> Result<(), Code> {
    let live = context::current()?;
    if to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller of the exported function vouches; log buffers stay until `cuLinkDestroy`.
    unsafe {
        let options = JitOptions::read(count, options, values)?;
        let (inputs, output) = (Mutex::default(), OnceLock::new());
        let mut created = 0;
        let make = |handle| {
            created = handle;
            Arc::new(LinkState { live, options, inputs, output })
        };
        LINKS.insert(make).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        write(to, without_provenance_mut(created))
    }
}

unsafe fn add_data(
    state: CUlinkState,
    kind: c_uint,
    data: *const c_void,
    size: usize,
    name: *const c_char,
) -> Result<(), Code> {
    let state = get(state)?;
    if data.is_null() || size == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller of the exported function vouches.
    let (bytes, name) = unsafe {
        let name = if name.is_null() { String::new() } else { text(name)?.to_string_lossy().into_owned() };
        (std::slice::from_raw_parts(data.cast::<u8>(), size).to_vec(), name)
    };
    state.add(kind, name, Image::new(bytes))
}

unsafe fn add_file(state: CUlinkState, kind: c_uint, path: *const c_char) -> Result<(), Code> {
    let state = get(state)?;
    // SAFETY: as the caller of the exported function vouches.
    let path = Path::new(OsStr::from_bytes(unsafe { text(path)? }.to_bytes()));
    state.add(kind, path.to_string_lossy().into_owned(), Image::from_file(path)?)
}

impl LinkState {
    fn add(&self, kind: u32, name: String, image: Image) -> Result<(), Code> {
        if !INPUT_KINDS.contains(&kind) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        lock(&self.inputs).push(Input { kind, name, image });
        Ok(())
    }

    fn complete(&self) -> Result<&[u8], Code> {
        context::usable(&self.live)?;
        if let Some(output) = self.output.get() {
            return Ok(output);
        }
        let inputs = lock(&self.inputs);
        let uploads: Vec<Upload> = inputs.iter().map(|input| input.image.whole()).collect();
        let named = |(input, upload): (&Input, &Upload)| {
            let (kind, name, hash) = (input.kind, input.name.clone(), upload.hash);
            LinkInput { kind, name, hash }
        };
        let message = Link {
            context: self.live.id,
            options: self.options.values.clone(),
            inputs: inputs.iter().zip(&uploads).map(named).collect(),
        };
        let reply = call_with_images(&self.live, &message, &uploads)?;
        let mut reader = reply.reader();
        let linked = reader.get::<Linked>();
        if let Ok(linked) = &linked {
            self.options.report(&linked.info_log, &linked.error_log);
        }
        if reply.code != 0 {
            return Err(reply.code);
        }
        linked.map_err(|_| CUDA_ERROR_UNKNOWN)?;
        Ok(self.output.get_or_init(|| [reader.tail(), &[0]].concat().into()))
    }
}
