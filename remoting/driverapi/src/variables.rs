//! The state that kernels of an image keep from launch to launch: variables, and memory from `malloc`.

use crate::cubin;
use crate::fatbin::Kind;
use crate::image::{Image, ImageError, parse};
use crate::ptx_variables;
use std::collections::BTreeSet;

/// The persistent state of all images of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    /// Names of the variables in `.global` and `.const`, for every architecture. The driver loads one architecture and
    /// has only its names.
    pub names: BTreeSet<String>,
    /// Whether kernels call `malloc`. No CUDA function can access that memory.
    pub allocates: bool,
}

impl Variables {
    /// Reads the variables of a module's images.
    ///
    /// # Errors
    /// If an image cannot be read.
    pub fn of(images: &[&[u8]]) -> Result<Variables, ImageError> {
        let mut found = Variables::default();
        for image in images {
            match parse(image)? {
                Image::Ptx(text) => found.note_ptx(text),
                Image::Cubin(bytes) => found.note_cubin(bytes)?,
                Image::Fatbin(entries) => {
                    for entry in entries {
                        let data = entry.data()?;
                        if entry.kind == Kind::Ptx { found.note_ptx(&data) } else { found.note_cubin(&data)? }
                    }
                }
                Image::Archive(_) => {}
            }
        }
        Ok(found)
    }

    fn note_ptx(&mut self, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        self.names.extend(ptx_variables::names(&text).into_iter().map(str::to_owned));
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.' | '%');
        self.allocates |= text.split(|c| !is_name(c)).any(|word| word == "malloc");
    }

    fn note_cubin(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.names.extend(cubin::read(bytes)?.variables.into_iter().map(|variable| variable.name));
        self.allocates |= bytes.windows(8).any(|window| window == b"\0malloc\0");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_tells_its_variables_and_whether_it_allocates() {
        let text =
            b".version 8.0\n.global .u32 a; .const .b8 b[4];\n.extern .func (.param .b64 r) malloc (.param .b64 n);";
        let found = Variables::of(&[text]).unwrap();
        assert_eq!(found.names.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert!(found.allocates);
        assert!(!Variables::of(&[b".version 8.0\n.global .u32 malloc_count;"]).unwrap().allocates);
    }

    #[test]
    fn every_part_of_a_fat_binary_is_looked_at() {
        let packed = include_bytes!("../tests/data/kernels.fatbin");
        let found = Variables::of(&[packed]).unwrap();
        let entries = crate::fatbin::entries(packed).unwrap();
        let elf = entries.iter().find(|entry| entry.kind == Kind::Elf).unwrap();
        let variables = cubin::read(&elf.data().unwrap()).unwrap().variables;
        assert!(!variables.is_empty() && variables.iter().all(|variable| found.names.contains(&variable.name)));
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        assert!(Variables::of(&[b"\x7fELF and no more"]).is_err());
    }
}
