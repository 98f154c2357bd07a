//! Reads a cubin's kernels and variables: its ELF symbols and the records of its `.nv.info` sections. Code is ignored.
//!
//! NVIDIA does not document the format. The source of each number:
//! - records, their attributes and the sections that contain them: the nvlink and ptxas chapters of
//!   grigoryevko/nvopen-tools ("`.nv.info` Metadata", "EIATTR Attribute Catalog"), in agreement with redplait/denvdis
//!   (`ced` and its table of attributes);
//! - `STO_CUDA_ENTRY`, the flag of a kernel's symbol: NVIDIA/cuda-gdb, `gdb/cuda`;
//! - the architecture in `e_flags` and the two versions of its layout: LLVM, `llvm/BinaryFormat/ELF.h` (`EF_CUDA_*`);
//! - all of these numbers, and the payloads of `KPARAM_INFO` and `KPARAM_INFO_V2`, were measured: cubins of nvcc 13.5
//!   for sm_80 to sm_100 were compared with the PTX of the same source. `tests/cubin.rs` of the software GPU repeats
//!   the comparison.

use crate::image::ImageError;
use std::collections::HashMap;

/// The position of a kernel parameter in the parameter buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    pub offset: u32,
    pub size: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub name: String,
    pub params: Vec<Param>,
    pub param_bytes: u32,
    /// Bytes of static shared memory, without the part of each block that the system reserves.
    pub static_shared: u32,
    pub local_bytes: u32,
    pub registers: u32,
    /// The limit for a block from `__launch_bounds__`.
    pub max_block: Option<[u32; 3]>,
    /// The block that `__block_size__` requires.
    pub required_block: Option<[u32; 3]>,
    /// The cluster that `__cluster_dims__` requires.
    pub required_cluster: Option<[u32; 3]>,
    /// The third argument of `__launch_bounds__`: the maximum number of blocks in a cluster.
    pub max_cluster: Option<u32>,
}

/// A variable in device memory. Its contents do not include relocated addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: String,
    pub size: u64,
    pub constant: bool,
    pub visible: bool,
    /// Whether the host uses the variable, too (`__managed__`).
    pub managed: bool,
    /// The first bytes; all further bytes are zero.
    pub contents: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// The compute capability: 90 for sm_90 and sm_90a.
    pub architecture: u32,
    pub kernels: Vec<Kernel>,
    pub variables: Vec<Variable>,
}

const ABI_VERSION: usize = 8;
/// The first ABI version with the architecture in the second byte of the flags. Earlier versions have it in the first.
const ABI_OF_CUDA_13: u8 = 8;

const SECTION_HEADER: usize = 64;
const SYMBOL: usize = 24;
const SHT_SYMTAB: u32 = 2;
const SHT_NOBITS: u32 = 8;
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
/// A variable whose address the linker has fixed.
const STT_CUDA_OBJECT: u8 = 13;
const STO_CUDA_ENTRY: u8 = 0x10;
/// Measured by compiling a `__managed__` variable with nvcc 13.
const STO_CUDA_MANAGED: u8 = 0x04;

/// Formats of a record: the value is in the last two bytes of the header, or in a payload whose length these bytes
/// give.
const FORMAT_HEADER_VALUE: u8 = 3;
const FORMAT_PAYLOAD: u8 = 4;

const MAX_THREADS: u8 = 0x05;
const REQNTID: u8 = 0x10;
const FRAME_SIZE: u8 = 0x11;
const KPARAM_INFO: u8 = 0x17;
const CBANK_PARAM_SIZE: u8 = 0x19;
const REGCOUNT: u8 = 0x2f;
const CTA_PER_CLUSTER: u8 = 0x3d;
const EXPLICIT_CLUSTER: u8 = 0x3e;
const MAX_CLUSTER_RANK: u8 = 0x3f;
const KPARAM_INFO_V2: u8 = 0x45;

/// The symbol of a cubin whose `.nv.shared.NAME` sections begin with memory that the system reserves in every block
/// (from sm_90 on).
const RESERVED_SHARED_SYMBOL: &str = ".nv.reservedSmem.offset0";
const RESERVED_SHARED: u64 = 1 << 10;

/// The shift of the register count in `sh_info` of a kernel's code section. Before CUDA 13 no other place has the
/// count.
const REGISTERS_SHIFT: u32 = 24;
const MAX_REGISTERS: u32 = 255;
/// An upper limit for a block's shared memory. No device has more.
const MAX_SHARED: u64 = 1 << 20;
/// An upper limit for a variable's size. Programs stay below it; a damaged file may contain any number.
const MAX_VARIABLE: u64 = 1 << 40;

struct Section<'a> {
    name: &'a str,
    kind: u32,
    bytes: &'a [u8],
    size: u64,
    link: u32,
    info: u32,
}

struct Symbol<'a> {
    name: &'a str,
    kind: u8,
    global: bool,
    other: u8,
    section: usize,
    value: u64,
    size: u64,
}

/// The contents of one kernel's records.
#[derive(Default)]
struct Info {
    params: Vec<(u16, Param)>,
    param_bytes: u32,
    max_block: Option<[u32; 3]>,
    required_block: Option<[u32; 3]>,
    cluster: Option<[u32; 3]>,
    cluster_is_explicit: bool,
    max_cluster: Option<u32>,
}

/// Registers and bytes of local memory, by the index of the kernel's symbol.
#[derive(Default)]
struct Resources {
    registers: HashMap<u32, u32>,
    local_bytes: HashMap<u32, u32>,
}

/// Returns the architecture that a cubin was compiled for: 90 for sm_90.
pub fn architecture(cubin: &[u8]) -> Result<u32, ImageError> {
    let flags = u32_at(cubin, 48)?;
    let version = *cubin.get(ABI_VERSION).ok_or(ImageError::Truncated)?;
    Ok(if version >= ABI_OF_CUDA_13 { flags >> 8 & 0xff } else { flags & 0xff })
}

/// Reads the kernels and variables of a cubin.
pub fn read(cubin: &[u8]) -> Result<Cubin, ImageError> {
    let architecture = architecture(cubin)?;
    let sections = sections(cubin)?;
    let by_name: HashMap<&str, &Section> = sections.iter().map(|s| (s.name, s)).collect();
    let symbols = symbols(&sections)?;
    let resources = by_name.get(".nv.info").map_or(Ok(Resources::default()), |s| resources(s.bytes))?;
    let reserves = symbols.iter().any(|s| s.name == RESERVED_SHARED_SYMBOL);
    let reserved = if reserves { RESERVED_SHARED } else { 0 };
    let (mut kernels, mut variables) = (Vec::new(), Vec::new());
    for (number, symbol) in (0..).zip(&symbols) {
        let Some(home) = sections.get(symbol.section) else { continue };
        match symbol.kind {
            STT_FUNC if symbol.other & STO_CUDA_ENTRY != 0 => {
                let info = by_name.get(format!(".nv.info.{}", symbol.name).as_str());
                let info = info.map_or(Ok(Info::default()), |s| kernel_info(s.bytes))?;
                let shared = by_name.get(format!(".nv.shared.{}", symbol.name).as_str()).map_or(0, |s| s.size);
                kernels.push(kernel(symbol.name, number, info, shared.saturating_sub(reserved), home, &resources)?);
            }
            STT_OBJECT | STT_CUDA_OBJECT if symbol.size > 0 => variables.extend(variable(symbol, home)?),
            _ => {}
        }
    }
    // A valid file has no duplicates. This check stops a small damaged file from allocating much memory.
    let names = kernels.iter().map(|k: &Kernel| k.name.len()).chain(variables.iter().map(|v: &Variable| v.name.len()));
    let contents = variables.iter().map(|v| v.contents.len());
    if names.chain(contents).sum::<usize>() > cubin.len() {
        return Err(ImageError::Corrupt);
    }
    Ok(Cubin { architecture, kernels, variables })
}

/// Returns the number of bytes that are loaded into the device's memory: variables, constants and code.
///
/// # Errors
/// If the section tables cannot be read.
pub fn loaded_bytes(cubin: &[u8]) -> Result<u64, ImageError> {
    let loaded = |name: &str| [".text", ".nv.global", ".nv.constant"].iter().any(|kind| name.starts_with(kind));
    let sections = sections(cubin)?;
    let sizes = sections.iter().filter(|section| loaded(section.name)).map(|section| section.size);
    Ok(sizes.fold(0, u64::saturating_add))
}

fn kernel(
    name: &str,
    number: u32,
    info: Info,
    shared: u64,
    code: &Section,
    resources: &Resources,
) -> Result<Kernel, ImageError> {
    let mut params = info.params;
    params.sort_by_key(|(ordinal, _)| *ordinal);
    let complete = (0..).zip(&params).all(|(expected, (ordinal, _))| expected == *ordinal);
    let inside = params.iter().all(|(_, p)| p.offset + p.size <= info.param_bytes);
    if !complete || !inside || name.is_empty() || shared > MAX_SHARED {
        return Err(ImageError::Corrupt);
    }
    let registers = resources.registers.get(&number).copied().unwrap_or(code.info >> REGISTERS_SHIFT);
    Ok(Kernel {
        name: name.to_owned(),
        params: params.into_iter().map(|(_, param)| param).collect(),
        param_bytes: info.param_bytes,
        static_shared: shared as u32,
        local_bytes: resources.local_bytes.get(&number).copied().unwrap_or(0),
        registers: registers.min(MAX_REGISTERS),
        max_block: info.max_block,
        required_block: info.required_block,
        required_cluster: info.cluster.filter(|_| info.cluster_is_explicit),
        max_cluster: info.max_cluster,
    })
}

/// Returns the variable of a symbol, or `None` if programs cannot look it up.
fn variable(symbol: &Symbol, home: &Section) -> Result<Option<Variable>, ImageError> {
    // Bank 3 contains the program's constants; the compiler uses the other banks.
    let constant = home.name == ".nv.constant3";
    if !constant && home.name != ".nv.global" && home.name != ".nv.global.init" {
        return Ok(None);
    }
    let end = symbol.value.checked_add(symbol.size).ok_or(ImageError::Corrupt)?;
    if end > home.size || symbol.size > MAX_VARIABLE {
        return Err(ImageError::Truncated);
    }
    let range = usize::try_from(symbol.value).ok().zip(usize::try_from(end).ok());
    let contents = range.and_then(|(start, end)| home.bytes.get(start..end)).unwrap_or_default();
    Ok(Some(Variable {
        name: symbol.name.to_owned(),
        size: symbol.size,
        constant,
        visible: symbol.global,
        managed: symbol.other & STO_CUDA_MANAGED != 0,
        contents: contents.to_vec(),
    }))
}

fn sections(elf: &[u8]) -> Result<Vec<Section<'_>>, ImageError> {
    let (table, entry) = (size_at(elf, 40)?, usize::from(u16_at(elf, 58)?));
    if entry != SECTION_HEADER {
        return Err(ImageError::Corrupt);
    }
    let header = |index: usize| {
        let start = index.checked_mul(SECTION_HEADER).and_then(|at| at.checked_add(table));
        start.and_then(|at| elf.get(at..at.checked_add(SECTION_HEADER)?)).ok_or(ImageError::Truncated)
    };
    // As in ELF: numbers that do not fit in the file's header are in the header of section 0.
    let count = match u16_at(elf, 60)? {
        0 => size_at(header(0)?, 32)?,
        count => usize::from(count),
    };
    let names = match u16_at(elf, 62)? {
        0xffff => u32_at(header(0)?, 40)?,
        index => index.into(),
    };
    if count > elf.len() / SECTION_HEADER {
        return Err(ImageError::Truncated);
    }
    let bytes = |header: &[u8]| -> Result<&[u8], ImageError> {
        let (start, len) = (size_at(header, 24)?, size_at(header, 32)?);
        let end = start.checked_add(len).ok_or(ImageError::Truncated)?;
        elf.get(start..end).ok_or(ImageError::Truncated)
    };
    let names = bytes(header(names as usize)?)?;
    let section = |index: usize| {
        let header = header(index)?;
        let (kind, size) = (u32_at(header, 4)?, u64_at(header, 32)?);
        // Section 0 and sections without file contents have no bytes; their offset is ignored.
        let bytes = if index == 0 || is_empty_in_file(kind) { &[] } else { bytes(header)? };
        let name = text(names, u32_at(header, 0)?)?;
        Ok(Section { name, kind, bytes, size, link: u32_at(header, 40)?, info: u32_at(header, 44)? })
    };
    (0..count).map(section).collect()
}

/// Whether a section has no contents in the file. NVIDIA's kinds are shared, local and global memory (from `SHT_LOPROC
/// + 7` on), as nvopen-tools lists them.
fn is_empty_in_file(kind: u32) -> bool {
    matches!(kind, SHT_NOBITS | 0x7000_0007..=0x7000_000a | 0x7000_0015)
}

fn symbols<'a>(sections: &[Section<'a>]) -> Result<Vec<Symbol<'a>>, ImageError> {
    let table = sections.iter().find(|s| s.kind == SHT_SYMTAB).ok_or(ImageError::Corrupt)?;
    let names = sections.get(table.link as usize).ok_or(ImageError::Corrupt)?.bytes;
    let symbol = |bytes: &[u8]| {
        Ok(Symbol {
            name: text(names, u32_at(bytes, 0)?)?,
            kind: bytes[4] & 15,
            global: bytes[4] >> 4 != 0,
            other: bytes[5],
            section: u16_at(bytes, 6)?.into(),
            value: u64_at(bytes, 8)?,
            size: u64_at(bytes, 16)?,
        })
    };
    table.bytes.chunks_exact(SYMBOL).map(symbol).collect()
}

/// Calls `each` for every record, with its format, its attribute, the header's value and the payload.
fn records(
    mut bytes: &[u8],
    mut each: impl FnMut(u8, u8, u16, &[u8]) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    while !bytes.is_empty() {
        let (format, attribute, value) = (bytes[0], *bytes.get(1).ok_or(ImageError::Truncated)?, u16_at(bytes, 2)?);
        let length = if format == FORMAT_PAYLOAD { usize::from(value) } else { 0 };
        let payload = bytes.get(4..4 + length).ok_or(ImageError::Truncated)?;
        each(format, attribute, value, payload)?;
        bytes = &bytes[4 + length..];
    }
    Ok(())
}

fn resources(bytes: &[u8]) -> Result<Resources, ImageError> {
    let mut found = Resources::default();
    records(bytes, |format, attribute, _, payload| {
        let table = match (format, attribute) {
            (FORMAT_PAYLOAD, REGCOUNT) => &mut found.registers,
            (FORMAT_PAYLOAD, FRAME_SIZE) => &mut found.local_bytes,
            _ => return Ok(()),
        };
        table.insert(u32_at(payload, 0)?, u32_at(payload, 4)?);
        Ok(())
    })?;
    Ok(found)
}

fn kernel_info(bytes: &[u8]) -> Result<Info, ImageError> {
    let mut found = Info::default();
    records(bytes, |format, attribute, value, payload| {
        let extent = || Ok([u32_at(payload, 0)?, u32_at(payload, 4)?, u32_at(payload, 8)?]);
        match (format, attribute) {
            (FORMAT_HEADER_VALUE, CBANK_PARAM_SIZE) => found.param_bytes = value.into(),
            (FORMAT_PAYLOAD, KPARAM_INFO) => found.params.push(param(payload, u32_at(payload, 8)? >> 18)?),
            (FORMAT_PAYLOAD, KPARAM_INFO_V2) => found.params.push(param(payload, u16_at(payload, 8)?.into())?),
            (FORMAT_PAYLOAD, MAX_THREADS) => found.max_block = Some(extent()?),
            (FORMAT_PAYLOAD, REQNTID) => found.required_block = Some(extent()?),
            (FORMAT_PAYLOAD, CTA_PER_CLUSTER) => found.cluster = Some(extent()?),
            (FORMAT_PAYLOAD, MAX_CLUSTER_RANK) => found.max_cluster = Some(u32_at(payload, 0)?),
            (_, EXPLICIT_CLUSTER) => found.cluster_is_explicit = true,
            _ => {}
        }
        Ok(())
    })?;
    Ok(found)
}

/// Parses a parameter. In both versions of the record an index, the parameter's number and its offset precede the size.
fn param(payload: &[u8], size: u32) -> Result<(u16, Param), ImageError> {
    Ok((u16_at(payload, 4)?, Param { offset: u16_at(payload, 6)?.into(), size }))
}

fn text(table: &[u8], at: u32) -> Result<&str, ImageError> {
    let rest = table.get(at as usize..).ok_or(ImageError::Truncated)?;
    let length = rest.iter().position(|&byte| byte == 0).ok_or(ImageError::Truncated)?;
    std::str::from_utf8(&rest[..length]).map_err(|_| ImageError::Corrupt)
}

fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], ImageError> {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).copied().ok_or(ImageError::Truncated)
}

fn u16_at(bytes: &[u8], offset: usize) -> Result<u16, ImageError> {
    bytes_at(bytes, offset).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], offset: usize) -> Result<u32, ImageError> {
    bytes_at(bytes, offset).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], offset: usize) -> Result<u64, ImageError> {
    bytes_at(bytes, offset).map(u64::from_le_bytes)
}

fn size_at(bytes: &[u8], offset: usize) -> Result<usize, ImageError> {
    usize::try_from(u64_at(bytes, offset)?).map_err(|_| ImageError::TooLarge)
}
