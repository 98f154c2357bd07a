//! Arrays, textures and surfaces. An array has a range of addresses in the arena that no memory is mapped to. The
//! worker converts copies from and to these addresses into array copies of the driver.

use crate::driver::Result;
use crate::memory::slabs::{Array, Memory, Zeroing};
use crate::session::commands::Session;
use driverapi::arrays::{
    CU_RESOURCE_TYPE_ARRAY, CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, Resource, Shape,
};
use driverapi::constants::{CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST};
use driverapi::errors::*;
use driverapi::types::{BoxEnd, CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY3D};
use driverapi::views::ViewWords;
use protocol::{ArrayCreate, TextureCreate, TextureMade, TextureView};

/// Size in bytes of the buffer of zeros that fills arrays: at least the longest row.
const ZEROS: usize = 2 << 20;

/// Limit on a session's textures and surfaces.
const MOST_TEXTURES: usize = 1 << 16;

impl Memory {
    /// Returns the array that contains an address, and the position in it: byte of the row, row, slice.
    fn array_at(&self, address: u64) -> Option<(&Array, [usize; 3])> {
        let (start, array) = self.arrays.range(..=address).next_back()?;
        let offset = address - start;
        (offset < array.steps.span).then(|| (array, array.steps.place(offset).map(|n| n as usize)))
    }

    pub fn is_array(&self, address: u64) -> bool {
        self.array_at(address).is_some()
    }

    /// Changes a copy whose source or target is in an array: replaces the address by the array's handle and the
    /// position in the array.
    pub fn name_arrays(&self, copy: &mut CUDA_MEMCPY3D) {
        let mut rows_are_slices = false;
        if copy.srcMemoryType == CU_MEMORYTYPE_DEVICE
            && let Some((array, [x, y, z])) = self.array_at(copy.srcDevice)
        {
            (copy.srcMemoryType, copy.srcArray, copy.srcDevice) = (CU_MEMORYTYPE_ARRAY, array.handle.raw(), 0);
            (copy.srcXInBytes, copy.srcY, copy.srcZ) = (x, y, z);
            rows_are_slices = copy.Depth == 1 && copy.srcPitch as u64 == array.steps.slice;
        }
        if copy.dstMemoryType == CU_MEMORYTYPE_DEVICE
            && let Some((array, [x, y, z])) = self.array_at(copy.dstDevice)
        {
            (copy.dstMemoryType, copy.dstArray, copy.dstDevice) = (CU_MEMORYTYPE_ARRAY, array.handle.raw(), 0);
            (copy.dstXInBytes, copy.dstY, copy.dstZ) = (x, y, z);
            rows_are_slices |= copy.Depth == 1 && copy.dstPitch as u64 == array.steps.slice;
        }
        // A layout has as few dimensions as possible. A copy of one row from each slice therefore appears there as a
        // copy of several rows.
        if rows_are_slices {
            (copy.Depth, copy.Height) = (copy.Height, 1);
            (copy.srcHeight, copy.dstHeight) = (1, 1);
        }
    }
}

impl Session {
    /// Creates an array and fills it with zeros. Its memory is charged before the driver is called.
    pub fn array_create(&mut self, seq: u64, c: &ArrayCreate) -> Result<()> {
        let asked = CUDA_ARRAY3D_DESCRIPTOR {
            Width: c.width as usize,
            Height: c.height as usize,
            Depth: c.depth as usize,
            Format: c.format,
            NumChannels: c.channels,
            Flags: c.flags,
        };
        let shape = Shape::read(&asked)?;
        let (steps, bytes) = (shape.steps(), shape.device_bytes());
        self.memory.check_place(c.array, steps.span.next_multiple_of(self.memory.granularity))?;
        let device = self.contexts.get(c.context)?.device;
        self.memory.take(device, bytes)?;
        let made = self.enter(c.context).and_then(|()| self.driver.array_create(&asked));
        let handle = made.inspect_err(|_| self.memory.give_back(device, bytes))?;
        self.memory.arrays.insert(c.array, Array { steps, handle, context: c.context, device, bytes });
        if let Err(code) = self.zero_array(c.context, c.array, &shape) {
            let _ = self.array_destroy(c.array);
            return Err(code);
        }
        self.reply(seq, 0);
        Ok(())
    }

    /// Fills an array with zeros. Streams wait for this, as they wait for the zeroing of slabs.
    fn zero_array(&mut self, context: u64, array: u64, shape: &Shape) -> Result<()> {
        let zeros = match self.contexts.get(context)?.zeros {
            Some(zeros) => zeros,
            None => *self.contexts.get_mut(context)?.zeros.insert(self.driver.host_zeros(ZEROS)?),
        };
        let steps = shape.steps();
        let at_once = (ZEROS as u64 / shape.row_bytes()).min(shape.height);
        let internal = self.contexts.get(context)?.internal;
        for slice in 0..shape.depth {
            for row in (0..shape.height).step_by(at_once as usize) {
                let rows = at_once.min(shape.height - row);
                let (kind, pitch) = (CU_MEMORYTYPE_HOST, shape.row_bytes());
                let from = BoxEnd { kind, address: zeros.0 as u64, pitch, slice: pitch * rows };
                let address = array + steps.offset([0, row, slice]);
                let (pitch, slice) = (steps.pitch, steps.pitch * rows);
                let to = BoxEnd { kind: CU_MEMORYTYPE_DEVICE, address, pitch, slice };
                let mut copy = CUDA_MEMCPY3D::between(&to, &from, [shape.row_bytes(), rows, 1]);
                self.memory.name_arrays(&mut copy);
                self.driver.copy_3d(&copy, internal)?;
            }
        }
        let zeroing = self.record_zeroing(context)?;
        let device = self.contexts.get(context)?.device;
        self.memory.zeroings.insert(device, zeroing);
        Ok(())
    }

    /// Records an event after all work of the context's internal stream. All streams wait for the event from now on.
    pub fn record_zeroing(&mut self, context: u64) -> Result<Zeroing> {
        let c = self.contexts.get(context)?;
        let event = c.events.take(&self.driver, false)?;
        // A stream may zero memory for another context of the device, so each zeroing waits for the one before it.
        if let Some(before) = self.memory.zeroings.get(&c.device) {
            self.driver.stream_wait_event(c.internal, before.event.handle)?;
        }
        self.driver.event_record(event.handle, c.internal, 0)?;
        self.memory.last_zeroing += 1;
        Ok(Zeroing { number: self.memory.last_zeroing, event, context })
    }

    pub fn array_destroy(&mut self, array: u64) -> Result<()> {
        let array = self.memory.arrays.remove(&array).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.enter(array.context)?;
        let destroyed = self.driver.array_destroy(array.handle);
        self.memory.give_back(array.device, array.bytes);
        destroyed
    }

    pub fn texture_view(&mut self, seq: u64, c: &TextureView) -> Result<()> {
        let (kind, resource) = (CU_RESOURCE_TYPE_ARRAY, [c.array, 0, 0, 0, 0]);
        let of_array = TextureCreate { context: c.context, kind, resource, surface: false, sampling: c.sampling };
        self.texture_create(seq, &of_array, Some(&c.view))
    }

    pub fn texture_create(&mut self, seq: u64, c: &TextureCreate, view: Option<&ViewWords>) -> Result<()> {
        let mut resource = CUDA_RESOURCE_DESC::new(c.kind, c.resource);
        match resource.read()? {
            Resource::Array(address) => {
                let array = self.memory.arrays.get(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                resource = CUDA_RESOURCE_DESC::new(CU_RESOURCE_TYPE_ARRAY, [array.handle.0 as u64, 0, 0, 0, 0]);
            }
            Resource::Linear { address, bytes, .. } => self.memory.check(address, bytes)?,
            Resource::Pitched { address, height, pitch, .. } => {
                let bytes = height.checked_mul(pitch).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                self.memory.check(address, bytes)?;
            }
        }
        if self.memory.textures.len() >= MOST_TEXTURES {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        self.enter(c.context)?;
        let sampling = (!c.surface).then(|| CUDA_TEXTURE_DESC::from_words(&c.sampling));
        let view = view.map(CUDA_RESOURCE_VIEW_DESC::from_words);
        let texture = self.driver.texture_create(&resource, sampling.as_ref(), view.as_ref())?;
        self.memory.textures.insert(texture, (c.context, c.surface));
        self.reply_with(seq, 0, &TextureMade { texture }, &[]);
        Ok(())
    }

    pub fn texture_destroy(&mut self, texture: u64, surface: bool) -> Result<()> {
        let known = self.memory.textures.get(&texture).filter(|(_, is_surface)| *is_surface == surface);
        let (context, _) = *known.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.memory.textures.remove(&texture);
        self.enter(context)?;
        self.driver.texture_destroy(texture, surface)
    }

    /// Destroys a context's arrays and textures. Call this before the context is destroyed.
    pub fn end_arrays(&mut self, context: u64) {
        let of_context =
            |(texture, (of, surface)): (&u64, &(u64, bool))| (*of == context).then_some((*texture, *surface));
        let textures: Vec<_> = self.memory.textures.iter().filter_map(of_context).collect();
        let of_context = |(address, array): (&u64, &Array)| (array.context == context).then_some(*address);
        let arrays: Vec<_> = self.memory.arrays.iter().filter_map(of_context).collect();
        let ended = textures.into_iter().map(|(texture, surface)| self.texture_destroy(texture, surface));
        let ended: Result<Vec<()>> = ended.collect();
        let arrays: Result<Vec<()>> = arrays.into_iter().map(|array| self.array_destroy(array)).collect();
        if let Err(code) = ended.and(arrays) {
            self.late(code);
        }
    }
}
