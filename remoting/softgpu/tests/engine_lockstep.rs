//! Blocks of several warps, whose warps run in step while they can: values that grow evenly from thread to thread,
//! where they wrap, and where warps part and meet.

mod engine_support;

use engine_support::{Arg, Buffer, Gpu};

const BLOCKS: u32 = 40;
const THREADS: u32 = 128;

/// A kernel that gives each thread a 32-bit result `%r0`; `%i` is its index in the grid, `%in` points to the input.
fn text(declarations: &str, body: &str) -> String {
    format!(
        ".version 8.4\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {{
            {declarations} .reg .b64 %in, %out, %row; .reg .b32 %i, %t, %b, %n; .reg .pred %p<4>; .reg .b32 %r<8>;
            .reg .b64 %d<8>;
            ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x;
            mov.u32 %n, %ntid.x; mad.lo.u32 %i, %b, %n, %t; mul.wide.u32 %row, %i, 4; add.u64 %out, %out, %row;
            {body} st.global.u32 [%out], %r0; ret; }}"
    )
}

/// Runs the body and compares with `expected(block, thread)`.
fn check(declarations: &str, body: &str, input: &[u32], expected: impl Fn(u32, u32) -> u32) {
    let (input, output) = (Buffer::of_u32(input), Buffer::new((BLOCKS * THREADS) as usize * 4));
    Gpu::new(&[&text(declarations, body)]).run("k", BLOCKS, THREADS, &[Arg::Ptr(&input), Arg::Ptr(&output)]);
    let all = (0..BLOCKS).flat_map(|block| (0..THREADS).map(move |thread| (block, thread)));
    for ((block, thread), result) in all.zip(output.u32s()) {
        assert_eq!(result, expected(block, thread), "block {block}, thread {thread}");
    }
}

#[test]
fn arithmetic_on_indices() {
    check("", "mad.lo.u32 %r0, %i, 7, 5; sub.u32 %r0, %r0, %t; shl.b32 %r0, %r0, 3;", &[0], |b, t| {
        (((b * THREADS + t) * 7 + 5) - t) << 3
    });
    check("", "mul.lo.u32 %r0, %t, %b; add.u32 %r0, %r0, %i;", &[0], |b, t| t * b + b * THREADS + t);
}

#[test]
fn widening_counts_the_bits_that_wrapped() {
    let high = |value: u64| (value >> 32) as u32;
    check("", "mul.lo.u32 %r1, %i, 0x1000001; mul.wide.u32 %d1, %r1, 16; mov.b64 {%r2, %r0}, %d1;", &[0], |b, t| {
        high(u64::from((b * THREADS + t).wrapping_mul(0x100_0001)) * 16)
    });
    check(
        "",
        "sub.u32 %r1, %t, 64; mul.wide.s32 %d1, %r1, 3; shr.s64 %d1, %d1, 1; cvt.u32.u64 %r0, %d1;",
        &[0],
        |_, t| (((i64::from(t) - 64) * 3) >> 1) as u32,
    );
    check("", "sub.u32 %r1, %t, 64; cvt.u64.u32 %d1, %r1; shr.u64 %d1, %d1, 4; cvt.u32.u64 %r0, %d1;", &[0], |_, t| {
        (u64::from(t.wrapping_sub(64)) >> 4) as u32
    });
}

#[test]
fn comparisons_that_change_from_thread_to_thread() {
    check(
        "",
        "setp.lt.u32 %p1, %i, 1000; selp.u32 %r0, 1, 2, %p1;",
        &[0],
        |b, t| if b * THREADS + t < 1000 { 1 } else { 2 },
    );
    // As unsigned numbers these wrap within the block.
    check("", "sub.u32 %r1, %t, 64; setp.lt.u32 %p1, %r1, 64; selp.u32 %r0, 1, 2, %p1;", &[0], |_, t| {
        if t.wrapping_sub(64) < 64 { 1 } else { 2 }
    });
    check("", "sub.u32 %r1, %t, 64; setp.lt.s32 %p1, %r1, 0; selp.u32 %r0, 1, 2, %p1;", &[0], |_, t| {
        if t < 64 { 1 } else { 2 }
    });
    check("", "setp.eq.u32 %p1, %t, 77; selp.u32 %r0, 1, 2, %p1;", &[0], |_, t| if t == 77 { 1 } else { 2 });
}

#[test]
fn loads_at_any_distance() {
    let input: Vec<u32> = (0..BLOCKS * THREADS).map(|i| i * i).collect();
    let at = |i: u32| i * i;
    check("", "add.u64 %d1, %in, %row; ld.global.u32 %r0, [%d1];", &input, |b, t| at(b * THREADS + t));
    check("", "ld.global.u32 %r0, [%in+40];", &input, |_, _| at(10));
    check("", "mul.wide.u32 %d1, %t, 4; sub.u64 %d1, %in, %d1; ld.global.u32 %r0, [%d1+508];", &input, |_, t| {
        at(127 - t)
    });
    check(
        "",
        "shr.u32 %r1, %t, 4; and.b32 %r2, %t, 15; mad.lo.u32 %r1, %r1, 3, %r2; mul.wide.u32 %d1, %r1, 4;
        add.u64 %d1, %in, %d1; ld.global.u32 %r0, [%d1];",
        &input,
        |_, t| at(t / 16 * 3 + t % 16),
    );
    check(
        "",
        "mul.lo.u32 %r1, %t, %t; rem.u32 %r1, %r1, 101; mul.wide.u32 %d1, %r1, 8; add.u64 %d1, %in, %d1;
        ld.global.v2.u32 {%r1, %r2}, [%d1]; add.u32 %r0, %r1, %r2;",
        &input,
        |_, t| {
            let i = t * t % 101 * 2;
            at(i) + at(i + 1)
        },
    );
}

#[test]
fn warps_part_and_meet_at_barriers() {
    // Every thread loops as often as its index says, then all sum up neighbours through shared memory.
    check(
        ".shared .align 4 .b8 tile[512];",
        "mov.u32 %r1, 0; mov.u32 %r2, 0;
        LOOP: add.u32 %r1, %r1, 3; add.u32 %r2, %r2, 1; setp.le.u32 %p1, %r2, %t; @%p1 bra LOOP;
        mov.u32 %r3, tile; mad.lo.u32 %r3, %t, 4, %r3; st.shared.u32 [%r3], %r1; bar.sync 0;
        xor.b32 %r4, %t, 127; mov.u32 %r5, tile; mad.lo.u32 %r5, %r4, 4, %r5; ld.shared.u32 %r6, [%r5]; bar.sync 0;
        setp.lt.u32 %p2, %t, 40; mov.u32 %r0, %r6; @%p2 add.u32 %r0, %r6, %b;",
        &[0],
        |b, t| 3 * (128 - t) + if t < 40 { b } else { 0 },
    );
}

#[test]
fn a_fault_names_the_block_and_the_thread() {
    let body =
        "mov.u64 %d1, %out; setp.eq.u32 %p1, %i, 1000; @%p1 mov.u64 %d1, 64; mov.u32 %r0, 0; st.global.u32 [%d1], %r0;";
    let output = Buffer::new((BLOCKS * THREADS) as usize * 4);
    let gpu = Gpu::new(&[&text("", body)]);
    let fault = gpu.launch("k", [BLOCKS, 1, 1], [THREADS, 1, 1], &[Arg::Ptr(&output), Arg::Ptr(&output)]).unwrap_err();
    assert_eq!(fault.code, 700);
    assert!(fault.message.contains("block (7,0,0), thread (104,0,0)"), "{}", fault.message);
}

#[test]
fn special_registers_are_those_of_the_own_block() {
    check("", "mov.u32 %r1, %warpid; mov.u32 %r2, %nwarpid; mad.lo.u32 %r0, %r1, 100, %r2;", &[0], |_, t| {
        t / 32 * 100 + 4
    });
    check(
        "",
        "setp.gt.u32 %p1, %t, 50; @%p1 bra PART; mov.u32 %r0, 9; bra JOIN; PART: mov.u32 %r0, %ctaid.x; JOIN:",
        &[0],
        |b, t| {
            if t > 50 { b } else { 9 }
        },
    );
}
