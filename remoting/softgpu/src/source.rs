//! From an image in memory to the PTX in it.

use crate::engine::{CompileError, Program};
use crate::ffi::R;
use driverapi::errors::{CUDA_ERROR_FILE_NOT_FOUND, CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU};
use driverapi::fatbin::{Entry, Kind, Suffix};
use driverapi::image::{self, Image};
use std::cmp::Reverse;
use std::ffi::c_void;
use std::sync::Arc;

/// Separates the PTX units of a linked image; a comment, so that the image is still PTX text.
pub const UNIT_SEPARATOR: &str = "\n// remotegpu: next unit\n";

/// What an image offers.
#[derive(Default)]
pub struct Source {
    /// Each can be compiled on its own, best first. One candidate may be several units that are linked.
    candidates: Vec<Vec<String>>,
    /// Machine code, which cannot be executed here: names for the message.
    cubins: Vec<String>,
    is_text: bool,
}

impl Source {
    /// Reads the image at an address, whose length only the image itself tells.
    pub fn read(address: *const c_void) -> R<Source> {
        if address.is_null() {
            return Err(driverapi::errors::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the program promises an image that stays in place for the call; everything is copied out of it.
        let images = unsafe { image::images(address) }.map_err(|error| error.code())?;
        let mut parts = images.into_iter().map(Source::from_bytes).collect::<R<Vec<Source>>>()?;
        // Code that was linked comes as several containers with one candidate each.
        let first = parts.remove(0);
        Ok(parts.into_iter().fold(first, Source::joined_with))
    }

    pub fn read_file(path: &str) -> R<Source> {
        Source::from_bytes(&std::fs::read(path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?)
    }

    pub fn from_bytes(bytes: &[u8]) -> R<Source> {
        match image::parse(bytes).map_err(|error| error.code())? {
            Image::Ptx(text) => Source::from_text(text),
            Image::Cubin(_) => Ok(Source { cubins: vec!["a cubin".to_owned()], ..Source::default() }),
            Image::Fatbin(entries) => Source::from_entries(entries),
            Image::Archive(_) => Ok(Source::default()),
        }
    }

    fn from_text(text: &[u8]) -> R<Source> {
        let text = text_of(text)?;
        let units = text.split(UNIT_SEPARATOR).map(str::to_owned).collect();
        Ok(Source { candidates: vec![units], is_text: true, ..Source::default() })
    }

    /// Prefers PTX that any later device takes, and of that the newest.
    fn from_entries(entries: Vec<Entry>) -> R<Source> {
        let (mut ptx, rest): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.kind == Kind::Ptx);
        ptx.sort_by_key(|entry| (entry.suffix != Suffix::None, Reverse(entry.arch)));
        let mut candidates = Vec::new();
        for entry in &ptx {
            let data = entry.data().map_err(|error| error.code())?;
            candidates.push(vec![text_of(&data)?.to_owned()]);
        }
        let cubins = rest.iter().map(|entry| format!("sm_{}", entry.arch)).collect();
        Ok(Source { candidates, cubins, is_text: false })
    }

    fn joined_with(mut self, other: Source) -> Source {
        match (self.candidates.first_mut(), other.candidates.into_iter().next()) {
            (Some(units), Some(more)) => units.extend(more),
            (None, Some(units)) => self.candidates.push(units),
            (_, None) => (),
        }
        self.cubins.extend(other.cubins);
        self
    }

    pub fn is_text(&self) -> bool {
        self.is_text
    }

    pub fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// The best candidate as it is, to be linked with others.
    pub fn into_units(mut self) -> Result<Vec<String>, CompileError> {
        if self.candidates.is_empty() { Err(self.no_ptx()) } else { Ok(self.candidates.remove(0)) }
    }

    pub fn compile(&self) -> Result<Arc<Program>, CompileError> {
        let mut first_error = None;
        for units in &self.candidates {
            let units: Vec<&str> = units.iter().map(String::as_str).collect();
            match Program::compile(&units) {
                Ok(program) => return Ok(Arc::new(program)),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| self.no_ptx()))
    }

    fn no_ptx(&self) -> CompileError {
        let mut found = self.cubins.clone();
        found.sort();
        found.dedup();
        let log = format!(
            "the image holds no PTX, only machine code ({}), which the software GPU cannot execute. CuPy: set \
             CUPY_COMPILE_WITH_PTX=1; Triton: point TRITON_PTXAS_PATH at a program that copies the PTX; numba: \
             uninstall nvidia-nvjitlink; nvcc: add -gencode arch=compute_80,code=compute_80",
            if found.is_empty() { "of no known kind".to_owned() } else { found.join(", ") }
        );
        CompileError { code: CUDA_ERROR_NO_BINARY_FOR_GPU, log }
    }
}

/// PTX is ASCII; anything else is no PTX.
fn text_of(bytes: &[u8]) -> R<&str> {
    std::str::from_utf8(bytes).map_err(|_| CUDA_ERROR_INVALID_IMAGE)
}
