//! Integer instructions: corner cases. The sections are those of the PTX ISA.

mod engine_support;

use engine_support::{doubles, rows, words};

#[test]
fn arithmetic_wraps_and_saturates() {
    // 9.7.1.1, 9.7.1.2: .sat applies to .s32 alone.
    assert_eq!(words("add.s32 %r0, %r1, %r2;", &[0x7fff_ffff, 1]), 0x8000_0000);
    assert_eq!(words("add.sat.s32 %r0, %r1, %r2;", &[0x7fff_ffff, 1]), 0x7fff_ffff);
    assert_eq!(words("sub.sat.s32 %r0, %r1, %r2;", &[0x8000_0000, 1]), 0x8000_0000);
    assert_eq!(words("abs.s32 %r0, %r1;", &[0x8000_0000]), 0x8000_0000);
    // 9.7.1.3: mul.wide doubles the width; mul.hi is the upper half.
    assert_eq!(words("mul.hi.s32 %r0, %r1, %r2;", &[0xffff_ffff, 2]), 0xffff_ffff);
    assert_eq!(words("mul.hi.u32 %r0, %r1, %r2;", &[0xffff_ffff, 2]), 1);
    assert_eq!(doubles("mul.hi.s64 %d0, %d1, %d2;", &[u64::MAX, 2]), u64::MAX);
    assert_eq!(words("mov.b32 {%h1, %h2}, %r1; mul.wide.s16 %r0, %h1, %h2;", &[0xffff_0003]), (-3i32) as u32);
    // 9.7.1.5, 9.7.1.6: the 48-bit product of the low 24 bits.
    assert_eq!(words("mul24.lo.u32 %r0, %r1, %r2;", &[0xff00_0002, 0x0080_0000]), 0x0100_0000);
    assert_eq!(words("mul24.hi.s32 %r0, %r1, %r2;", &[0x00ff_ffff, 0x0001_0000]), 0xffff_ffff);
    assert_eq!(words("mad24.lo.s32 %r0, %r1, %r2, %r3;", &[0x00ff_ffff, 3, 10]), 7);
    // 9.7.1.7: sad
    assert_eq!(words("sad.s32 %r0, %r1, %r2, %r3;", &[(-5i32) as u32, 5, 1]), 11);
    // 9.7.1.4: mad.hi.sat
    assert_eq!(words("mad.hi.sat.s32 %r0, %r1, %r2, %r3;", &[0x7fff_ffff, 0x7fff_ffff, 0x7fff_ffff]), 0x7fff_ffff);
}

#[test]
fn division_never_traps() {
    assert_eq!(words("div.s32 %r0, %r1, %r2;", &[0x8000_0000, 0xffff_ffff]), 0x8000_0000);
    assert_eq!(words("rem.s32 %r0, %r1, %r2;", &[0x8000_0000, 0xffff_ffff]), 0);
    assert_eq!(words("div.s32 %r0, %r1, %r2;", &[(-7i32) as u32, 2]), (-3i32) as u32);
    assert_eq!(words("rem.s32 %r0, %r1, %r2;", &[(-7i32) as u32, 2]), (-1i32) as u32);
    // Unspecified by the ISA; all ones on hardware.
    assert_eq!(words("div.u32 %r0, %r1, %r2;", &[7, 0]), u32::MAX);
    assert_eq!(words("rem.u32 %r0, %r1, %r2;", &[7, 0]), 7);
    assert_eq!(doubles("div.s64 %d0, %d1, %d2;", &[1 << 63, u64::MAX]), 1 << 63);
    assert_eq!(doubles("rem.u64 %d0, %d1, %d2;", &[7, 0]), 7);
}

#[test]
fn shifts_clamp() {
    // 9.7.8.6, 9.7.8.7: amounts greater than the width are clamped to it.
    assert_eq!(words("shl.b32 %r0, %r1, %r2;", &[1, 32]), 0);
    assert_eq!(words("shl.b32 %r0, %r1, %r2;", &[1, 0x1_0000]), 0);
    assert_eq!(words("shr.s32 %r0, %r1, %r2;", &[0x8000_0000, 99]), u32::MAX);
    assert_eq!(words("shr.u32 %r0, %r1, %r2;", &[0x8000_0000, 32]), 0);
    assert_eq!(doubles("mov.u32 %r1, 70; shr.s64 %d0, %d1, %r1;", &[1 << 63]), u64::MAX);
    assert_eq!(words("cvt.u16.u32 %h1, %r1; shr.s16 %h2, %h1, %r2; cvt.s32.s16 %r0, %h2;", &[0x8000, 20]), u32::MAX);
    // 9.7.8.4: shf clamps at 32 or wraps modulo 32.
    assert_eq!(words("shf.l.clamp.b32 %r0, %r1, %r2, %r3;", &[0x1111_1111, 0x2222_2222, 40]), 0x1111_1111);
    assert_eq!(words("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", &[0x1111_1111, 0x2222_2222, 36]), 0x2222_2221);
    assert_eq!(words("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", &[0x1111_1111, 0x2222_2222, 33]), 0x2222_2222);
    assert_eq!(words("shf.r.wrap.b32 %r0, %r1, %r2, %r3;", &[0x1111_1111, 0x2222_2222, 32]), 0x1111_1111);
}

#[test]
fn bit_fields() {
    // 9.7.1.19: bfe: pos and len from the low 8 bits, bits past the top are the sign.
    assert_eq!(words("bfe.u32 %r0, %r1, %r2, %r3;", &[0xabcd_ef01, 8, 8]), 0xef);
    assert_eq!(words("bfe.s32 %r0, %r1, %r2, %r3;", &[0xabcd_ef01, 8, 8]), 0xffff_ffef);
    assert_eq!(words("bfe.s32 %r0, %r1, %r2, %r3;", &[0x8000_0000, 28, 16]), 0xffff_fff8);
    assert_eq!(words("bfe.s32 %r0, %r1, %r2, %r3;", &[0x8000_0000, 40, 8]), 0xffff_ffff);
    assert_eq!(words("bfe.u32 %r0, %r1, %r2, %r3;", &[0xffff_ffff, 4, 0x100]), 0);
    assert_eq!(words("bfe.u32 %r0, %r1, %r2, %r3;", &[0xffff_ffff, 0x104, 4]), 0xf);
    assert_eq!(words("bfe.u32 %r0, %r1, %r2, %r3;", &[0x1234_5678, 0, 32]), 0x1234_5678);
    // 9.7.1.20: bfi
    assert_eq!(words("bfi.b32 %r0, %r1, %r2, 4, 8;", &[0xff, 0]), 0xff0);
    assert_eq!(words("bfi.b32 %r0, %r1, %r2, 32, 8;", &[0xff, 7]), 7);
    assert_eq!(words("bfi.b32 %r0, %r1, %r2, 28, 99;", &[0xff, 1]), 0xf000_0001);
    assert_eq!(words("bfi.b32 %r0, %r1, %r2, 3, 0;", &[0xff, 1]), 1);
    // 9.7.1.15 to 9.7.1.18
    assert_eq!(words("bfind.u32 %r0, %r1;", &[0]), u32::MAX);
    assert_eq!(words("bfind.s32 %r0, %r1;", &[u32::MAX]), u32::MAX);
    assert_eq!(words("bfind.s32 %r0, %r1;", &[0xffff_0000]), 15);
    assert_eq!(words("bfind.shiftamt.u32 %r0, %r1;", &[1]), 31);
    assert_eq!(words("clz.b32 %r0, %r1;", &[0]), 32);
    assert_eq!(words("popc.b32 %r0, %r1;", &[0xf0f0_0001]), 9);
    assert_eq!(words("brev.b32 %r0, %r1;", &[1]), 0x8000_0000);
    assert_eq!(words("bmsk.clamp.b32 %r0, %r1, %r2;", &[28, 8]), 0xf000_0000);
    assert_eq!(words("bmsk.wrap.b32 %r0, %r1, %r2;", &[33, 34]), 0b110);
    assert_eq!(words("szext.clamp.s32 %r0, %r1, %r2;", &[0x80, 8]), 0xffff_ff80);
    assert_eq!(words("szext.clamp.u32 %r0, %r1, %r2;", &[0xfff, 8]), 0xff);
}

#[test]
fn byte_permutation() {
    // 9.7.8.3: prmt; the top bit of a selector replicates the sign.
    let operands = [0x8321_0a7f, 0x7654_3210];
    assert_eq!(words("prmt.b32 %r0, %r1, %r2, 0x7410;", &operands), 0x7610_0a7f);
    assert_eq!(words("prmt.b32 %r0, %r1, %r2, 0xba98;", &operands), 0xff00_0000);
    assert_eq!(words("prmt.b32.f4e %r0, %r1, %r2, 1;", &operands), 0x1083_210a);
    assert_eq!(words("prmt.b32.b4e %r0, %r1, %r2, 1;", &operands), permuted([1, 0, 7, 6], operands));
    assert_eq!(words("prmt.b32.rc8 %r0, %r1, %r2, 2;", &operands), 0x2121_2121);
    assert_eq!(words("prmt.b32.ecl %r0, %r1, %r2, 2;", &operands), permuted([2, 2, 2, 3], operands));
    assert_eq!(words("prmt.b32.ecr %r0, %r1, %r2, 1;", &operands), permuted([0, 1, 1, 1], operands));
    assert_eq!(words("prmt.b32.rc16 %r0, %r1, %r2, 1;", &operands), 0x8321_8321);
}

/// The bytes with the given numbers, lowest first.
fn permuted(numbers: [usize; 4], [a, b]: [u32; 2]) -> u32 {
    let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
    u32::from_le_bytes(numbers.map(|number| bytes[number]))
}

#[test]
fn logic() {
    // 9.7.8.5: lop3's table is f(0xf0, 0xcc, 0xaa).
    let operands = [0x0f0f_1234, 0x3333_5678, 0x5555_9abc];
    let [a, b, c] = operands;
    assert_eq!(words("lop3.b32 %r0, %r1, %r2, %r3, 0xe8;", &operands), a & b | a & c | b & c);
    assert_eq!(words("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", &operands), a ^ b ^ c);
    assert_eq!(words("lop3.b32 %r0, %r1, %r2, %r3, 0x1a;", &operands), (a & b | c) ^ a);
    assert_eq!(words("cnot.b32 %r0, %r1;", &[0]), 1);
    assert_eq!(words("slct.b32.s32 %r0, %r1, %r2, %r3;", &[5, 6, 0x8000_0000]), 6);
    // -0.0 is not less than zero.
    assert_eq!(words("mov.b32 %f1, %r3; slct.b32.f32 %r0, %r1, %r2, %f1;", &[5, 6, 0x8000_0000]), 5);
    assert_eq!(words("dp4a.s32.u32 %r0, %r1, %r2, %r3;", &[0xff01_02fe, 0x0102_03ff, 10]), {
        (10 + -(1i32) + 2 + 6 - 2 * 255) as u32
    });
    // Of the ISA's SIMD video instructions: the distances of pairs of bytes, and the third operand, added up.
    let bytes = [0xff01_8003, 0x0102_0305, 100];
    assert_eq!(words("vabsdiff4.u32.u32.u32.add %r0, %r1, %r2, %r3;", &bytes), 0xfe + 1 + 0x7d + 2 + 100);
    assert_eq!(words("dp2a.hi.s32.s32 %r0, %r1, %r2, %r3;", &[0xfffe_0003, 0xff04_0000, 1]), 1 + 2 + 12);
}

#[test]
fn carries() {
    // 9.7.2: 96-bit addition and subtraction. The carry of sub.cc is set when nothing was borrowed, which is visible
    // through addc: nvcc's 128-bit division reads it so.
    let body = "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in];
        add.cc.u32 %r5, %r1, %r3; addc.cc.u32 %r6, %r2, %r4; addc.u32 %r7, 0, 0;
        st.global.v2.u32 [%out], {%r5, %r6}; st.global.u32 [%out+8], %r7;
        sub.cc.u32 %r5, %r1, %r3; subc.cc.u32 %r6, %r2, %r4; addc.u32 %r7, 0, 0;
        st.global.v2.u32 [%out+16], {%r5, %r6}; st.global.u32 [%out+24], %r7;
        mad.lo.cc.u32 %r5, %r1, %r3, %r2; madc.hi.u32 %r6, %r1, %r3, %r4; st.global.v2.u32 [%out+32], {%r5, %r6};";
    let cases = [[u32::MAX, u32::MAX, 1, 0], [0, 0, 1, 0], [5, 9, 7, 3], [0x8000_0001, 0xffff_ffff, 2, 1]];
    let out = rows(body, &cases.map(|case| case.to_vec()));
    for (case, out) in cases.iter().zip(out) {
        let [a, b] = [u64::from(case[0]) | u64::from(case[1]) << 32, u64::from(case[2]) | u64::from(case[3]) << 32];
        let (sum, carry) = a.overflowing_add(b);
        assert_eq!(out[..3], [sum as u32, (sum >> 32) as u32, carry.into()]);
        let (rest, borrow) = a.overflowing_sub(b);
        assert_eq!(out[4..7], [rest as u32, (rest >> 32) as u32, (!borrow).into()]);
        let product = u64::from(case[0]) * u64::from(case[2]);
        let whole = product.wrapping_add(u64::from(case[1]) | u64::from(case[3]) << 32);
        assert_eq!(out[8..10], [whole as u32, (whole >> 32) as u32]);
    }
}

#[test]
fn comparisons() {
    // 9.7.7.2: setp with two destinations and a combining predicate.
    let body = "ld.global.v2.u32 {%r1, %r2}, [%in];
        setp.lt.s32 %p1|%p2, %r1, %r2; selp.b32 %r3, 1, 0, %p1; selp.b32 %r4, 1, 0, %p2;
        setp.ge.and.u32 %p3|%p4, %r1, %r2, !%p1; selp.b32 %r5, 1, 0, %p3; selp.b32 %r6, 1, 0, %p4;
        st.global.v4.u32 [%out], {%r3, %r4, %r5, %r6};
        setp.hi.xor.u32 %p5, %r1, %r2, %p1; selp.b32 %r3, 1, 0, %p5; set.lo.u32.u32 %r4, %r1, %r2;
        set.eq.f32.s32 %f1, %r1, %r1; mov.b32 %r5, %f1; not.pred %p6, %p1; selp.b32 %r6, 1, 0, %p6;
        st.global.v4.u32 [%out+16], {%r3, %r4, %r5, %r6};";
    let out = rows(body, &[vec![u32::MAX, 1], vec![1, 2]]);
    // -1 < 1 signed; 0xffffffff > 1 unsigned.
    assert_eq!(out[0][..8], [1, 0, 0, 0, 0, 0, 1f32.to_bits(), 0]);
    assert_eq!(out[1][..8], [1, 0, 0, 0, 1, u32::MAX, 1f32.to_bits(), 0]);
}

#[test]
fn moves_between_widths() {
    let body = "ld.global.v2.u32 {%r1, %r2}, [%in];
        mov.b64 %d1, {%r1, %r2}; mov.b64 {%h1, %h2, %h3, %h4}, %d1; mov.b32 %r3, {%h4, %h1};
        mov.b64 {%r4, _}, %d1; mov.b64 {_, %r5}, %d1; mov.b64 %d2, {%h3, %h3, %h2, %h1};
        mov.b64 {%r1, %r2}, %d1; st.global.v4.u32 [%out], {%r3, %r4, %r5, %r1}; st.global.u64 [%out+16], %d2;";
    let out = rows(body, &[vec![0x1111_2222, 0x3333_4444]])[0];
    assert_eq!(out[..6], [0x2222_3333, 0x1111_2222, 0x3333_4444, 0x1111_2222, 0x4444_4444, 0x2222_1111]);
}
