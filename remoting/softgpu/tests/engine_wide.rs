//! 128-bit registers, against Rust's `u128`.

mod engine_support;

use engine_support::{Arg, Buffer, Gpu, kernel, rows};

const REGISTERS: &str = ".reg .b128 %q<8>;";

fn words(value: u128) -> Vec<u32> {
    (0..4).map(|index| (value >> (32 * index)) as u32).collect()
}

fn value(words: &[u32]) -> u128 {
    words.iter().rev().fold(0, |all, &word| all << 32 | u128::from(word))
}

/// Different 16 bytes for each thread, no two words alike.
fn sample(thread: u32) -> u128 {
    (u128::from(thread) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// Runs a body for 40 threads (two warps, one of them partly empty) that each find `sample` at `%in`.
fn run(body: &str) -> Vec<[u32; 16]> {
    rows(&format!("{REGISTERS} {body}"), &(0..40).map(|thread| words(sample(thread))).collect::<Vec<_>>())
}

#[test]
fn moves_pack_and_unpack() {
    let body = "ld.global.v2.b64 {%d1, %d2}, [%in]; mov.b128 %q1, {%d1, %d2}; mov.b128 %q2, {%d2, %d1};
        mov.b128 {%r1, %r2, %r3, %r4}, %q2; st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};
        mov.b128 %q3, {%r4, %r3, %r2, %r1}; mov.b128 {%d3, %d4}, %q3; st.global.v2.u64 [%out+16], {%d3, %d4};
        and.b32 %r5, %t, 1; setp.eq.u32 %p1, %r5, 0; mov.b128 %q4, %q1; @%p1 mov.b128 %q4, %q2;
        mov.b128 {_, %d5}, %q4; mov.b128 {%d6, _}, %q4; mov.b128 {_, _, %r6, _}, %q4;
        st.global.v2.u64 [%out+32], {%d6, %d5}; st.global.u32 [%out+48], %r6; mov.b128 %q5, {7, -1}; mov.b128 {%r7, %r8, _, %r9}, %q5;
        st.global.u32 [%out+52], %r7; st.global.u32 [%out+56], %r8; st.global.u32 [%out+60], %r9;";
    for (thread, row) in (0..).zip(run(body)) {
        let plain = sample(thread);
        let swapped = plain.rotate_left(64);
        let reversed: Vec<u32> = words(swapped).into_iter().rev().collect();
        let chosen = if thread % 2 == 0 { swapped } else { plain };
        assert_eq!(row[..4], words(swapped));
        assert_eq!(row[4..8], reversed);
        assert_eq!(row[8..12], words(chosen));
        assert_eq!(row[12..], [(chosen >> 64) as u32, 7, 0, u32::MAX]);
    }
}

#[test]
fn values_live_through_loops_and_divergence() {
    // Each thread goes round as often as its number says, and turns the value by a word each time.
    let body = "ld.global.b128 %q1, [%in]; mov.u32 %r9, %t; mov.b64 %d1, 0; mov.b128 %q7, {%d1, %d1};
        AGAIN: setp.eq.u32 %p1, %r9, 0; @%p1 bra DONE; mov.b128 {%r1, %r2, %r3, %r4}, %q1; mov.b128 %q1, {%r4, %r1, %r2, %r3};
        sub.u32 %r9, %r9, 1; bra AGAIN; DONE: st.global.b128 [%out], %q1; st.global.b128 [%out+16], %q7;";
    for (thread, row) in (0..).zip(run(body)) {
        assert_eq!(value(&row[..4]), sample(thread).rotate_left(32 * (thread % 4)));
        assert_eq!(value(&row[4..8]), 0);
    }
}

#[test]
fn loads_and_stores_of_every_space() {
    let body = ".shared .b128 s[40]; .local .b128 l[2]; mov.u32 %r1, s; mad.lo.u32 %r1, %t, 16, %r1; mov.u64 %d1, l;
        ld.global.nc.L1::no_allocate.b128 %q1, [%in]; st.shared.b128 [%r1], %q1; ld.shared.volatile.b128 %q2, [%r1];
        st.local.b128 [%d1+16], %q2; ld.local.b128 %q3, [%d1+16]; st.relaxed.gpu.global.b128 [%out], %q3;
        ld.acquire.gpu.global.b128 %q4, [%out]; cvta.global.u64 %d2, %out; st.release.sys.b128 [%d2+16], %q4;
        ldu.global.b128 {%q5}, [%out+16]; st.volatile.global.b128 [%out+32], {%q5}; ld.b128 _, [%d2]; ld.b128 %q6, [%d2+32];
        st.b128 [%d2+48], %q6;";
    for (thread, row) in (0..).zip(run(body)) {
        for copy in row.chunks_exact(4) {
            assert_eq!(value(copy), sample(thread));
        }
    }
}

#[test]
fn parameters_globals_and_calls() {
    let text = ".version 8.4\n.target sm_90\n.address_size 64\n.global .b128 table[2] = {5, 6};\n.const .align 16 .b8 fixed[16] = {1, 2, 3};
        .func (.param .b128 back) turned(.param .b128 given) { .reg .b128 %q<2>; .reg .b64 %d<3>; ld.param.b128 %q1, [given];
            mov.b128 {%d1, %d2}, %q1; mov.b128 %q1, {%d2, %d1}; st.param.b128 [back], %q1; ret; }
        .entry k(.param .u64 out, .param .b128 first, .param .align 16 .b8 second[32]) { .reg .b128 %q<6>; .reg .b64 %d;
            ld.param.u64 %d, [out]; ld.param.b128 %q1, [first]; ld.param.b128 %q2, [second+16]; ld.global.b128 %q3, [table+16];
            ld.const.b128 %q4, [fixed]; st.global.b128 [%d+16], %q2; st.global.b128 [%d+32], %q3; st.global.b128 [%d+48], %q4;
            { .param .b128 a; .param .b128 r; st.param.b128 [a], %q1; call (r), turned, (a); ld.param.b128 %q5, [r]; }
            st.global.b128 [%d], %q5; ret; }";
    let output = Buffer::new(64);
    let gpu = Gpu::new(&[text]);
    let given = [sample(3), sample(4), sample(5)];
    gpu.run("k", 1, 1, &[Arg::Ptr(&output), Arg::Bytes(&given[..1]), Arg::Bytes(&given[1..])]);
    let found: Vec<u128> = output.u32s().chunks_exact(4).map(value).collect();
    assert_eq!(found, [given[0].rotate_left(64), given[2], 6, 0x03_02_01]);
}

#[test]
fn wide_accesses_are_checked() {
    let fault = |body: &str| {
        let (input, output) = (Buffer::new(64), Buffer::new(64));
        let gpu = Gpu::new(&[&kernel(&format!("{REGISTERS} mov.b128 %q1, {{1, 2}}; {body}"))]);
        let fault = gpu.launch("k", [1; 3], [1; 3], &[Arg::Ptr(&input), Arg::Ptr(&output)]).unwrap_err();
        assert_eq!(output.u64s(), [0; 8]);
        fault.code
    };
    assert_eq!(fault("ld.global.b128 %q1, [%in+8];"), 716);
    assert_eq!(fault("st.global.b128 [%out+8], %q1;"), 716);
    assert_eq!(fault("atom.global.exch.b128 %q1, [%out+8], %q1;"), 716);
    assert_eq!(fault("ld.global.b128 %q1, [%in+64];"), 700);
    assert_eq!(fault("st.global.b128 [%out+64], %q1;"), 700);
    assert_eq!(fault("atom.global.cas.b128 %q1, [%out+64], %q1, %q1;"), 700);
}

/// Adds a number whose low half overflows, in a compare-and-swap loop of every thread of several blocks.
#[test]
fn compare_and_swap_loses_no_update() {
    for at in ["atom.global.cas.b128 %q3, [%d1]", "atom.relaxed.gpu.cas.b128 %q3, [%d1]"] {
        let text = format!(
            ".version 8.4\n.target sm_90\n.address_size 64
            .entry k(.param .u64 sum) {{ .reg .b128 %q<4>; .reg .b64 %d<8>; .reg .pred %p<3>; ld.param.u64 %d1, [sum];
            ld.relaxed.gpu.b128 %q1, [%d1];
            AGAIN: mov.b128 {{%d2, %d3}}, %q1; add.cc.u64 %d4, %d2, 0xc000000000000001; addc.u64 %d5, %d3, 1;
            mov.b128 %q2, {{%d4, %d5}}; {at}, %q1, %q2; mov.b128 {{%d6, %d7}}, %q3; mov.b128 %q1, %q3;
            setp.ne.u64 %p1, %d6, %d2; setp.ne.or.u64 %p2, %d7, %d3, %p1; @%p2 bra AGAIN; ret; }}"
        );
        let sum = Buffer::new(16);
        Gpu::new(&[&text]).run("k", 8, 96, &[Arg::Ptr(&sum)]);
        assert_eq!(value(&sum.u32s()), 8 * 96 * 0x1_c000_0000_0000_0001_u128);
    }
}

/// Each thread of a block puts its number into one shared cell: every number comes out once, whole.
#[test]
fn exchanges_hand_values_on() {
    let body = ".shared .b128 cell; ld.global.b128 %q1, [%in]; mov.b128 %q0, {0, 0};
        setp.eq.u32 %p1, %t, 0; @%p1 st.shared.b128 [cell], %q0; bar.sync 0;
        setp.lt.u32 %p2, %t, 38; @%p2 atom.shared.acq_rel.cta.exch.b128 %q1, [cell], %q1; @!%p2 atom.shared.exch.b128 _, [cell], %q0;
        bar.sync 0; st.global.b128 [%out], %q1; ld.shared.b128 %q2, [cell]; st.global.b128 [%out+16], %q2;";
    let found = run(body);
    let mut seen: Vec<u128> = found[..38].iter().map(|row| value(&row[..4])).collect();
    // The last two threads put 0 there, so one of the numbers, or 0, was dropped by the first of them.
    assert_eq!(value(&found[0][4..8]), 0);
    for (thread, row) in (38..).zip(&found[38..]) {
        assert_eq!(value(&row[..4]), sample(thread));
    }
    seen.sort_unstable();
    let mut put: Vec<u128> = (0..38).map(sample).collect();
    put.sort_unstable();
    let came: Vec<u128> = seen.iter().copied().filter(|&value| value != 0).collect();
    assert!(came.windows(2).all(|pair| pair[0] != pair[1]), "a value came out twice");
    assert!(came.iter().all(|value| put.binary_search(value).is_ok()), "a value was torn");
    assert!(came.len() >= 36, "{} of 38 values came out", came.len());
}

#[test]
fn other_forms_are_refused_by_name() {
    let why = |body: &str| {
        let gpu = Gpu::new(&[&kernel(&format!("{REGISTERS} {body}"))]);
        gpu.image.program().kernels()[0].unsupported.clone().unwrap_or_else(|| panic!("'{body}' is provided"))
    };
    for body in [
        "xor.b128 %q1, %q2, %q3;",
        "setp.eq.b128 %p1, %q1, %q2;",
        "selp.b128 %q1, %q2, %q3, %p1;",
        "atom.global.add.b128 %q1, [%in], %q2;",
        "red.global.exch.b128 [%in], %q2;",
    ] {
        let form = body.split(' ').next().unwrap_or_default();
        let why = why(body);
        assert!(why.contains(form) && why.contains(".b128 goes with"), "{why}");
    }
    for body in [
        "mov.b128 %q1, %d1;",
        "mov.b64 %d1, %q1;",
        "mov.b64 %q1, %d1;",
        "mov.b128 %q1, {%d1, %d2, %d3};",
        "mov.b128 %q1, {%q2, %q3};",
        "ld.global.b64 %q1, [%in];",
        "st.global.b64 [%in], %q1;",
        "ld.global.v2.b128 {%q1, %q2}, [%in];",
        "ld.global.b32 %r1, [%q1];",
        "ld.global.b128 %d1, [%in];",
        "add.u64 %d1, %q1, %d2;",
        "cvt.u32.u64 %r1, %q1;",
        "atom.global.exch.b64 %q1, [%in], %q2;",
        "shfl.sync.idx.b32 %q1, %r1, 0, 31, -1;",
    ] {
        assert!(why(body).contains(body.split(' ').next().unwrap_or_default()), "{}", why(body));
    }
}
