//! A texture's view of an array: the array's texels in another format, or some of its layers (`cuTexObjectCreate`).

use crate::arrays::{CUDA_RESOURCE_VIEW_DESC, Format, Shape, Texel};
use crate::errors::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use crate::types::CUresult;

/// The uncompressed formats that a view may have. In the numbering of cuda.h the compressed formats follow them.
const PLAIN: [Format; 8] = [
    Format::Unsigned(1),
    Format::Signed(1),
    Format::Unsigned(2),
    Format::Signed(2),
    Format::Unsigned(4),
    Format::Signed(4),
    Format::Half,
    Format::Float,
];
const CU_RES_VIEW_FORMAT_NONE: u32 = 0;
const CU_RES_VIEW_FORMAT_SIGNED_BC7: u32 = 0x22;

/// A checked view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub texel: Texel,
    pub first_layer: u64,
    /// The number of layers, or of slices.
    pub depth: u64,
}

/// `CUDA_RESOURCE_VIEW_DESC` as words, without its reserved words.
pub type ViewWords = [u64; 8];

impl CUDA_RESOURCE_VIEW_DESC {
    pub fn to_words(&self) -> ViewWords {
        let sides = [self.width, self.height, self.depth].map(|side| side as u64);
        let places = [self.firstMipmapLevel, self.lastMipmapLevel, self.firstLayer, self.lastLayer].map(u64::from);
        let ([width, height, depth], [finest, coarsest, first, last]) = (sides, places);
        [self.format.into(), width, height, depth, finest, coarsest, first, last]
    }

    pub fn from_words(words: &ViewWords) -> Self {
        let [format, width, height, depth, finest, coarsest, first, last] = *words;
        CUDA_RESOURCE_VIEW_DESC {
            format: format as u32,
            width: width as usize,
            height: height as usize,
            depth: depth as usize,
            firstMipmapLevel: finest as u32,
            lastMipmapLevel: coarsest as u32,
            firstLayer: first as u32,
            lastLayer: last as u32,
            reserved: [0; 16],
        }
    }

    /// Checks the description as a view of an array. The view's extents must be the array's (0 or 1 for a dimension
    /// that the array does not have), and its texels must have the same size (the size check is not measured).
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a view that does not match; `CUDA_ERROR_NOT_SUPPORTED` for compressed formats.
    pub fn read(&self, array: &Shape) -> Result<View, CUresult> {
        let sides = [self.width, self.height, self.depth].map(|side| side.max(1) as u64);
        let layers = u64::from(self.firstLayer)..=u64::from(self.lastLayer);
        let fits = match array.layered {
            true => !layers.is_empty() && *layers.end() < array.depth,
            false => layers == (0..=0),
        };
        if sides != [array.width, array.height, array.depth]
            || self.width == 0
            || !fits
            || [self.firstMipmapLevel, self.lastMipmapLevel] != [0; 2]
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let texel = self.texel(array.texel)?;
        if texel.bytes() != array.texel.bytes() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let depth = if array.layered { layers.end() - layers.start() + 1 } else { array.depth };
        Ok(View { texel, first_layer: *layers.start(), depth })
    }

    fn texel(&self, of_array: Texel) -> Result<Texel, CUresult> {
        match self.format {
            CU_RES_VIEW_FORMAT_NONE => Ok(of_array),
            number => match PLAIN.get((number as usize - 1) / 3) {
                Some(&format) => Ok(Texel { format, channels: 1 << ((number - 1) % 3) }),
                None if number <= CU_RES_VIEW_FORMAT_SIGNED_BC7 => Err(CUDA_ERROR_NOT_SUPPORTED),
                None => Err(CUDA_ERROR_INVALID_VALUE),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: Shape = Shape {
        texel: Texel { format: Format::Unsigned(1), channels: 4 },
        width: 8,
        height: 4,
        depth: 1,
        layered: false,
    };
    const WHOLE: ViewWords = [0, 8, 4, 0, 0, 0, 0, 0];

    fn read(array: &Shape, change: &[(usize, u64)]) -> Result<View, CUresult> {
        let mut words = WHOLE;
        change.iter().for_each(|&(place, value)| words[place] = value);
        assert_eq!(CUDA_RESOURCE_VIEW_DESC::from_words(&words).to_words(), words);
        CUDA_RESOURCE_VIEW_DESC::from_words(&words).read(array)
    }

    #[test]
    fn texels_are_read_in_any_format_as_large() {
        let view = |number| read(&ARRAY, &[(0, number)]).map(|view| (view.texel.format, view.texel.channels));
        assert_eq!(view(0), Ok((Format::Unsigned(1), 4)));
        // The numbers are those of cuda.h.
        assert_eq!(view(0x03), Ok((Format::Unsigned(1), 4)));
        assert_eq!(view(0x06), Ok((Format::Signed(1), 4)));
        assert_eq!(view(0x08), Ok((Format::Unsigned(2), 2)));
        assert_eq!(view(0x0d), Ok((Format::Unsigned(4), 1)));
        assert_eq!(view(0x10), Ok((Format::Signed(4), 1)));
        assert_eq!(view(0x14), Ok((Format::Half, 2)));
        assert_eq!(view(0x16), Ok((Format::Float, 1)));
        for larger_or_smaller in [0x01, 0x02, 0x09, 0x0e, 0x0f, 0x13, 0x15, 0x18] {
            assert_eq!(view(larger_or_smaller), Err(CUDA_ERROR_INVALID_VALUE), "{larger_or_smaller:#x}");
        }
        assert_eq!(view(0x19), Err(CUDA_ERROR_NOT_SUPPORTED), "BC1");
        assert_eq!(view(0x22), Err(CUDA_ERROR_NOT_SUPPORTED), "BC7");
        assert_eq!(view(0x23), Err(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn sides_are_the_arrays_and_layers_some_of_its() {
        assert_eq!(read(&ARRAY, &[(3, 1)]).map(|view| view.depth), Ok(1), "no depth is 0 or 1");
        for wrong in [(1, 7), (1, 0), (2, 5), (3, 2), (4, 1), (5, 1), (6, 1), (7, 1)] {
            assert_eq!(read(&ARRAY, &[wrong]), Err(CUDA_ERROR_INVALID_VALUE), "{wrong:?}");
        }
        let layered = Shape { depth: 5, layered: true, ..ARRAY };
        let layers = |first, last| {
            let view = read(&layered, &[(3, 5), (6, first), (7, last)]);
            view.map(|view| (view.first_layer, view.depth))
        };
        assert_eq!((layers(0, 4), layers(2, 3), layers(4, 4)), (Ok((0, 5)), Ok((2, 2)), Ok((4, 1))));
        assert_eq!((layers(3, 2), layers(0, 5)), (Err(CUDA_ERROR_INVALID_VALUE), Err(CUDA_ERROR_INVALID_VALUE)));
    }
}
