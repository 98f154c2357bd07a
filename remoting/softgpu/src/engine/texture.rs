//! Textures and surfaces: the addresses of texels, and the values that a kernel reads at a coordinate. Filtering and
//! addressing follow the appendix on texture fetching in the CUDA programming guide, where fractions have 8 bits.

use driverapi::arrays::{Format, Texel};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::MemoryMap;
use super::exec::Host;
use super::exec::number::from_f16;

/// The texels of an array or of other memory: address, format and size.
#[derive(Clone, Copy, Debug)]
pub struct Texels {
    pub texel: Texel,
    pub address: u64,
    /// The width, height and depth in texels. A dimension that does not exist is 1.
    pub sides: [u64; 3],
    /// The distance in bytes between rows. `slice` is the distance between slices or layers.
    pub pitch: u64,
    pub slice: u64,
    pub layered: bool,
    /// Whether the texels belong to an array. Other memory is checked at each access.
    pub own: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    Wrap,
    Clamp,
    Mirror,
    Border,
}

#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    pub addressing: [Addressing; 3],
    pub linear: bool,
    pub normalised: bool,
    /// Whether integers are read as fractions of their largest value.
    pub as_fraction: bool,
    pub border: [f32; 4],
}

pub struct Texture {
    pub texels: Texels,
    /// The sampling parameters, or `None` for a surface.
    pub sampling: Option<Sampling>,
}

/// The textures and surfaces of a process, by handle.
#[derive(Default)]
pub struct Textures {
    all: RwLock<HashMap<u64, Arc<Texture>>>,
}

impl Textures {
    pub fn insert(&self, handle: u64, texture: Texture) {
        self.all.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(texture));
    }

    pub fn get(&self, handle: u64) -> Option<Arc<Texture>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
    }

    pub fn remove(&self, handle: u64) -> Option<Arc<Texture>> {
        self.all.write().unwrap_or_else(PoisonError::into_inner).remove(&handle)
    }
}

/// The bits of a texel's channels, in the form that a kernel gets.
pub type Bits = [u32; 4];

/// The error for a coordinate outside the memory that the device may read. It contains the address.
#[derive(Debug, PartialEq, Eq)]
pub struct Illegal(pub u64);

impl Texels {
    pub fn address_of(&self, at: [u64; 3]) -> u64 {
        self.address + at[2] * self.slice + at[1] * self.pitch + at[0] * self.texel.bytes()
    }

    /// # Errors
    /// The address, if the device may not read it.
    #[inline(always)]
    fn channels(&self, memory: &MemoryMap, at: [u64; 3]) -> Result<Bits, Illegal> {
        let address = self.address_of(at);
        if !self.own && !memory.contains(address, self.texel.bytes()) {
            return Err(Illegal(address));
        }
        let size = self.texel.format.bytes() as usize;
        let mut bits = [0; 4];
        for (index, to) in bits.iter_mut().enumerate().take(self.texel.channels as usize) {
            let host = Host::checked(address).plus(index * size);
            *to = match self.texel.format {
                Format::Unsigned(1) => host.read::<u8>().into(),
                Format::Unsigned(2) | Format::Half => host.read::<u16>().into(),
                Format::Signed(1) => i32::from(host.read::<i8>()) as u32,
                Format::Signed(2) => i32::from(host.read::<i16>()) as u32,
                Format::Unsigned(_) | Format::Signed(_) | Format::Float => host.read::<u32>(),
            };
        }
        Ok(bits)
    }

    /// Returns the nearest layer that exists.
    #[inline(always)]
    fn layer(&self, layer: u32) -> u64 {
        u64::from(layer).min(self.sides[2] - 1)
    }
}

/// Returns a channel's value as a number.
#[inline(always)]
fn number(format: Format, bits: u32, as_fraction: bool) -> f32 {
    let signed = |most: f32| (bits as i32 as f32 / most).max(-1.0);
    match format {
        Format::Float => f32::from_bits(bits),
        Format::Half => from_f16(bits),
        Format::Unsigned(1) if as_fraction => bits as f32 / 255.0,
        Format::Unsigned(2) if as_fraction => bits as f32 / 65535.0,
        Format::Signed(1) if as_fraction => signed(127.0),
        Format::Signed(2) if as_fraction => signed(32767.0),
        Format::Unsigned(_) => bits as f32,
        Format::Signed(_) => bits as i32 as f32,
    }
}

impl Sampling {
    /// Whether a texel's channels are read as floats.
    fn reads_numbers(&self, format: Format) -> bool {
        self.as_fraction || matches!(format, Format::Half | Format::Float)
    }

    /// Returns the addressing mode of an axis. Wrapping and mirroring apply only to normalised coordinates.
    #[inline(always)]
    fn mode(&self, axis: usize) -> Addressing {
        match self.addressing[axis] {
            Addressing::Wrap | Addressing::Mirror if !self.normalised => Addressing::Clamp,
            mode => mode,
        }
    }

    /// Returns a coordinate in texels, after wrapping or mirroring.
    #[inline(always)]
    fn scaled(&self, axis: usize, coordinate: f32, size: u64) -> f32 {
        // Limit the coordinate, because larger numbers would overflow and give the same result.
        if !self.normalised {
            return coordinate.clamp(-2.0, size as f32 + 2.0);
        }
        let fraction = coordinate - coordinate.floor();
        let inside = match self.mode(axis) {
            Addressing::Wrap => fraction,
            Addressing::Mirror if coordinate.floor() as i64 & 1 != 0 => 1.0 - fraction,
            Addressing::Mirror => fraction,
            Addressing::Clamp | Addressing::Border => coordinate.clamp(-2.0, 3.0),
        };
        inside * size as f32
    }

    /// Returns the texel of an index on an axis, or `None` for the border.
    #[inline(always)]
    fn index(&self, axis: usize, index: i64, size: u64) -> Option<u64> {
        let size = size as i64;
        let inside = match self.mode(axis) {
            Addressing::Wrap => index.rem_euclid(size),
            Addressing::Clamp => index.clamp(0, size - 1),
            Addressing::Mirror => match index.rem_euclid(2 * size) {
                index if index < size => index,
                index => 2 * size - 1 - index,
            },
            Addressing::Border if !(0..size).contains(&index) => return None,
            Addressing::Border => index,
        };
        Some(inside as u64)
    }
}

impl Texture {
    /// Reads the texel at integer coordinates, as `tex` does. A read outside the texture gives 0.
    ///
    /// # Errors
    /// The address, if the device may not read it.
    pub fn fetch(&self, memory: &MemoryMap, at: [i32; 3]) -> Result<Bits, Illegal> {
        let inside = at.iter().zip(self.texels.sides).all(|(at, size)| u64::try_from(*at).is_ok_and(|at| at < size));
        if !inside {
            return Ok([0; 4]);
        }
        let bits = self.texels.channels(memory, at.map(|at| at as u64))?;
        Ok(self.shown(bits))
    }

    /// Reads at real coordinates in the texture's first `AXES` dimensions, as `tex` does.
    ///
    /// # Errors
    /// The address, if the device may not read it.
    #[inline(always)]
    pub fn sample<const AXES: usize>(&self, memory: &MemoryMap, at: [f32; 3], layer: u32) -> Result<Bits, Illegal> {
        let Some(sampling) = &self.sampling else { return Ok([0; 4]) };
        let sides = self.texels.sides;
        let mut place = [0.0; 3];
        for axis in 0..AXES {
            place[axis] = sampling.scaled(axis, at[axis], sides[axis]);
        }
        if !sampling.linear {
            let mut index = [0; 3];
            for axis in 0..AXES {
                index[axis] = place[axis].floor() as i64;
            }
            return Ok(match self.texel(memory, index, AXES, layer)? {
                Some(bits) => self.shown(bits),
                None => self.border(),
            });
        }
        let (mut first, mut weight) = ([0; 3], [0.0; 3]);
        for axis in 0..AXES {
            let middle = place[axis] - 0.5;
            first[axis] = middle.floor() as i64;
            // Round to the nearest, as `round` does. `round` itself is not a single instruction.
            let part = (middle - middle.floor()) * 256.0;
            weight[axis] = (part.floor() + f32::from(part - part.floor() >= 0.5)) / 256.0;
        }
        let mut sum = [0.0f32; 4];
        for corner in 0..1usize << AXES {
            let (mut index, mut part) = (first, 1.0);
            for axis in 0..AXES {
                let far = corner >> axis & 1 != 0;
                index[axis] += i64::from(far);
                part *= if far { weight[axis] } else { 1.0 - weight[axis] };
            }
            if part != 0.0 {
                let values = self.numbers(memory, index, AXES, layer)?;
                for channel in 0..4 {
                    sum[channel] += part * values[channel];
                }
            }
        }
        Ok(sum.map(f32::to_bits))
    }

    /// Returns one channel of each of the four texels that linear filtering would read, as `tld4` does. The order is
    /// counterclockwise from the lower left.
    ///
    /// # Errors
    /// The address, if the device may not read it.
    pub fn gather(&self, memory: &MemoryMap, at: [f32; 2], channel: usize) -> Result<Bits, Illegal> {
        let Some(sampling) = &self.sampling else { return Ok([0; 4]) };
        let mut first = [0; 3];
        for axis in 0..2 {
            first[axis] = (sampling.scaled(axis, at[axis], self.texels.sides[axis]) - 0.5).floor() as i64;
        }
        let mut bits = [0; 4];
        for (to, [dx, dy]) in bits.iter_mut().zip([[0, 1], [1, 1], [1, 0], [0, 0]]) {
            let texel = self.texel(memory, [first[0] + dx, first[1] + dy, 0], 2, 0)?;
            *to = texel.map_or_else(|| self.border(), |bits| self.shown(bits))[channel];
        }
        Ok(bits)
    }

    /// Returns a texel's channels, or `None` for the border.
    #[inline(always)]
    fn texel(&self, memory: &MemoryMap, index: [i64; 3], axes: usize, layer: u32) -> Result<Option<Bits>, Illegal> {
        let Some(sampling) = &self.sampling else { return Ok(None) };
        let mut at = [0; 3];
        for axis in 0..axes {
            match sampling.index(axis, index[axis], self.texels.sides[axis]) {
                Some(inside) => at[axis] = inside,
                None => return Ok(None),
            }
        }
        if self.texels.layered {
            at[2] = self.texels.layer(layer);
        }
        self.texels.channels(memory, at).map(Some)
    }

    #[inline(always)]
    fn numbers(&self, memory: &MemoryMap, index: [i64; 3], axes: usize, layer: u32) -> Result<[f32; 4], Illegal> {
        let Some(sampling) = &self.sampling else { return Ok([0.0; 4]) };
        let format = self.texels.texel.format;
        let found = self.texel(memory, index, axes, layer)?;
        let Some(bits) = found else { return Ok(sampling.border) };
        let mut values = [0.0; 4];
        for channel in 0..self.texels.texel.channels as usize {
            values[channel] = number(format, bits[channel], sampling.as_fraction);
        }
        Ok(values)
    }

    /// Converts a texel to the form that a kernel gets: floats for numbers, and integers unchanged.
    #[inline(always)]
    fn shown(&self, bits: Bits) -> Bits {
        let format = self.texels.texel.format;
        match &self.sampling {
            Some(sampling) if sampling.reads_numbers(format) => {
                bits.map(|bits| number(format, bits, sampling.as_fraction).to_bits())
            }
            _ => bits,
        }
    }

    fn border(&self) -> Bits {
        match &self.sampling {
            Some(sampling) if sampling.reads_numbers(self.texels.texel.format) => sampling.border.map(f32::to_bits),
            Some(sampling) => sampling.border.map(|value| value as i32 as u32),
            None => [0; 4],
        }
    }
}
