//! Runs PTX on the engine with buffers of the test's own.
#![allow(dead_code)]

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use softgpu::engine::{Fault, Image, LaunchSpec, MemoryMap, Output, Program, Textures, ThreadPool, launch};

/// Device memory: 16-byte aligned, valid while it lives.
pub struct Buffer {
    units: Vec<u128>,
    bytes: usize,
}

impl Buffer {
    pub fn new(bytes: usize) -> Buffer {
        Buffer { units: vec![0; bytes.div_ceil(16).max(1)], bytes }
    }

    pub fn address(&self) -> u64 {
        self.units.as_ptr() as u64
    }

    pub fn bytes(&self) -> Vec<u8> {
        let all: Vec<u8> = self.units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        all[..self.bytes].to_vec()
    }

    pub fn u32s(&self) -> Vec<u32> {
        self.bytes().chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
    }

    pub fn u64s(&self) -> Vec<u64> {
        self.bytes().chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
    }

    pub fn f32s(&self) -> Vec<f32> {
        self.u32s().into_iter().map(f32::from_bits).collect()
    }

    pub fn fill(&mut self, bytes: &[u8]) {
        for (unit, chunk) in self.units.iter_mut().zip(bytes.chunks(16)) {
            let mut whole = unit.to_le_bytes();
            whole[..chunk.len()].copy_from_slice(chunk);
            *unit = u128::from_le_bytes(whole);
        }
    }

    pub fn of_u32(values: &[u32]) -> Buffer {
        let mut buffer = Buffer::new(values.len() * 4);
        buffer.fill(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
        buffer
    }

    pub fn of_f32(values: &[f32]) -> Buffer {
        Buffer::of_u32(&values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>())
    }

    pub fn of_u64(values: &[u64]) -> Buffer {
        let mut buffer = Buffer::new(values.len() * 8);
        buffer.fill(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
        buffer
    }
}

/// A kernel argument.
pub enum Arg<'a> {
    Ptr(&'a Buffer),
    U32(u32),
    U64(u64),
    F32(f32),
    F64(f64),
    /// A parameter of any size, in units of 16 bytes.
    Bytes(&'a [u128]),
}

#[derive(Default)]
pub struct Log(pub Mutex<Vec<u8>>);

impl Output for Log {
    fn write(&self, text: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(text);
    }
}

/// A loaded program.
pub struct Gpu {
    pub image: Image,
    pub memory: MemoryMap,
    pub globals: Vec<Buffer>,
    pub log: Log,
    pub cancel: AtomicBool,
    pub threads: usize,
    pub shared: u32,
    pub cooperative: bool,
    pool: ThreadPool,
}

impl Gpu {
    pub fn new(units: &[&str]) -> Gpu {
        let program = Arc::new(Program::compile(units).unwrap_or_else(|error| panic!("{error}")));
        let globals: Vec<Buffer> = program.globals().iter().map(|g| Buffer::new(g.size as usize)).collect();
        let image = Image::new(program, globals.iter().map(Buffer::address).collect());
        let mut gpu = Gpu {
            image,
            memory: MemoryMap::new(),
            globals,
            log: Log::default(),
            cancel: AtomicBool::new(false),
            threads: 2,
            shared: 0,
            cooperative: false,
            pool: ThreadPool::new(2),
        };
        for index in 0..gpu.globals.len() {
            let bytes = gpu.image.initial_bytes(index);
            gpu.globals[index].fill(&bytes);
            gpu.memory.insert(gpu.globals[index].address(), bytes.len() as u64);
        }
        gpu
    }

    pub fn kernel(&self, name: &str) -> usize {
        let kernels = self.image.program().kernels();
        kernels.iter().position(|k| k.name == name).unwrap_or_else(|| panic!("no kernel {name}"))
    }

    pub fn launch(&self, name: &str, grid: [u32; 3], block: [u32; 3], args: &[Arg]) -> Result<(), Fault> {
        let kernel = self.kernel(name);
        let info = &self.image.program().kernels()[kernel];
        assert_eq!(info.unsupported, None);
        let mut params = vec![0; info.param_bytes as usize];
        for (param, arg) in info.params.iter().zip(args) {
            let bytes = match arg {
                Arg::Ptr(buffer) => {
                    self.memory.insert(buffer.address(), buffer.bytes as u64);
                    buffer.address().to_le_bytes().to_vec()
                }
                Arg::U32(value) => value.to_le_bytes().to_vec(),
                Arg::U64(value) => value.to_le_bytes().to_vec(),
                Arg::F32(value) => value.to_le_bytes().to_vec(),
                Arg::F64(value) => value.to_le_bytes().to_vec(),
                Arg::Bytes(units) => units.iter().flat_map(|unit| unit.to_le_bytes()).collect(),
            };
            let offset = param.offset as usize;
            params[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        let spec = LaunchSpec {
            grid,
            block,
            dynamic_shared: self.shared,
            params: &params,
            textures: &Textures::default(),
            cooperative: self.cooperative,
            threads: self.threads,
            watch: None,
        };
        let result = launch(&self.image, kernel, &spec, &self.memory, &self.pool, &self.log, &self.cancel);
        for arg in args {
            if let Arg::Ptr(buffer) = arg {
                self.memory.remove(buffer.address());
            }
        }
        result
    }

    pub fn run(&self, name: &str, grid: u32, block: u32, args: &[Arg]) {
        self.launch(name, [grid, 1, 1], [block, 1, 1], args).unwrap_or_else(|fault| panic!("{fault:?}"));
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.log.0.lock().unwrap().clone()).unwrap()
    }
}

/// A kernel around instructions: `%in` and `%out` point to the thread's 64-byte rows of two buffers.
pub fn kernel(body: &str) -> String {
    format!(
        ".version 8.4
.target sm_80
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{{
    .reg .b64 %in, %out, %row;
    .reg .b32 %t;
    .reg .pred %p<8>;
    .reg .b16 %h<16>;
    .reg .b32 %r<32>;
    .reg .b64 %d<16>;
    .reg .f32 %f<16>;
    .reg .f64 %fd<16>;
    ld.param.u64 %in, [in];
    ld.param.u64 %out, [out];
    mov.u32 %t, %tid.x;
    mul.wide.u32 %row, %t, 64;
    add.s64 %in, %in, %row;
    add.s64 %out, %out, %row;
{body}
    ret;
}}
"
    )
}

/// Runs `kernel(body)` for one thread per input row; returns each row's output words.
pub fn rows(body: &str, inputs: &[Vec<u32>]) -> Vec<[u32; 16]> {
    let mut words = Vec::new();
    for row in inputs {
        let mut row = row.clone();
        row.resize(16, 0);
        words.extend(row);
    }
    let (input, output) = (Buffer::of_u32(&words), Buffer::new(words.len() * 4));
    let gpu = Gpu::new(&[&kernel(body)]);
    gpu.run("k", 1, inputs.len() as u32, &[Arg::Ptr(&input), Arg::Ptr(&output)]);
    output.u32s().chunks_exact(16).map(|row| row.try_into().unwrap()).collect()
}

/// Evaluates one instruction on 32-bit operands: `%r0` from `%r1`, `%r2`, `%r3`.
pub fn words(instruction: &str, operands: &[u32]) -> u32 {
    let loads: String = (0..operands.len()).map(|i| format!("ld.global.u32 %r{}, [%in+{}];\n", i + 1, 4 * i)).collect();
    let body = format!("{loads}{instruction}\nst.global.u32 [%out], %r0;");
    rows(&body, &[operands.to_vec()])[0][0]
}

/// Evaluates one instruction on 64-bit operands: `%d0` from `%d1`, `%d2`, `%d3`.
pub fn doubles(instruction: &str, operands: &[u64]) -> u64 {
    let loads: String = (0..operands.len()).map(|i| format!("ld.global.u64 %d{}, [%in+{}];\n", i + 1, 8 * i)).collect();
    let body = format!("{loads}{instruction}\nst.global.u64 [%out], %d0;");
    let input = operands.iter().flat_map(|v| [*v as u32, (*v >> 32) as u32]).collect();
    let row = rows(&body, &[input])[0];
    u64::from(row[0]) | u64::from(row[1]) << 32
}
