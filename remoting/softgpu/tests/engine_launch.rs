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
