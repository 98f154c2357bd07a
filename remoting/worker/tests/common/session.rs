//! A session of the worker's program on the software GPU, with memory, two streams and a few kernels.

use super::client::{CONTEXT, Client, row};
use super::worker::{Socket, Worker};
use protocol::{CopyToDevice, CopyToHost, Grant, Granted, Launch, LaunchShape, Reader, StreamSynchronize, UNCOUNTED};

pub const PROFILES: [&str; 2] = ["normal", "hostile"];
pub const MODULE: u64 = 5;
pub const A: u64 = 11;
pub const B: u64 = 12;
pub const NON_BLOCKING: u32 = 1;
pub const LIMIT: u64 = 256 << 20;
pub const SLAB: u64 = 64 << 20;
/// Granted for modules.
pub const CODE: u64 = 1 << 20;

pub const PTX: &str = r#"
.version 7.0
.target sm_70
.address_size 64
.global .align 4 .u32 counter = 41;

.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 sum, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .f32 %f<4>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [a];
    ld.param.u64 %d2, [b];
    ld.param.u64 %d3, [sum];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra done;
    mul.wide.u32 %d4, %r5, 4;
    add.s64 %d1, %d1, %d4;
    add.s64 %d2, %d2, %d4;
    add.s64 %d3, %d3, %d4;
    ld.global.f32 %f1, [%d1];
    ld.global.f32 %f2, [%d2];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%d3], %f3;
done:
    ret;
}

.visible .entry spin(.param .u64 flag)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [flag];
again:
    ld.volatile.global.u32 %r1, [%d1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra again;
    ret;
}

.visible .entry count(.param .u64 at)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [at];
    ld.global.u32 %r1, [%d1];
    add.u32 %r2, %r1, 1;
    st.global.u32 [%d1], %r2;
    ret;
}
"#;

pub struct Test {
    pub worker: Worker,
    pub base: u64,
}

pub fn start(profile: &str) -> Test {
    start_on(Worker::start(profile, LIMIT))
}

pub fn start_on(mut worker: Worker) -> Test {
    let opened = worker.client.open();
    assert!(opened.arena_size >= 1 << 34 && opened.granularity <= 2 << 20, "{opened:?}");
    let grant = worker.client.send(0, &Grant { device: 0, least: SLAB + CODE, want: SLAB + CODE }, &[]);
    let (code, tail) = worker.client.reply(grant);
    assert_eq!((code, Reader::new(&tail).get::<Granted>()), (0, Ok(Granted { size: SLAB + CODE })));
    worker.client.map(opened.arena_base, SLAB);
    worker.client.stream(A, NON_BLOCKING, 0);
    worker.client.stream(B, NON_BLOCKING, 0);
    Test { worker, base: opened.arena_base }
}

impl Test {
    pub fn client(&mut self) -> &mut Client<Socket> {
        &mut self.worker.client
    }

    /// Loads the module. Returns a look-up of a kernel's index in its list.
    pub fn load(&mut self) -> impl Fn(&str) -> u32 + use<> {
        let (code, loaded) = self.client().load(MODULE, PTX.as_bytes());
        assert_eq!(code, 0, "{}", loaded.log);
        for kernel in 0..loaded.kernels.len() as u32 {
            assert_eq!(self.client().describe(MODULE, kernel).0, 0);
        }
        move |name| loaded.kernels.iter().position(|k| k == name).expect("kernel") as u32
    }

    pub fn launch(&mut self, stream_id: u64, kernel: u32, grid: u32, block: u32, parameters: &[u8]) {
        let (grid, block) = ([grid, 1, 1], [block, 1, 1]);
        let shape = LaunchShape { grid, block, shared: 0, attributes: vec![] };
        let launch = Launch { module: MODULE, kernel, shape };
        self.client().send(stream_id, &launch, parameters);
    }

    pub fn write(&mut self, stream_id: u64, offset: u64, bytes: &[u8]) {
        let (address, extent) = (self.base + offset, row(bytes.len() as u64));
        for (i, piece) in bytes.chunks(protocol::BULK_CHUNK).enumerate() {
            let offset = (i * protocol::BULK_CHUNK) as u64;
            let copy = CopyToDevice { context: CONTEXT, address, extent: extent.clone(), offset };
            self.client().send(stream_id, &copy, piece);
        }
    }

    pub fn read(&mut self, stream_id: u64, offset: u64, len: u64) -> Vec<u8> {
        let copy = CopyToHost { context: CONTEXT, address: self.base + offset, extent: row(len), offset: 0, len };
        let seq = self.client().send(stream_id, &copy, &[]);
        let (code, bytes) = self.client().host_bytes(seq);
        assert_eq!(code, 0);
        bytes
    }

    pub fn synchronize(&mut self, stream_id: u64) -> u32 {
        self.client().call(stream_id, &StreamSynchronize { launches: UNCOUNTED }, &[]).0
    }
}

pub fn floats(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}
