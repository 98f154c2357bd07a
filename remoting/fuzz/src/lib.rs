//! The fuzz targets. Each is a function that passes any bytes to a decoder, and panics if the decoder has an error.

mod mutate;
mod seeds;

use driverapi::cubin;
use driverapi::device_bytes::device_bytes;
use driverapi::fatbin::{Executes, for_device};
use driverapi::image::{self, Image};
use protocol::{Decoder, HEADER_BYTES, Header, PREFACE_BYTES, PieceHeader, Preface, PrefaceKind, RESUME_BYTES, Reader, STRIPE_BYTES, SharedMemory, Wire, Writer, reencode};
use remotegpu_worker::order::command::Frame;
use remotegpu_worker::io::frames::{FrameReader, Payload};
use softgpu::engine::Program;

pub use mutate::Mutator;

/// A fuzz target: its name, the function that runs it, and valid inputs from which mutation starts.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub seeds: fn() -> Vec<Vec<u8>>,
}

pub const TARGETS: &[Target] = &[
    Target { name: "frames", run: frames, seeds: seeds::frames },
    Target { name: "commands", run: commands, seeds: seeds::frames },
    Target { name: "records", run: records, seeds: seeds::records },
    Target { name: "preface", run: preface, seeds: seeds::prefaces },
    Target { name: "image", run: image, seeds: seeds::images },
    Target { name: "cubin", run: cubin, seeds: seeds::cubins },
    Target { name: "ptx", run: ptx, seeds: seeds::ptx },
];

/// Checks that a stream gives the same frames in one piece and in small pieces, and that each decoded message encodes
/// to the same bytes.
pub fn frames(data: &[u8]) {
    let whole = decode_all(data, data.len().max(1));
    let in_pieces = decode_all(data, 7);
    assert!(whole == in_pieces, "frames depend on the pieces they arrive in");
    for (header, payload) in whole {
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        if let Ok(again) = reencode(header.code, &payload) {
            assert!(again == payload, "message {:#x} does not encode to what it was decoded from", header.code);
        }
    }
}

fn decode_all(data: &[u8], piece: usize) -> Vec<(Header, Vec<u8>)> {
    let (mut decoder, mut found) = (Decoder::new(), Vec::new());
    for piece in data.chunks(piece) {
        decoder.feed(piece);
        while let Ok(Some((header, payload))) = decoder.next_frame() {
            found.push((header, payload.to_vec()));
        }
    }
    found
}

/// Decodes bytes to commands with the worker's frame reader.
pub fn commands(data: &[u8]) {
    let mut reader = FrameReader::default();
    let mut rest = data;
    loop {
        match reader.next(|_, _| None) {
            Ok(Some((header, payload))) => command(&header, payload),
            Ok(None) if rest.is_empty() => return,
            Ok(None) => {
                let space = reader.space();
                let len = space.len().min(rest.len());
                assert!(len > 0, "the reader wants more bytes and has no room for them");
                space[..len].copy_from_slice(&rest[..len]);
                rest = &rest[len..];
                reader.filled(len);
            }
            Err(_) => return,
        }
    }
}

fn command(header: &Header, payload: Payload) {
    assert_eq!(payload.bytes().len(), header.len as usize);
    if let Ok(frame) = Frame::decode(header, payload) {
        assert!(frame.tail().len() <= header.len as usize);
        let _ = frame.events();
    }
}

/// Checks that each reply that the client decodes encodes to the same bytes. The first byte selects the reply's type.
pub fn records(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    match choice % 8 {
        0 => record::<protocol::Opened>(bytes),
        1 => record::<protocol::Granted>(bytes),
        2 => record::<protocol::MemoryState>(bytes),
        3 => record::<protocol::ModuleLoaded>(bytes),
        4 => record::<protocol::Symbol>(bytes),
        5 => record::<protocol::Linked>(bytes),
        6 => record::<protocol::KernelInfo>(bytes),
        _ => record::<Vec<(String, Vec<u64>)>>(bytes),
    }
}

fn record<T: Wire>(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let Ok(value) = reader.get::<T>() else { return };
    let read = bytes.len() - reader.remaining();
    let mut writer = Writer::new();
    writer.put(&value);
    assert!(writer.bytes == bytes[..read], "a record does not encode to what it was decoded from");
    assert_eq!(value.size(), read);
    assert!(read >= T::MIN_SIZE);
}

/// Checks that the preface of a data connection, a client's message about shared memory, and the headers of pieces and
/// frames encode to the bytes from which they were decoded.
pub fn preface(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<PREFACE_BYTES>()
        && let Some(preface) = Preface::decode(bytes)
    {
        let more = &data[PREFACE_BYTES..];
        match preface.kind {
            PrefaceKind::Resume { .. } => {
                if let Some(more) = more.first_chunk::<RESUME_BYTES>() {
                    assert_eq!(preface.resumes(more).encode(), data[..PREFACE_BYTES + RESUME_BYTES]);
                }
            }
            PrefaceKind::Stripe { .. } => {
                if let Some(more) = more.first_chunk::<STRIPE_BYTES>() {
                    assert_eq!(preface.numbered(more).encode(), data[..PREFACE_BYTES + STRIPE_BYTES]);
                }
            }
            _ => assert_eq!(preface.encode(), *bytes),
        }
    }
    if let Some(bytes) = data.first_chunk() {
        assert_eq!(SharedMemory::decode(bytes).encode(), *bytes);
    }
    if let Some(bytes) = data.first_chunk() {
        assert_eq!(PieceHeader::decode(bytes).encode(), *bytes);
    }
    if let Some(bytes) = data.first_chunk::<HEADER_BYTES>()
        && let Ok(header) = Header::decode(bytes)
    {
        assert_eq!(header.encode(), *bytes);
    }
}

/// Parses a fat binary, trims it for several devices, and parses its entries.
pub fn image(data: &[u8]) {
    let Ok(Image::Fatbin(entries)) = image::parse(data) else { return };
    for executes in [Executes::MachineCode, Executes::PtxOnly] {
        for capability in [75, 80, 90, 120] {
            let Ok(Some(trimmed)) = for_device(data, capability, executes) else { continue };
            assert!(trimmed.len() < data.len());
            assert!(matches!(image::parse(&trimmed), Ok(Image::Fatbin(_))), "a trimmed container is a container");
        }
    }
    // A damaged count may list one image many times; decompressing it often proves nothing.
    for entry in entries.iter().take(16) {
        if let Ok(image) = entry.data() {
            let _ = image::parse(&image);
        }
    }
}

/// Reads a cubin, and checks the sizes of its kernels' parameters and of its variables.
pub fn cubin(data: &[u8]) {
    let Ok(found) = cubin::read(data) else { return };
    for kernel in &found.kernels {
        assert!(kernel.params.iter().all(|p| p.offset + p.size <= kernel.param_bytes));
    }
    for variable in &found.variables {
        assert!(variable.contents.len() as u64 <= variable.size);
    }
    let program = Program::describe(&[found]);
    assert!(program.kernels().len() + program.globals().len() <= data.len());
}

/// Compiles PTX, and checks that [`device_bytes`] counts all of its variables.
pub fn ptx(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(program) = Program::compile(&[text])
    {
        assert!(program.kernels().len() + program.globals().len() <= text.len());
        let variables = program.globals().iter().map(|variable| variable.size).fold(0, u64::saturating_add);
        assert!(variables <= device_bytes(&[data]), "a share is charged for all that is loaded");
    }
}
