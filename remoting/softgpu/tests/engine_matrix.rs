//! `ldmatrix` and `mma` against a plain matrix product.

mod engine_support;

use engine_support::{Arg, Buffer, Gpu};

/// One warp: ldmatrix loads A (row-major 16 x 16) and, transposed, B (row-major 16 x 8) from shared memory; D = A B +
/// C.
fn program(ty: &str) -> String {
    format!(
        ".version 8.4\n.target sm_80\n.address_size 64\n
.entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) {{
    .shared .align 16 .b8 sa[512]; .shared .align 16 .b8 sb[256];
    .reg .b32 %r<40>; .reg .b64 %d<12>; .reg .f32 %f<8>;
    ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c]; ld.param.u64 %d4, [d];
    mov.u32 %r1, %tid.x; mul.wide.u32 %d5, %r1, 16; add.u64 %d6, %d1, %d5; mul.wide.u32 %d7, %r1, 8; add.u64 %d8, %d2, %d7;
    mov.u32 %r2, sa; mad.lo.u32 %r3, %r1, 16, %r2; cp.async.cg.shared.global [%r3], [%d6], 16;
    mov.u32 %r4, sb; mad.lo.u32 %r5, %r1, 8, %r4; ld.global.v2.u32 {{%r6, %r7}}, [%d8]; st.shared.v2.u32 [%r5], {{%r6, %r7}};
    cp.async.wait_all; bar.sync 0;
    // Lane 8m + r points to row r of matrix m: the quarters of A in the order of its registers.
    and.b32 %r8, %r1, 15; shr.u32 %r9, %r1, 4; mad.lo.u32 %r10, %r8, 32, %r2; mad.lo.u32 %r10, %r9, 16, %r10;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r11, %r12, %r13, %r14}}, [%r10];
    mad.lo.u32 %r15, %r8, 16, %r4;
    ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{%r16, %r17}}, [%r15];
    shr.u32 %r18, %r1, 2; and.b32 %r19, %r1, 3; shl.b32 %r20, %r18, 5; mad.lo.u32 %r20, %r19, 8, %r20; cvt.u64.u32 %d9, %r20;
    add.u64 %d3, %d3, %d9; add.u64 %d4, %d4, %d9;
    ld.global.v2.f32 {{%f1, %f2}}, [%d3]; ld.global.v2.f32 {{%f3, %f4}}, [%d3+256];
    mma.sync.aligned.m16n8k16.row.col.f32.{ty}.{ty}.f32 {{%f1, %f2, %f3, %f4}}, {{%r11, %r12, %r13, %r14}}, {{%r16, %r17}}, {{%f1, %f2, %f3, %f4}};
    st.global.v2.f32 [%d4], {{%f1, %f2}}; st.global.v2.f32 [%d4+256], {{%f3, %f4}};
    ret;
}}"
    )
}

/// Small integers are exact in every type.
fn value(index: usize) -> f32 {
    (index * 7 % 13) as f32 - 6.0
}

fn pack(values: &[f32], to_bits: impl Fn(f32) -> u16) -> Buffer {
    let words: Vec<u32> =
        values.chunks(2).map(|pair| u32::from(to_bits(pair[0])) | u32::from(to_bits(pair[1])) << 16).collect();
    Buffer::of_u32(&words)
}

/// f16 of a small integer.
fn half(x: f32) -> u16 {
    if x == 0.0 {
        return 0;
    }
    let bits = x.to_bits();
    let exponent = (bits >> 23 & 255) - 127 + 15;
    (bits >> 16 & 0x8000 | exponent << 10 | bits >> 13 & 0x3ff) as u16
}

#[test]
fn multiplies_16_bit_matrices() {
    let a: Vec<f32> = (0..256).map(value).collect();
    let b: Vec<f32> = (0..128).map(|i| value(i + 5)).collect();
    let c: Vec<f32> = (0..128).map(|i| i as f32 * 0.5).collect();
    let mut expected = c.clone();
    for row in 0..16 {
        for column in 0..8 {
            expected[row * 8 + column] += (0..16).map(|k| a[row * 16 + k] * b[k * 8 + column]).sum::<f32>();
        }
    }
    for (ty, to_bits) in [("f16", half as fn(f32) -> u16), ("bf16", |x: f32| (x.to_bits() >> 16) as u16)] {
        let (a, b, c, d) = (pack(&a, to_bits), pack(&b, to_bits), Buffer::of_f32(&c), Buffer::new(512));
        let gpu = Gpu::new(&[&program(ty)]);
        gpu.run("k", 1, 32, &[Arg::Ptr(&a), Arg::Ptr(&b), Arg::Ptr(&c), Arg::Ptr(&d)]);
        assert_eq!(d.f32s(), expected, "{ty}");
    }
}

/// Runs one `mma` on fragments: each lane loads its A and B registers and stores its four results.
fn fragments(form: &str, a: &[[u32; 32]], b: &[[u32; 32]]) -> Vec<[u32; 32]> {
    let mut text = String::from(
        ".version 8.4\n.target sm_80\n.address_size 64\n.entry k(.param .u64 in, .param .u64 out) { .reg .b32 %a<4>, %b<4>, %c<4>, %t; .reg .b64 %i, %o, %x;
        ld.param.u64 %i, [in]; ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %x, %t, 4; add.u64 %i, %i, %x; add.u64 %o, %o, %x;\n",
    );
    let list = |prefix: &str, n: usize| (0..n).map(|i| format!("%{prefix}{i}")).collect::<Vec<_>>().join(", ");
    for (at, name) in (0..a.len()).map(|i| format!("%a{i}")).chain((0..b.len()).map(|i| format!("%b{i}"))).enumerate() {
        text += &format!("ld.global.u32 {name}, [%i+{}];\n", 128 * at);
    }
    for index in 0..4 {
        text += &format!("mov.u32 %c{index}, 0;\n");
    }
    let c = list("c", 4);
    text +=
        &format!("mma.sync.aligned.{form} {{{c}}}, {{{}}}, {{{}}}, {{{c}}};\n", list("a", a.len()), list("b", b.len()));
    for index in 0..4 {
        text += &format!("st.global.u32 [%o+{}], %c{index};\n", 128 * index);
    }
    text += "ret; }";
    let input = Buffer::of_u32(&a.iter().chain(b).flatten().copied().collect::<Vec<_>>());
    let output = Buffer::new(512);
    Gpu::new(&[&text]).run("k", 1, 32, &[Arg::Ptr(&input), Arg::Ptr(&output)]);
    output.u32s().chunks(32).map(|row| row.try_into().unwrap()).collect()
}

#[test]
fn multiplies_tf32_and_bytes() {
    // ISA 9.7.14.5: lane l holds of A rows l/4 and l/4 + 8, of B column l/4.
    let a_at = |row: usize, k: usize| ((row * 5 + k * 3) % 7) as i32 - 3;
    let b_at = |k: usize, column: usize| ((k * 2 + column * 3) % 5) as i32 - 2;
    let expected = |depth: usize, lane: usize, index: usize| {
        let (row, column) = (lane / 4 + 8 * (index / 2), 2 * (lane % 4) + index % 2);
        (0..depth).map(|k| a_at(row, k) * b_at(k, column)).sum::<i32>()
    };
    let tf32 = |x: i32| (x as f32).to_bits();
    let a: Vec<[u32; 32]> =
        (0..4).map(|r| std::array::from_fn(|l| tf32(a_at(l / 4 + 8 * (r % 2), l % 4 + 4 * (r / 2))))).collect();
    let b: Vec<[u32; 32]> = (0..2).map(|r| std::array::from_fn(|l| tf32(b_at(l % 4 + 4 * r, l / 4)))).collect();
    let out = fragments("m16n8k8.row.col.f32.tf32.tf32.f32", &a, &b);
    for (index, lanes) in out.iter().enumerate() {
        let wanted: Vec<f32> = (0..32).map(|lane| expected(8, lane, index) as f32).collect();
        assert_eq!(lanes.map(f32::from_bits).to_vec(), wanted);
    }
    let bytes = |f: &dyn Fn(usize) -> i32| (0..4).fold(0, |word, i| word | u32::from(f(i) as u8) << (8 * i));
    let a: Vec<[u32; 32]> = (0..4)
        .map(|r| std::array::from_fn(|l| bytes(&|i| a_at(l / 4 + 8 * (r % 2), l % 4 * 4 + 16 * (r / 2) + i))))
        .collect();
    let b: Vec<[u32; 32]> =
        (0..2).map(|r| std::array::from_fn(|l| bytes(&|i| b_at(l % 4 * 4 + 16 * r + i, l / 4)))).collect();
    let out = fragments("m16n8k32.row.col.s32.s8.s8.s32", &a, &b);
    for (index, lanes) in out.iter().enumerate() {
        let wanted: Vec<i32> = (0..32).map(|lane| expected(32, lane, index)).collect();
        assert_eq!(lanes.map(|bits| bits as i32).to_vec(), wanted);
    }
}
