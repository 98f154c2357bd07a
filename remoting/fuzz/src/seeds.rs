//! The seeds: valid inputs from which mutation starts.

use driverapi::fatbin::Kind;
use driverapi::image::{self, Image};
use protocol::{Header, Preface, PrefaceKind, Wire, Writer};

/// Fat binaries made by nvcc and fatbinary. The tests of `driverapi` use the same files.
const FATBINS: [&[u8]; 5] = [
    include_bytes!("../../driverapi/tests/data/stored.fatbin"),
    include_bytes!("../../driverapi/tests/data/lz4.fatbin"),
    include_bytes!("../../driverapi/tests/data/zstd.fatbin"),
    include_bytes!("../../driverapi/tests/data/group_lz4.fatbin"),
    include_bytes!("../../driverapi/tests/data/group_zstd.fatbin"),
];

const KERNELS: &[u8] = include_bytes!("../../driverapi/tests/data/kernels.fatbin");

const PTX: [&str; 4] = [
    include_str!("../seeds/arithmetic.ptx"),
    include_str!("../seeds/control.ptx"),
    include_str!("../seeds/memory.ptx"),
    include_str!("../seeds/calls.ptx"),
];

fn frame(code: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header { len: payload.len() as u32, code, seq: 1, stream_id: 2, ack: 3 };
    [&header.encode(), payload].concat()
}

fn encoded(value: &impl Wire) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.put(value);
    writer.bytes
}

/// Returns a frame of each message, frames with lists and texts, a large frame, and all of these frames in a row.
pub fn frames() -> Vec<Vec<u8>> {
    let mut seeds: Vec<_> = protocol::samples().iter().map(|(code, payload)| frame(*code, payload)).collect();
    let attributes = vec![protocol::LaunchAttribute { id: 4, value: [5; 8] }];
    let shape = protocol::LaunchShape { grid: [1, 2, 3], block: [32, 1, 1], shared: 0, attributes };
    let launch = protocol::Launch { module: 1, kernel: 0, shape };
    let launch = [encoded(&launch), vec![6; 40]].concat();
    let link = protocol::Link {
        context: 1,
        options: vec![(7, 8), (9, 10)],
        inputs: vec![protocol::LinkInput { kind: 1, name: "input.ptx".into(), hash: [11; 32] }],
    };
    let open = protocol::Open { wire_version: 1, table_hash: 2, client_pid: 3, client_name: "python train.py".into() };
    let large = protocol::SupplyBytes { command: 1, offset: 2 };
    let large = [encoded(&large), vec![12; 20_000]].concat();
    use protocol::Message;
    seeds.extend([
        frame(protocol::Launch::CODE, &launch),
        frame(protocol::Link::CODE, &encoded(&link)),
        frame(protocol::Open::CODE, &encoded(&open)),
        frame(protocol::SupplyBytes::CODE, &large),
        frame(1, &[13; 24]),
    ]);
    let stream = seeds.concat();
    seeds.push(stream);
    seeds
}

pub fn records() -> Vec<Vec<u8>> {
    let kernel = protocol::KernelInfo {
        params: vec![protocol::KernelParam { offset: 0, size: 8 }, protocol::KernelParam { offset: 8, size: 4 }],
        attributes: vec![(0, 1024), (5, -1)],
    };
    let loaded = protocol::ModuleLoaded { kernels: vec!["one".into(), "two".into()], log: "log".into() };
    let linked = protocol::Linked { info_log: "info".into(), error_log: "error".into() };
    let bodies = [
        encoded(&protocol::Opened { arena_base: 1 << 40, arena_size: 1 << 38, granularity: 2 << 20, image_bytes: 1 << 30 }),
        encoded(&protocol::Granted { size: 1 }),
        encoded(&protocol::MemoryState { limit: 2, free: 1 }),
        encoded(&loaded),
        encoded(&protocol::Symbol { address: 1, size: 2, managed: true }),
        encoded(&linked),
        encoded(&kernel),
        encoded(&vec![("text".to_owned(), vec![1u64, 2, 3])]),
    ];
    bodies.into_iter().zip(0u8..).map(|(body, choice)| [vec![choice], body].concat()).collect()
}

pub fn prefaces() -> Vec<Vec<u8>> {
    let preface = |kind| Preface { kind, id: [1; 16], ticket: [2; 32] }.encode();
    let resume = Preface::resume([1; 16], &[2; 32], 3, 4).encode();
    let memory = Preface::memory([1; 16], &[2; 32]).encode();
    let stripe = Preface::stripe([1; 16], &[2; 32], 3).encode();
    vec![preface(PrefaceKind::Session), preface(PrefaceKind::Lease), resume, memory, stripe, frame(1, &[3; 40])]
}

pub fn images() -> Vec<Vec<u8>> {
    let cubins = cubins();
    FATBINS.iter().map(|bytes| bytes.to_vec()).chain([KERNELS.to_vec()]).chain(cubins).collect()
}

/// Returns the cubins of a fat binary, for several architectures.
pub fn cubins() -> Vec<Vec<u8>> {
    let Ok(Image::Fatbin(entries)) = image::parse(KERNELS) else { return Vec::new() };
    let machine_code = entries.iter().filter(|entry| entry.kind == Kind::Elf);
    machine_code.filter_map(|entry| entry.data().ok().map(|data| data.into_owned())).collect()
}

/// Returns our own PTX texts, and the PTX of the fat binaries, which a compiler made.
pub fn ptx() -> Vec<Vec<u8>> {
    let compiled = FATBINS.iter().filter_map(|bytes| match image::parse(bytes) {
        Ok(Image::Fatbin(entries)) => entries.first()?.data().ok().map(|data| data.into_owned()),
        _ => None,
    });
    let ours = PTX.iter().map(|text| text.as_bytes().to_vec());
    ours.chain(compiled.filter(|data| data.is_ascii())).collect()
}

#[cfg(test)]
mod tests {
    /// Checks that each PTX seed compiles. A seed that the compiler refuses at once tests little of it.
    #[test]
    fn the_texts_compile() {
        for seed in super::ptx() {
            let text = String::from_utf8(seed).unwrap();
            if let Err(error) = softgpu::engine::Program::compile(&[&text]) {
                panic!("{error}\n{text}");
            }
        }
    }
}
