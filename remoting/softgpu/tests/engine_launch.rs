//! Whole kernels through `launch`.

mod engine_support;

use engine_support::{Arg, Buffer, Gpu};

const VECTOR_ADD: &str = "
.version 8.4
.target sm_80
.address_size 64
.visible .entry vadd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<11>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u32 %r2, [n];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r1, %r3, %r4, %r5;
    setp.ge.s32 %p1, %r1, %r2;
    @%p1 bra $L__BB0_2;
    cvta.to.global.u64 %rd4, %rd1;
    mul.wide.s32 %rd5, %r1, 4;
    add.s64 %rd6, %rd4, %rd5;
    cvta.to.global.u64 %rd7, %rd2;
    add.s64 %rd8, %rd7, %rd5;
    ld.global.f32 %f1, [%rd8];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f2, %f1;
    cvta.to.global.u64 %rd9, %rd3;
    add.s64 %rd10, %rd9, %rd5;
    st.global.f32 [%rd10], %f3;
$L__BB0_2:
    ret;
}
";

#[test]
fn adds_vectors() {
    let n = 100_003;
    let a = Buffer::of_f32(&(0..n).map(|i| i as f32 * 0.5).collect::<Vec<_>>());
    let b = Buffer::of_f32(&(0..n).map(|i| 7.0 - i as f32).collect::<Vec<_>>());
    let c = Buffer::new(n * 4);
    let gpu = Gpu::new(&[VECTOR_ADD]);
    gpu.run("vadd", n.div_ceil(256) as u32, 256, &[Arg::Ptr(&a), Arg::Ptr(&b), Arg::Ptr(&c), Arg::U32(n as u32)]);
    let expected: Vec<f32> = (0..n).map(|i| i as f32 * 0.5 + (7.0 - i as f32)).collect();
    assert_eq!(c.f32s(), expected);
}

#[test]
fn refuses_addresses_outside_of_allocations() {
    let (a, b, c) = (Buffer::new(400), Buffer::new(400), Buffer::new(396));
    let gpu = Gpu::new(&[VECTOR_ADD]);
    let args = [Arg::Ptr(&a), Arg::Ptr(&b), Arg::Ptr(&c), Arg::U32(100)];
    let fault = gpu.launch("vadd", [1, 1, 1], [128, 1, 1], &args).unwrap_err();
    assert_eq!(fault.code, 700);
    let last = c.address() + 396;
    assert!(fault.message.contains(&format!("4 bytes at 0x{last:x}")), "{}", fault.message);
    assert!(fault.message.contains("thread (99,0,0)"), "{}", fault.message);
}

/// Each thread takes its neighbour's word in the next block, and adds one; by calls as numba makes them.
const ROTATE: &str = "
.version 7.8
.target sm_80
.address_size 64
.extern .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope);
.extern .func (.param .b32 error) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);
.visible .entry rotate(.param .u64 words, .param .u32 n, .param .u32 rounds)
{
    .param .b32 scope; .param .b64 handle; .param .b32 flags; .param .b32 error;
    .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .pred %p;
    st.param.b32 [scope], 1;
    call (handle), cudaCGGetIntrinsicHandle, (scope);
    ld.param.u64 %d1, [words]; ld.param.u32 %r1, [n]; ld.param.u32 %r2, [rounds];
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x; mad.lo.u32 %r3, %r3, %r4, %r5;
    mad.wide.u32 %d2, %r3, 4, %d1;
    add.u32 %r3, %r3, %r4; rem.u32 %r3, %r3, %r1;
    mad.wide.u32 %d3, %r3, 4, %d1;
    st.param.b32 [flags], 0;
AGAIN:
    ld.global.u32 %r6, [%d3]; add.u32 %r6, %r6, 1;
    call (error), cudaCGSynchronize, (handle, flags);
    st.global.u32 [%d2], %r6;
    call (error), cudaCGSynchronize, (handle, flags);
    sub.u32 %r2, %r2, 1; setp.ne.u32 %p, %r2, 0;
    @%p bra AGAIN;
    ld.param.u32 %r6, [error]; st.global.u32 [%d1], %r6;
    ret;
}
";

#[test]
fn blocks_of_a_cooperative_launch_wait_for_each_other() {
    const ROUNDS: u32 = 3;
    // More blocks than one OS thread otherwise keeps in progress.
    for (threads, blocks) in [(1, 600), (2, 5), (8, 600)] {
        let n = 32 * blocks;
        let words = Buffer::of_u32(&(0..n).map(|i| i * 10).collect::<Vec<_>>());
        let mut gpu = Gpu::new(&[ROTATE]);
        (gpu.threads, gpu.cooperative) = (threads, true);
        gpu.run("rotate", blocks, 32, &[Arg::Ptr(&words), Arg::U32(n), Arg::U32(ROUNDS)]);
        let mut expected: Vec<u32> = (0..n).map(|i| (i + 32 * ROUNDS) % n * 10 + ROUNDS).collect();
        expected[0] = 0;
        assert_eq!(words.u32s(), expected, "{blocks} blocks on {threads} OS threads");
    }
}

#[test]
fn without_a_cooperative_launch_there_is_no_grid_to_wait_for() {
    let words = Buffer::of_u32(&[0; 32]);
    Gpu::new(&[ROTATE]).run("rotate", 1, 32, &[Arg::Ptr(&words), Arg::U32(32), Arg::U32(1)]);
    assert_eq!(words.u32s()[..2], [1, 1], "an error, and the word");
}

#[test]
fn a_kernel_keeps_the_architecture_that_it_was_compiled_for() {
    // The library for dynamic parallelism, for which the others are linked, is for a later one.
    let unit = |target: u32, name: &str| {
        format!(".version 8.8\n.target sm_{target}\n.address_size 64\n.visible .entry {name}() {{ ret; }}")
    };
    let gpu = Gpu::new(&[&unit(80, "own"), &unit(121, "library")]);
    let kernels = gpu.image.program().kernels().iter().map(|k| (k.name.as_str(), k.architecture));
    assert_eq!(kernels.collect::<Vec<_>>(), [("own", 80), ("library", 121)]);
}

#[test]
fn a_kernel_that_launches_kernels_is_refused() {
    let text = ".version 7.8\n.target sm_80\n.address_size 64
        .extern .func (.param .b32 error) __cudaCDP2LaunchDeviceV2(.param .b64 buffer, .param .b64 stream);
        .visible .entry parent() { .param .b64 buffer; .param .b64 stream; .param .b32 error;
            call (error), __cudaCDP2LaunchDeviceV2, (buffer, stream); ret; }";
    let gpu = Gpu::new(&[text]);
    let why = gpu.image.program().kernels()[0].unsupported.clone().unwrap();
    assert!(why.contains("dynamic parallelism is not provided: '__cudaCDP2LaunchDeviceV2'"), "{why}");
}
