//! The parameter structures of two- and three-dimensional copies.

use crate::memory::{Area, value};
use crate::names::Names;
use crate::value::{Fields, Value};
use driverapi::constants::{CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED};
use driverapi::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D_PEER};

/// The source or the target of a copy.
struct End {
    memory: u32,
    address: u64,
    x: u64,
    y: u64,
    z: u64,
    pitch: u64,
    height: u64,
}

pub struct Copy {
    from: End,
    to: End,
    width: u64,
    height: u64,
    depth: u64,
}

impl End {
    fn new(memory: u32, [host, device, array]: [u64; 3], [x, y, z]: [usize; 3], [pitch, height]: [usize; 2]) -> Self {
        let address = match memory {
            CU_MEMORYTYPE_HOST => host,
            CU_MEMORYTYPE_ARRAY => array,
            _ => device,
        };
        let [x, y, z, pitch, height] = [x, y, z, pitch, height].map(|word| word as u64);
        Self { memory, address, x, y, z, pitch, height }
    }

    fn is_hosts(&self, names: &Names) -> bool {
        let device = || names.allocation_at(self.address).is_some_and(|found| !found.hosts);
        self.memory == CU_MEMORYTYPE_HOST || (self.memory == CU_MEMORYTYPE_UNIFIED && !device())
    }
}

impl Copy {
    /// Reads the parameter structure of a copy. Returns `None` if the address is null.
    ///
    /// # Safety
    /// `address` must be null or the address of a copy structure with two or (`three`) three dimensions.
    pub unsafe fn read(address: u64, three: bool) -> Option<Self> {
        // SAFETY: the caller guarantees it (see "# Safety"). Any bytes are a value of these types.
        unsafe {
            if three {
                let c: CUDA_MEMCPY3D_PEER = value(address)?;
                let from = [c.srcHost as u64, c.srcDevice, c.srcArray as u64];
                let to = [c.dstHost as u64, c.dstDevice, c.dstArray as u64];
                return Some(Self {
                    from: End::new(c.srcMemoryType, from, [c.srcXInBytes, c.srcY, c.srcZ], [c.srcPitch, c.srcHeight]),
                    to: End::new(c.dstMemoryType, to, [c.dstXInBytes, c.dstY, c.dstZ], [c.dstPitch, c.dstHeight]),
                    width: c.WidthInBytes as u64,
                    height: c.Height as u64,
                    depth: c.Depth as u64,
                });
            }
            let c: CUDA_MEMCPY2D = value(address)?;
            let from = [c.srcHost as u64, c.srcDevice, c.srcArray as u64];
            let to = [c.dstHost as u64, c.dstDevice, c.dstArray as u64];
            Some(Self {
                from: End::new(c.srcMemoryType, from, [c.srcXInBytes, c.srcY, 0], [c.srcPitch, 0]),
                to: End::new(c.dstMemoryType, to, [c.dstXInBytes, c.dstY, 0], [c.dstPitch, 0]),
                width: c.WidthInBytes as u64,
                height: c.Height as u64,
                depth: 1,
            })
        }
    }

    fn area(&self, end: &End) -> Area {
        let pitch = if end.pitch == 0 { end.x.wrapping_add(self.width) } else { end.pitch };
        let slice_pitch =
            pitch.wrapping_mul(if end.height == 0 { end.y.wrapping_add(self.height) } else { end.height });
        let before = end.z.wrapping_mul(slice_pitch).wrapping_add(end.y.wrapping_mul(pitch)).wrapping_add(end.x);
        let address = end.address.wrapping_add(before);
        Area { address, width: self.width, rows: self.height, pitch, slices: self.depth, slice_pitch }
    }

    /// Returns the host memory that the copy writes, or `None` if it writes device memory.
    pub fn target(&self, names: &Names) -> Option<Area> {
        self.to.is_hosts(names).then(|| self.area(&self.to))
    }

    pub fn describe(&self, names: &mut Names) -> Value {
        let sizes = [("width", self.width), ("height", self.height), ("depth", self.depth)];
        let mut fields: Fields = vec![("from".into(), describe_end(&self.from, names))];
        if self.from.is_hosts(names) {
            fields.push(("data".into(), self.area(&self.from).describe(false)));
        }
        fields.push(("to".into(), describe_end(&self.to, names)));
        fields.extend(sizes.map(|(name, value)| (name.into(), Value::Unsigned(value))));
        Value::Map(fields)
    }
}

fn describe_end(end: &End, names: &mut Names) -> Value {
    let memory = match end.memory {
        CU_MEMORYTYPE_HOST => "host",
        CU_MEMORYTYPE_DEVICE => "device",
        CU_MEMORYTYPE_ARRAY => "array",
        CU_MEMORYTYPE_UNIFIED => "unified",
        _ => "unknown",
    };
    let at =
        if end.memory == CU_MEMORYTYPE_ARRAY { names.handle("array", end.address) } else { names.address(end.address) };
    let numbers = [("x", end.x), ("y", end.y), ("z", end.z), ("pitch", end.pitch), ("height", end.height)];
    let mut fields: Fields = vec![("memory".into(), Value::text(memory)), ("at".into(), at)];
    fields.extend(numbers.map(|(name, value)| (name.into(), Value::Unsigned(value))));
    Value::Map(fields)
}
