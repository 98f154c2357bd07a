//! The handlers of `tex`, `tld4`, `suld` and `sust` for textures and surfaces that handles name (ISA 9.7.10, 9.7.11).

use std::sync::Arc;

use super::lanes::{LANES, set_lanes};
use super::{Block, Handler, Host};
use crate::engine::MemoryMap;
use crate::engine::code::{Inst, Step};
use crate::engine::texture::{Bits, Illegal, Texture, Textures};

/// The fields in the `mods` of texture and surface instructions.
pub mod form {
    /// The mask of the number of coordinates, without the layer's.
    pub const AXES: u32 = 3;
    pub const LAYERED: u32 = 4;
    /// Whether the coordinates are integers.
    pub const FETCH: u32 = 8;
    /// The position of the channel's lowest bit, for `tld4`.
    pub const CHANNEL: u32 = 4;
    /// The position of the lowest bit of the element size in bytes, for surfaces.
    pub const BYTES: u32 = 8;
    /// The behaviour outside a surface. Without a flag, the access faults.
    pub const CLAMP: u32 = 16;
    pub const ZERO: u32 = 32;
}

/// The texture or surface that was looked up last. Usually all lanes name the same one.
#[derive(Default)]
struct Named {
    handle: u64,
    texture: Option<Arc<Texture>>,
}

impl Named {
    #[inline(always)]
    fn get(&mut self, textures: &Textures, handle: u64) -> Option<&Texture> {
        if self.handle != handle || self.texture.is_none() {
            *self = Named { handle, texture: textures.get(handle) };
        }
        self.texture.as_deref()
    }
}

/// The coordinates of all lanes: the layer, if there is one, and up to three others.
struct Coordinates<'a> {
    layers: Option<&'a [u32; LANES]>,
    axes: [Option<&'a [u32; LANES]>; 3],
}

impl Coordinates<'_> {
    #[inline(always)]
    fn of(&self, lane: usize) -> (u32, [u32; 3]) {
        let value = |row: Option<&[u32; LANES]>| row.map_or(0, |row| row[lane]);
        (value(self.layers), self.axes.map(value))
    }
}

impl Block<'_> {
    fn no_texture(&mut self, handle: u64, lane: usize) -> Step {
        self.fail(719, lane, format!("0x{handle:x} is no texture or surface"))
    }

    fn coordinates(&self, inst: &Inst) -> Coordinates<'_> {
        let mut rows = inst.sources.of(&self.launch.code.lists).iter().map(|&source| self.src::<u32>(source));
        let layers = if inst.mods & form::LAYERED != 0 { rows.next() } else { None };
        let mut axes = [None; 3];
        axes.iter_mut().zip(rows.take((inst.mods & form::AXES) as usize)).for_each(|(to, row)| *to = Some(row));
        Coordinates { layers, axes }
    }

    fn set_bits(&mut self, inst: &Inst, values: &[[u32; LANES]; 4], mask: u32) {
        let code = self.launch.code;
        for (&target, values) in inst.targets.of(&code.lists).iter().zip(values) {
            self.set(target, values, mask);
        }
    }

    #[inline(always)]
    fn read_texture<R: Read>(&mut self, inst: &Inst, mask: u32) -> Step {
        let (memory, textures) = (self.launch.memory, self.launch.textures);
        let handles = *self.src::<u64>(inst.a);
        let mut named = Named::default();
        let mut values = [[0; LANES]; 4];
        {
            let coordinates = self.coordinates(inst);
            for lane in set_lanes(mask) {
                let Some(texture) = named.get(textures, handles[lane]).filter(|each| each.sampling.is_some()) else {
                    return self.no_texture(handles[lane], lane);
                };
                let (layer, at) = coordinates.of(lane);
                match R::read(inst.mods, memory, texture, layer, at) {
                    Ok(bits) => values.iter_mut().zip(bits).for_each(|(row, bits)| row[lane] = bits),
                    Err(Illegal(address)) => {
                        return self.fail(700, lane, format!("illegal access of a texture at 0x{address:x}"));
                    }
                }
            }
        }
        self.set_bits(inst, &values, mask);
        Step::Next
    }
}

/// The read of one lane. It is a trait because a closure would not be compiled for the same CPU features as the
/// handler.
trait Read {
    fn read(mods: u32, memory: &MemoryMap, texture: &Texture, layer: u32, at: [u32; 3]) -> Result<Bits, Illegal>;
}

pub struct Tex;

impl Read for Tex {
    #[inline(always)]
    fn read(mods: u32, memory: &MemoryMap, texture: &Texture, layer: u32, at: [u32; 3]) -> Result<Bits, Illegal> {
        if mods & form::FETCH != 0 {
            let mut at = at.map(|at| at as i32);
            if mods & form::LAYERED != 0 {
                at[2] = layer as i32;
            }
            return texture.fetch(memory, at);
        }
        let at = at.map(f32::from_bits);
        match mods & form::AXES {
            1 => texture.sample::<1>(memory, at, layer),
            2 => texture.sample::<2>(memory, at, layer),
            _ => texture.sample::<3>(memory, at, layer),
        }
    }
}

impl Handler for Tex {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        block.read_texture::<Self>(inst, mask)
    }
}

pub struct Gather;

impl Read for Gather {
    #[inline(always)]
    fn read(mods: u32, memory: &MemoryMap, texture: &Texture, _: u32, [x, y, _]: [u32; 3]) -> Result<Bits, Illegal> {
        texture.gather(memory, [x, y].map(f32::from_bits), (mods >> form::CHANNEL) as usize & 3)
    }
}

impl Handler for Gather {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        block.read_texture::<Self>(inst, mask)
    }
}

/// The position of an element of a surface. Nothing is read or written outside the surface.
enum Element {
    At(Host),
    Outside,
    Fault(Step),
}

impl Block<'_> {
    /// Returns the position of a surface's element. `bytes` is the size of all elements of the instruction. The x
    /// coordinate is in bytes.
    fn element(&mut self, inst: &Inst, named: &mut Named, handle: u64, bytes: u64, lane: usize) -> Element {
        let found = named.get(self.launch.textures, handle).filter(|each| each.sampling.is_none());
        let Some(surface) = found else { return Element::Fault(self.no_texture(handle, lane)) };
        let (layer, at) = self.coordinates(inst).of(lane);
        let texels = &surface.texels;
        let width = texels.sides[0] * texels.texel.bytes();
        let mut at = at.map(|at| i64::from(at as i32));
        if inst.mods & form::LAYERED != 0 {
            at[2] = i64::from(layer as i32);
        }
        let [x, y, z] = at;
        if !(x as u64).is_multiple_of(bytes) {
            return Element::Fault(self.fail(
                716,
                lane,
                format!("misaligned access of a surface at byte {x} of a row"),
            ));
        }
        let most = [width.saturating_sub(bytes), texels.sides[1] - 1, texels.sides[2] - 1].map(|most| most as i64);
        let inside = at.iter().zip(most).all(|(at, most)| (0..=most).contains(at));
        if !inside && inst.mods & form::ZERO != 0 {
            return Element::Outside;
        }
        if !inside && inst.mods & form::CLAMP == 0 {
            return Element::Fault(self.fail(700, lane, format!("access outside a surface, at ({x},{y},{z})")));
        }
        let [x, y, z] = [0, 1, 2].map(|axis| at[axis].clamp(0, most[axis]) as u64);
        Element::At(Host::checked(texels.address_of([0, y, z]) + x))
    }
}

pub struct SurfaceLoad;

impl Handler for SurfaceLoad {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let code = block.launch.code;
        let (targets, size) = (inst.targets.of(&code.lists), inst.mods >> form::BYTES);
        let handles = *block.src::<u64>(inst.a);
        let mut named = Named::default();
        let mut values = [[0u64; LANES]; 4];
        for lane in set_lanes(mask) {
            let bytes = u64::from(size) * targets.len() as u64;
            let host = match block.element(inst, &mut named, handles[lane], bytes, lane) {
                Element::At(host) => host,
                Element::Outside => continue,
                Element::Fault(step) => return step,
            };
            for (index, row) in values.iter_mut().enumerate().take(targets.len()) {
                let host = host.plus(index * size as usize);
                row[lane] = match size {
                    1 => host.read::<u8>().into(),
                    2 => host.read::<u16>().into(),
                    4 => host.read::<u32>().into(),
                    _ => host.read::<u64>(),
                };
            }
        }
        for (&target, row) in targets.iter().zip(&values) {
            match size {
                8 => block.set(target, row, mask),
                _ => block.set(target, &row.map(|value| value as u32), mask),
            }
        }
        Step::Next
    }
}

pub struct SurfaceStore;

impl Handler for SurfaceStore {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let code = block.launch.code;
        let (stored, size) = (inst.targets.of(&code.lists), inst.mods >> form::BYTES);
        let handles = *block.src::<u64>(inst.a);
        let mut named = Named::default();
        for lane in set_lanes(mask) {
            let bytes = u64::from(size) * stored.len() as u64;
            let host = match block.element(inst, &mut named, handles[lane], bytes, lane) {
                Element::At(host) => host,
                Element::Outside => continue,
                Element::Fault(step) => return step,
            };
            for (index, &source) in stored.iter().enumerate() {
                let host = host.plus(index * size as usize);
                match size {
                    1 => host.write(block.src::<u32>(source)[lane] as u8),
                    2 => host.write(block.src::<u32>(source)[lane] as u16),
                    4 => host.write(block.src::<u32>(source)[lane]),
                    _ => host.write(block.src::<u64>(source)[lane]),
                }
            }
        }
        Step::Next
    }
}
