//! Reads an image in memory and returns its PTX, or for a null GPU the description in its machine code.

use crate::engine::{CompileError, Program};
use crate::ffi::R;
use crate::process::model::Model;
use driverapi::cubin::{self, Cubin};
use driverapi::errors::{CUDA_ERROR_FILE_NOT_FOUND, CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU};
use driverapi::fatbin::{Entry, Kind, Suffix};
use driverapi::image::{self, Image, ImageError};
use std::cmp::Reverse;
use std::ffi::c_void;
use std::sync::Arc;

/// The text between the PTX units of a linked image. It is a comment, so the image is still PTX.
pub const UNIT_SEPARATOR: &str = "\n// remotegpu: next unit\n";

/// The code in an image: PTX, or machine code for a null GPU.
pub struct Source {
    model: &'static Model,
    /// The candidates that can each be compiled alone, best first. A candidate may consist of several units that are
    /// linked.
    candidates: Vec<Vec<String>>,
    /// The names of the machine code in the image, for error messages. Machine code cannot be executed here.
    cubins: Vec<String>,
    /// The machine code for a null GPU, or the reason why it cannot be read.
    described: Vec<Result<Cubin, CompileError>>,
    is_text: bool,
}

impl Source {
    /// Reads the image at an address. The image itself contains its length.
    pub fn read(address: *const c_void, model: &'static Model) -> R<Source> {
        if address.is_null() {
            return Err(driverapi::errors::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the program promises an image that stays in place for the call; everything is copied out of it.
        let images = unsafe { image::images(address) }.map_err(|error| error.code())?;
        let mut parts = images.into_iter().map(|image| Source::from_bytes(image, model)).collect::<R<Vec<Source>>>()?;
        // Linked code consists of several containers, each with one candidate.
        let first = parts.remove(0);
        Ok(parts.into_iter().fold(first, Source::joined_with))
    }

    pub fn read_file(path: &str, model: &'static Model) -> R<Source> {
        Source::from_bytes(&std::fs::read(path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?, model)
    }

    pub fn from_bytes(bytes: &[u8], model: &'static Model) -> R<Source> {
        match image::parse(bytes).map_err(|error| error.code())? {
            Image::Ptx(text) => Source::empty(model).with_text(text),
            Image::Cubin(bytes) => Ok(Source::empty(model).with_cubin(bytes)),
            Image::Fatbin(entries) => Source::empty(model).with_entries(entries),
            Image::Archive(_) => Ok(Source::empty(model)),
        }
    }

    fn empty(model: &'static Model) -> Source {
        Source { model, candidates: Vec::new(), cubins: Vec::new(), described: Vec::new(), is_text: false }
    }

    fn with_text(self, text: &[u8]) -> R<Source> {
        let text = text_of(text)?;
        let units = text.split(UNIT_SEPARATOR).map(str::to_owned).collect();
        Ok(Source { candidates: vec![units], is_text: true, ..self })
    }

    fn with_cubin(mut self, bytes: &[u8]) -> Source {
        if self.model.null {
            self.described.push(describe(bytes, self.model));
        } else {
            self.cubins.push("a cubin".to_owned());
        }
        self
    }

    /// Returns the machine code that the driver of a real GPU of this model would load.
    fn machine_code<'e, 'a>(&self, entries: &'e [Entry<'a>]) -> Option<&'e Entry<'a>> {
        let fits = |entry: &&Entry| entry.kind == Kind::Elf && entry.runs_on(self.model.architecture());
        let fitting = entries.iter().filter(fits).filter(|_| self.model.null);
        fitting.max_by_key(|entry| (entry.arch, entry.suffix == Suffix::Architecture))
    }

    /// Sorts the image's PTX: PTX for any later device comes first, and of that the newest.
    fn with_entries(self, entries: Vec<Entry>) -> R<Source> {
        if let Some(entry) = self.machine_code(&entries) {
            let bytes = entry.data().map_err(|error| error.code())?;
            return Ok(self.with_cubin(&bytes));
        }
        let (mut ptx, rest): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.kind == Kind::Ptx);
        ptx.sort_by_key(|entry| (entry.suffix != Suffix::None, Reverse(entry.arch)));
        let mut candidates = Vec::new();
        for entry in &ptx {
            let data = entry.data().map_err(|error| error.code())?;
            candidates.push(vec![text_of(&data)?.to_owned()]);
        }
        let cubins = rest.iter().map(|entry| format!("sm_{}", entry.arch)).collect();
        Ok(Source { candidates, cubins, ..self })
    }

    fn joined_with(mut self, other: Source) -> Source {
        match (self.candidates.first_mut(), other.candidates.into_iter().next()) {
            (Some(units), Some(more)) => units.extend(more),
            (None, Some(units)) => self.candidates.push(units),
            (_, None) => (),
        }
        self.cubins.extend(other.cubins);
        self.described.extend(other.described);
        self
    }

    pub fn is_text(&self) -> bool {
        self.is_text
    }

    pub fn is_empty(&self) -> bool {
        self.candidates.is_empty() && self.described.is_empty()
    }

    /// Returns the units of the best candidate without linking them.
    pub fn into_units(mut self) -> Result<Vec<String>, CompileError> {
        if self.candidates.is_empty() { Err(self.no_ptx()) } else { Ok(self.candidates.remove(0)) }
    }

    pub fn compile(&self) -> Result<Arc<Program>, CompileError> {
        if !self.described.is_empty() {
            let cubins = self.described.iter().cloned().collect::<Result<Vec<Cubin>, CompileError>>()?;
            return Ok(Arc::new(Program::describe(&cubins)));
        }
        let mut first_error = None;
        for units in &self.candidates {
            let units: Vec<&str> = units.iter().map(String::as_str).collect();
            match Program::compile(&units) {
                Ok(program) if self.model.null => return Ok(Arc::new(program.never_run())),
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
        let found = if found.is_empty() { "of no known kind".to_owned() } else { found.join(", ") };
        if self.model.null {
            let wanted = self.model.architecture();
            let log = format!("the image holds neither PTX nor machine code for sm_{wanted}, only some {found}");
            return CompileError { code: CUDA_ERROR_NO_BINARY_FOR_GPU, log };
        }
        let log = format!(
            "the image holds no PTX, only machine code ({found}), which the software GPU cannot execute. CuPy: set \
             CUPY_COMPILE_WITH_PTX=1; Triton: point TRITON_PTXAS_PATH at a program that copies the PTX; numba: \
             uninstall nvidia-nvjitlink; NVRTC: compile for compute_80 and load what nvrtcGetPTX gives; \
             nvcc: add -gencode arch=compute_80,code=compute_80; torch's own kernels: Debian's torch has them as PTX \
             (docs/frameworks.md)"
        );
        CompileError { code: CUDA_ERROR_NO_BINARY_FOR_GPU, log }
    }
}

/// Reads the description in a cubin. Fails if a GPU of this model cannot run the cubin. It can run a cubin for the same
/// generation and the same or an earlier minor version.
fn describe(bytes: &[u8], model: &Model) -> Result<Cubin, CompileError> {
    let damaged = |error: ImageError| CompileError { code: error.code(), log: format!("a cubin: {error}") };
    let (made_for, have) = (cubin::architecture(bytes).map_err(damaged)?, model.architecture());
    if made_for / 10 != have / 10 || made_for > have {
        let log = format!("a cubin for sm_{made_for} does not run on sm_{have}");
        return Err(CompileError { code: CUDA_ERROR_NO_BINARY_FOR_GPU, log });
    }
    cubin::read(bytes).map_err(damaged)
}

/// Returns PTX as text. Fails if the bytes are not ASCII.
fn text_of(bytes: &[u8]) -> R<&str> {
    std::str::from_utf8(bytes).map_err(|_| CUDA_ERROR_INVALID_IMAGE)
}
