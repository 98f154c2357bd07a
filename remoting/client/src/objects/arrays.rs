//! Arrays, textures and surfaces. An array has addresses without memory, so that copies can name its bytes
//! (`driverapi::arrays`). Textures and surfaces have the numbers of the device's driver, because kernels get these
//! numbers as parameters.

use crate::Code;
use crate::devices::context::{Context, Live};
use crate::devices::handles::{Kind, Table};
use crate::devices::memory::Piece;
use crate::objects::sides::{Shape as CopyShape, Side};
use crate::session::lock;
use driverapi::arrays::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, Resource, Shape, Steps};
use driverapi::errors::*;
use driverapi::types::CUDA_ARRAY3D_DESCRIPTOR;
use driverapi::views::{View, ViewWords};
use protocol::{ArrayCreate, ArrayDestroy, TextureCreate, TextureDestroy, TextureMade, TextureView};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

static ARRAYS: Table<Array> = Table::new(Kind::Array);
/// The arrays by the first of their addresses.
static PLACES: Mutex<BTreeMap<u64, Arc<Array>>> = Mutex::new(BTreeMap::new());
/// The textures and surfaces by number. The drivers of several appliances may use the same number.
static TEXTURES: Mutex<Option<HashMap<u64, Vec<Arc<Texture>>>>> = Mutex::new(None);

pub struct Array {
    pub handle: usize,
    pub asked: CUDA_ARRAY3D_DESCRIPTOR,
    live: Arc<Live>,
    shape: Shape,
    steps: Steps,
    address: u64,
}

pub struct Texture {
    live: Arc<Live>,
    pub resource: CUDA_RESOURCE_DESC,
    /// The texture's description, or `None` for a surface.
    pub sampling: Option<CUDA_TEXTURE_DESC>,
    pub view: Option<CUDA_RESOURCE_VIEW_DESC>,
}

impl Array {
    /// Returns one side of a copy, which starts `at` these bytes, rows and slices of the array.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if the copy exceeds the array.
    pub fn side(&self, at: [u64; 3], shape: &CopyShape) -> Result<Side, Code> {
        self.shape.check_box(at, [shape.width, shape.height, shape.depth])?;
        let Steps { pitch, slice, .. } = self.steps;
        Ok(Side { address: self.address + self.steps.offset(at), pitch, slice })
    }

    /// Returns one side of a copy of `bytes` bytes that starts `offset` bytes after the start of the array, and its
    /// shape.
    ///
    /// # Errors
    /// Those of [`Shape::stretch`].
    pub fn stretch(&self, offset: u64, bytes: u64) -> Result<(Side, CopyShape), Code> {
        let (at, [width, height, depth]) = self.shape.stretch(offset, bytes)?;
        let shape = CopyShape { width, height, depth };
        self.side(at, &shape).map(|side| (side, shape))
    }

    fn end(&self) {
        lock(&PLACES).remove(&self.address);
        // A failed session has no arrays, so the error is ignored.
        let _ = self.live.session.post(0, &ArrayDestroy { array: self.address });
        let _ = self.live.device.memory.put_back_quota(&self.live, self.shape.device_bytes());
        self.live.session.arena().put_back(self.address, self.span());
    }

    fn span(&self) -> u64 {
        self.steps.span.next_multiple_of(self.live.session.arena().granularity())
    }
}

/// Creates an array.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` if the share has no room, those of [`Shape::read`], or the driver's code.
pub fn create(live: &Arc<Live>, asked: CUDA_ARRAY3D_DESCRIPTOR) -> Result<Arc<Array>, Code> {
    let shape = Shape::read(&asked)?;
    let (steps, arena) = (shape.steps(), live.session.arena());
    let span = steps.span.next_multiple_of(arena.granularity());
    let make = || {
        let address = arena.take(span, 1).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let message = ArrayCreate {
            context: live.id,
            array: address,
            width: asked.Width as u64,
            height: asked.Height as u64,
            depth: asked.Depth as u64,
            format: asked.Format,
            channels: asked.NumChannels,
            flags: asked.Flags,
        };
        let made = live.session.call(0, &message).and_then(|answer| answer.success().map(drop));
        made.map(|()| address).inspect_err(|_| arena.put_back(address, span))
    };
    let address = live.device.memory.with_quota(live, shape.device_bytes(), make)?;
    live.at_end(end_in);
    let make = |handle| Arc::new(Array { handle, asked, live: Arc::clone(live), shape, steps, address });
    let array = ARRAYS.insert(make).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    lock(&PLACES).insert(address, Arc::clone(&array));
    Ok(array)
}

/// Returns the array with this handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` if there is none.
pub fn get(handle: usize) -> Result<Arc<Array>, Code> {
    ARRAYS.get(handle).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// Destroys an array after the work that may use it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`, or the code of failed work.
pub fn destroy(handle: usize) -> Result<(), Code> {
    let array = get(handle)?;
    wait(&array.live)?;
    ARRAYS.remove(handle);
    array.end();
    Ok(())
}

/// Waits for work that may use an object which is about to be destroyed.
fn wait(live: &Live) -> Result<(), Code> {
    if live.is_idle() { Ok(()) } else { live.synchronise() }
}

/// Returns the range of all addresses of the array that an address belongs to, and the array's context.
pub fn find(address: u64) -> Option<(Piece, Arc<Live>)> {
    let places = lock(&PLACES);
    let (start, array) = places.range(..=address).next_back()?;
    let size = array.steps.span;
    let piece = Piece { address: *start, asked: size, size, context: array.live.id, pool: 0, id: 0 };
    (address - start < size).then(|| (piece, Arc::clone(&array.live)))
}

/// Returns the words of a resource view, through which a kernel sees an array in another format.
///
/// # Errors
/// Those of [`CUDA_RESOURCE_VIEW_DESC::read`], and `CUDA_ERROR_INVALID_VALUE` if the resource is not an array.
fn seen_otherwise(array: Option<&Array>, view: Option<&CUDA_RESOURCE_VIEW_DESC>) -> Result<Option<ViewWords>, Code> {
    let Some(view) = view else { return Ok(None) };
    let shape = &array.ok_or(CUDA_ERROR_INVALID_VALUE)?.shape;
    let same = View { texel: shape.texel, first_layer: 0, depth: shape.depth };
    Ok((view.read(shape)? != same).then(|| view.to_words()))
}

/// Creates a texture and returns its number. Without a texture description it creates a surface.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE` if the context has no such array, or the driver's code.
pub fn create_texture(
    live: &Arc<Live>,
    resource: CUDA_RESOURCE_DESC,
    sampling: Option<CUDA_TEXTURE_DESC>,
    view: Option<CUDA_RESOURCE_VIEW_DESC>,
) -> Result<u64, Code> {
    let mut words = resource.used_words();
    let array = match resource.read()? {
        Resource::Array(handle) => Some(get(handle as usize)?),
        _ => None,
    };
    if let Some(array) = &array {
        if !Arc::ptr_eq(&array.live, live) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        words = [array.address, 0, 0, 0, 0];
    }
    let words_of_sampling = sampling.map_or([0; 14], |sampling| sampling.to_words());
    let reply = match (seen_otherwise(array.as_deref(), view.as_ref())?, array) {
        (Some(view), Some(array)) => {
            let (array, sampling) = (array.address, words_of_sampling);
            live.session.call(0, &TextureView { context: live.id, array, sampling, view })?
        }
        _ => {
            let (kind, surface) = (resource.resType, sampling.is_none());
            let (context, sampling) = (live.id, words_of_sampling);
            live.session.call(0, &TextureCreate { context, kind, resource: words, surface, sampling })?
        }
    };
    let made: TextureMade = reply.success()?.decode()?;
    live.at_end(end_in);
    let texture = Arc::new(Texture { live: Arc::clone(live), resource, sampling, view });
    lock(&TEXTURES).get_or_insert_default().entry(made.texture).or_default().push(texture);
    Ok(made.texture)
}

/// Returns the texture or surface with this number. Prefers one of the calling thread's context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if there is no such texture (or surface).
pub fn texture(number: u64, surface: bool) -> Result<Arc<Texture>, Code> {
    let current = crate::devices::context::current()?;
    let all = lock(&TEXTURES);
    let same: Vec<_> = all.iter().filter_map(|all| all.get(&number)).flatten().collect();
    let fits = |each: &&&Arc<Texture>| each.sampling.is_none() == surface;
    let own = same.iter().filter(fits).find(|each| Arc::ptr_eq(&each.live.session, &current.session));
    own.or_else(|| same.iter().find(fits)).map(|each| Arc::clone(each)).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Destroys a texture or surface after the work that may use it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if there is no such texture (or surface), or the code of failed work.
pub fn destroy_texture(number: u64, surface: bool) -> Result<(), Code> {
    let texture = texture(number, surface)?;
    wait(&texture.live)?;
    if let Entry::Occupied(mut same) = lock(&TEXTURES).get_or_insert_default().entry(number) {
        same.get_mut().retain(|each| !Arc::ptr_eq(each, &texture));
        if same.get().is_empty() {
            same.remove();
        }
    }
    texture.live.session.post(0, &TextureDestroy { texture: number, surface }).map(drop)
}

/// Destroys all arrays, textures and surfaces of a context.
fn end_in(live: &Arc<Live>) {
    // The next thread that waits gets the code of the failed work.
    let _ = wait(live);
    lock(&TEXTURES).get_or_insert_default().retain(|_, same| {
        same.retain(|each| !Arc::ptr_eq(&each.live, live) && Context::is_live(&each.live));
        !same.is_empty()
    });
    let mut ended = Vec::new();
    lock(&PLACES).retain(|_, array| {
        let ends = Arc::ptr_eq(&array.live, live);
        if ends {
            ended.push(Arc::clone(array));
        }
        !ends
    });
    for array in ended {
        ARRAYS.remove(array.handle);
        array.end();
    }
}
