//! Instructions that NVIDIA's libraries use more than compilers do: f64 and 8-bit matrices, pairs, `mbarrier`, bulk
//! copies.

mod engine_support;

use engine_support::{Arg, Buffer, Gpu, doubles, kernel, rows, words};

fn pair(low: f32, high: f32) -> u64 {
    u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32
}

#[test]
fn pairs_of_f32_are_computed_each_by_itself() {
    // ISA 9.7.3: like the f32 operation on both halves, with its rounding and flushing.
    let (a, b) = (pair(1.5, -2.0), pair(0.25, 8.0));
    assert_eq!(doubles("add.rn.f32x2 %d0, %d1, %d2;", &[a, b]), pair(1.75, 6.0));
    assert_eq!(doubles("sub.f32x2 %d0, %d1, %d2;", &[a, b]), pair(1.25, -10.0));
    assert_eq!(doubles("mul.f32x2 %d0, %d1, %d2;", &[a, b]), pair(0.375, -16.0));
    assert_eq!(doubles("fma.rn.f32x2 %d0, %d1, %d2, %d1;", &[a, b]), pair(1.875, -18.0));
    let (one, tiny) = (pair(1.0, -1.0), pair(1e-10, 1e-10));
    assert_eq!(doubles("add.rp.f32x2 %d0, %d1, %d2;", &[one, tiny]), pair(1f32.next_up(), (-1f32).next_up()));
    assert_eq!(doubles("add.rz.f32x2 %d0, %d1, %d2;", &[one, tiny]), pair(1.0, (-1f32).next_up()));
    let small = pair(f32::MIN_POSITIVE / 2.0, 1.0);
    assert_eq!(doubles("mul.rn.ftz.f32x2 %d0, %d1, %d2;", &[small, pair(2.0, 2.0)]), pair(0.0, 2.0));
}

#[test]
fn conversions_to_and_from_8_bit_floats() {
    // ISA 9.7.9.21: the first operand goes to the upper byte; beyond 448 and 57344 the largest number stands.
    let to = |form: &str, a: f32, b: f32| {
        words(&format!("cvt.rn.{form}.f32 %h0, %r1, %r2; cvt.u32.u16 %r0, %h0;"), &[a.to_bits(), b.to_bits()])
    };
    assert_eq!(to("satfinite.e4m3x2", 1.0, -2.0), 0x38c0);
    assert_eq!(to("satfinite.e5m2x2", 1.0, 1e9), 0x3c7b);
    assert_eq!(to("satfinite.relu.e4m3x2", -1.0, 500.0), 0x007e);
    // 0x38 is 1 and 0xc0 is -2 in e4m3; f16 1 is 0x3c00 and -2 is 0xc000.
    let body = |form: &str| format!("cvt.u16.u32 %h0, %r1; cvt.rn.f16x2.{form} %r0, %h0;");
    assert_eq!(words(&body("e4m3x2"), &[0x38c0]), 0x3c00_c000);
    assert_eq!(words(&body("e5m2x2"), &[0x3cc0]), 0x3c00_c000);
}

#[test]
fn multiplies_f64_matrices() {
    // ISA 9.7.14.5.1: lane l holds A[l/4][l%4], B[l%4][l/4] and C[l/4][2 (l%4)] with its neighbour.
    let body = "ld.global.f64 %fd1, [%in]; ld.global.f64 %fd2, [%in+8]; mov.f64 %fd3, 0d3FF0000000000000;
        mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd4, %fd5}, {%fd1}, {%fd2}, {%fd3, %fd3};
        st.global.v2.f64 [%out], {%fd4, %fd5};";
    let a = |row: usize, k: usize| (row * 3 + k) as f64 - 7.5;
    let b = |k: usize, column: usize| (k * 5 + column) as f64 * 0.25;
    let words = |x: f64| [x.to_bits() as u32, (x.to_bits() >> 32) as u32];
    let inputs: Vec<Vec<u32>> = (0..32).map(|l| [words(a(l / 4, l % 4)), words(b(l % 4, l / 4))].concat()).collect();
    for (lane, row) in rows(body, &inputs).iter().enumerate() {
        for index in 0..2 {
            let got = f64::from_bits(u64::from(row[2 * index]) | u64::from(row[2 * index + 1]) << 32);
            let wanted = 1.0 + (0..4).map(|k| a(lane / 4, k) * b(k, 2 * (lane % 4) + index)).sum::<f64>();
            assert_eq!(got, wanted, "lane {lane}");
        }
    }
}

#[test]
fn matrices_are_stored_as_they_are_loaded() {
    // ISA 9.7.14.5.16: lane l holds of each matrix row l/4, columns 2 (l mod 4) and the next.
    // Without a space the address is a generic one.
    for (trans, space) in [("", ".shared"), (".trans", ".shared::cta"), ("", ""), (".trans", "")] {
        let address = if space.is_empty() { "%d1" } else { "%r10" };
        let body = format!(
            ".shared .align 16 .b8 s[512]; mov.u32 %r9, s; mad.lo.u32 %r10, %t, 16, %r9;
            cvt.u64.u32 %d1, %r10; cvta.shared.u64 %d1, %d1; mov.u32 %r1, %t; add.u32 %r2, %t, 100; add.u32 %r3, %t, 200; add.u32 %r4, %t, 300;
            stmatrix.sync.aligned.m8n8.x4{trans}{space}.b16 [{address}], {{%r1, %r2, %r3, %r4}}; bar.sync 0;
            ldmatrix.sync.aligned.m8n8.x4{trans}{space}.b16 {{%r5, %r6, %r7, %r8}}, [{address}];
            ld.shared.u32 %r11, [%r9+4];
            st.global.v4.u32 [%out], {{%r5, %r6, %r7, %r8}}; st.global.u32 [%out+16], %r11;"
        );
        for (lane, row) in (0u32..).zip(rows(&body, &vec![vec![]; 32])) {
            assert_eq!(row[..4], [lane, lane + 100, lane + 200, lane + 300]);
            // Elements 2 and 3 of row 0: lane 1's pair, or, transposed, the low halves of lanes 8 and 12.
            assert_eq!(row[4], if trans.is_empty() { 1 } else { 8 | 12 << 16 });
        }
    }
}

#[test]
fn a_matrix_is_transposed_as_by_a_transposing_load() {
    // ISA 9.7.14.5.17: lane l has row l/4, columns 2 (l mod 4) and the next, here elements 2l and 2l + 1; the same
    // register may take the result.
    let body = ".shared .align 16 .b8 s[128]; mov.u32 %r9, s; mad.lo.u32 %r10, %t, 4, %r9;
        mad.lo.u32 %r1, %t, 0x20002, 0x10000; st.shared.u32 [%r10], %r1; bar.sync 0;
        and.b32 %r2, %t, 7; mad.lo.u32 %r2, %r2, 16, %r9;
        ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r3}, [%r2];
        movmatrix.sync.aligned.m8n8.trans.b16 %r4, %r1; movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r1;
        st.global.v4.u32 [%out], {%r1, %r3, %r4, %r4};";
    for (lane, row) in (0u32..).zip(rows(body, &vec![vec![]; 32])) {
        let element = |column: u32| 8 * column + lane / 4;
        let pair = element(2 * (lane % 4)) | element(2 * (lane % 4) + 1) << 16;
        assert_eq!(row[..4], [pair; 4], "lane {lane}");
    }
}

#[test]
fn a_barrier_counts_arrivals_and_bytes() {
    // ISA 9.7.13.15: the phase ends with the last expected arrival and the last expected byte. Without a space the
    // address is a generic one.
    for (space, bar) in [(".shared::cta", "%r1"), (".shared", "%r1"), ("", "%d3")] {
        let body = format!(
            ".shared .align 16 .b8 s[256]; .shared .align 8 .b64 bar; mov.u32 %r1, bar; mov.u32 %r2, s;
        cvt.u64.u32 %d3, %r1; cvta.shared.u64 %d3, %d3;
        setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init{space}.b64 [{bar}], 64; bar.sync 0;
        @%p1 mbarrier.expect_tx.relaxed.cta{space}.b64 [{bar}], 256;
        ld.param.u64 %d1, [in];
        @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 256, [%r1];
        cp.async.mbarrier.arrive{space}.b64 [{bar}];
        mbarrier.arrive{space}.b64 %d2, [{bar}];
        mbarrier.pending_count.b64 %r5, %d2;
        WAIT: mbarrier.try_wait.parity{space}.b64 %p2, [{bar}], 0; @!%p2 bra WAIT;
        mbarrier.test_wait{space}.b64 %p3, [{bar}], %d2; selp.u32 %r6, 1, 0, %p3;
        mbarrier.test_wait.parity{space}.b64 %p4, [{bar}], 1; selp.u32 %r7, 1, 0, %p4;
        and.b32 %r3, %t, 15; mad.lo.u32 %r3, %r3, 16, %r2; ld.shared.u32 %r4, [%r3];
        bar.sync 0; @%p1 mbarrier.inval{space}.b64 [{bar}];
        st.global.v4.u32 [%out], {{%r4, %r5, %r6, %r7}};"
        );
        let inputs: Vec<Vec<u32>> = (0..64).map(|i| (0..16).map(|j| 100 * i + j).collect()).collect();
        let found = rows(&body, &inputs);
        for (thread, row) in (0u32..).zip(&found) {
            // 256 bytes are the first four input rows of 16 words.
            let word = thread % 16 * 4;
            assert_eq!([row[0], row[2], row[3]], [100 * (word / 16) + word % 16, 1, 0], "{space}");
        }
        let mut pending: Vec<u32> = found.iter().map(|row| row[1]).collect();
        pending.sort_unstable();
        assert_eq!(pending, (1..=64).collect::<Vec<u32>>(), "each arrival finds one fewer");
    }
}

#[test]
fn a_cluster_is_one_block() {
    let body = ".shared .align 4 .b8 s[64]; mov.u32 %r1, s; mad.lo.u32 %r2, %t, 4, %r1; and.b32 %r2, %r2, 63;
        st.shared.u32 [%r2], %t; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        mapa.shared::cluster.u32 %r3, %r1, 0; ld.shared::cluster.u32 %r4, [%r3+4]; mov.u32 %r5, %cluster_nctarank;
        elect.sync %r6|%p1, 0xffffffff; selp.u32 %r7, 1, 0, %p1; griddepcontrol.wait;
        fence.proxy.async.shared::cta; st.global.v4.u32 [%out], {%r4, %r5, %r6, %r7};";
    for (thread, row) in (0u32..).zip(rows(body, &vec![vec![]; 16])) {
        assert_eq!(row[..4], [1, 1, 0, u32::from(thread == 0)]);
    }
}

#[test]
fn bulk_copies_stay_inside_memory() {
    let (input, output) = (Buffer::new(64), Buffer::new(64));
    let body = ".shared .align 16 .b8 s[256]; mov.u32 %r1, s;
        cp.async.bulk.global.shared::cta.bulk_group [%out], [%r1], 128; cp.async.bulk.commit_group;
        cp.async.bulk.wait_group.read 0;";
    let fault = Gpu::new(&[&kernel(body)]).launch("k", [1, 1, 1], [1, 1, 1], &[Arg::Ptr(&input), Arg::Ptr(&output)]);
    assert_eq!(fault.unwrap_err().code, 700);
}
