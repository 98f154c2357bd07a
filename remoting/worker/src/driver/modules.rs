//! Driver calls that load and link images.

use super::{Driver, Handle, Raw, Result};
use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};

/// The wrapper that compilers put around images: the linked image, and the null-terminated list of the parts that it
/// was linked from.
#[repr(C)]
struct ImageWrapper {
    magic: u32,
    version: u32,
    linked: *const u8,
    parts: *const *const u8,
}

impl ImageWrapper {
    const MAGIC: u32 = 0x4662_43b1;
    const WITH_PARTS: u32 = 2;
}

/// The options of a module load or link, and the buffers for the compiler's messages.
pub struct JitOptions {
    ids: Vec<u32>,
    values: Vec<Raw>,
    info: Vec<u8>,
    error: Vec<u8>,
}

const INFO_LOG: (u32, u32) = (3, 4);
const ERROR_LOG: (u32, u32) = (5, 6);
const LOG_BYTES: usize = 16 << 10;

impl JitOptions {
    /// Creates the options for the driver. It accepts only options whose value is a number; the client handles options
    /// with pointers.
    pub fn new(options: &[(u32, u64)]) -> JitOptions {
        let plain = |id: &u32| matches!(id, 0 | 1 | 7..=16 | 20..=24 | 29..=32 | 34 | 35);
        let mut jit = JitOptions { ids: vec![], values: vec![], info: vec![0; LOG_BYTES], error: vec![0; LOG_BYTES] };
        for (id, value) in options.iter().filter(|(id, _)| plain(id)) {
            jit.push(*id, *value as usize);
        }
        let (info, error) = (jit.info.as_mut_ptr(), jit.error.as_mut_ptr());
        // The compiler cannot write the last byte of each buffer, so that it stays zero.
        jit.push(INFO_LOG.0, info.expose_provenance());
        jit.push(INFO_LOG.1, LOG_BYTES - 1);
        jit.push(ERROR_LOG.0, error.expose_provenance());
        jit.push(ERROR_LOG.1, LOG_BYTES - 1);
        jit
    }

    fn push(&mut self, id: u32, value: usize) {
        self.ids.push(id);
        self.values.push(Handle(value).raw());
    }

    pub fn logs(&self) -> (String, String) {
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        (text(&self.info), text(&self.error))
    }
}

impl Driver {
    /// Loads one image, or a bundle of several images. A bundle is passed in a wrapper that the driver knows.
    pub fn module_load(&self, image: &[u8], options: &mut JitOptions) -> Result<Handle> {
        let count = options.ids.len() as u32;
        let (ids, values) = (options.ids.as_mut_ptr(), options.values.as_mut_ptr());
        let load =
            |image: *const c_void| get!(self.module_load(null_mut(), image, count, ids, values)).map(Handle::from);
        let bundle = protocol::bundled_images(image);
        let Some([linked, parts @ ..]) = bundle.as_deref() else { return load(image.as_ptr().cast()) };
        let parts: Vec<_> = parts.iter().map(|part| part.as_ptr()).chain([null()]).collect();
        let wrapper = ImageWrapper {
            magic: ImageWrapper::MAGIC,
            version: ImageWrapper::WITH_PARTS,
            linked: linked.as_ptr(),
            parts: parts.as_ptr(),
        };
        load((&raw const wrapper).cast())
    }

    /// Links images. Each input has a kind, a name and bytes.
    pub fn link(&self, inputs: &[(u32, CString, &[u8])], options: &mut JitOptions) -> Result<Vec<u8>> {
        let count = options.ids.len() as u32;
        let (ids, values) = (options.ids.as_mut_ptr(), options.values.as_mut_ptr());
        let mut state = null_mut();
        call!(self.link_create(count, ids, values, &mut state))?;
        let linked = self.link_all(state, inputs);
        // The link state owns the image, and must be destroyed whether there is an image or not.
        let destroyed = call!(self.link_destroy(state));
        linked.and_then(|image| destroyed.map(|()| image))
    }

    fn link_all(&self, state: Raw, inputs: &[(u32, CString, &[u8])]) -> Result<Vec<u8>> {
        for (kind, name, bytes) in inputs {
            let data = bytes.as_ptr().cast_mut().cast::<c_void>();
            call!(self.link_add(state, *kind, data, bytes.len(), name.as_ptr(), 0, null_mut(), null_mut()))?;
        }
        let (mut image, mut size) = (null_mut(), 0);
        call!(self.link_complete(state, &mut image, &mut size))?;
        // SAFETY: the driver's image has this size and is valid until the state is destroyed.
        Ok(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), size) }.to_vec())
    }
}
