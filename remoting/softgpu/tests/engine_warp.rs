//! Lanes, groups and barriers: divergence, warp operations, atomics, calls.

mod engine_support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use engine_support::{Arg, Buffer, Gpu, kernel, rows};

/// Runs a body for `threads` threads with no input; the first word of each thread's row.
fn lanes(body: &str, threads: usize) -> Vec<u32> {
    rows(body, &vec![vec![]; threads]).iter().map(|row| row[0]).collect()
}

fn launch(body: &str, blocks: u32, threads: u32, words: &[u32]) -> Result<Vec<u32>, softgpu::engine::Fault> {
    let (input, output) = (Buffer::of_u32(words), Buffer::new(blocks.max(threads) as usize * 64));
    let gpu = Gpu::new(&[&kernel(body)]);
    gpu.launch("k", [blocks, 1, 1], [threads, 1, 1], &[Arg::Ptr(&input), Arg::Ptr(&output)])?;
    Ok(output.u32s())
}

#[test]
fn lanes_of_a_loop_leave_when_they_are_done_and_meet_again() {
    // Each lane runs tid + 1 rounds; after the loop all are together again.
    let body = "mov.u32 %r1, 0; mov.u32 %r2, 0;
        LOOP: add.u32 %r1, %r1, 3; add.u32 %r2, %r2, 1; setp.le.u32 %p1, %r2, %t; @%p1 bra LOOP;
        activemask.b32 %r3; st.global.v2.u32 [%out], {%r1, %r3};";
    for (lane, row) in rows(body, &vec![vec![]; 32]).iter().enumerate() {
        assert_eq!(row[..2], [3 * (lane as u32 + 1), u32::MAX]);
    }
}

#[test]
fn both_sides_of_a_branch_run_for_their_lanes() {
    let body = "and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra EVEN;
        mul.lo.u32 %r2, %t, 10; bra JOIN; EVEN: add.u32 %r2, %t, 1000;
        JOIN: st.global.u32 [%out], %r2;";
    let expected: Vec<u32> = (0..40).map(|i| if i % 2 == 0 { i + 1000 } else { i * 10 }).collect();
    assert_eq!(lanes(body, 40), expected);
}

#[test]
fn indexed_branches() {
    let body = "and.b32 %r1, %t, 3; T: .branchtargets A, B, C, D; brx.idx %r1, T;
        A: mov.u32 %r2, 5; bra JOIN; B: mov.u32 %r2, 6; bra JOIN; C: mov.u32 %r2, 7; bra JOIN; D: mov.u32 %r2, 8;
        JOIN: st.global.u32 [%out], %r2;";
    assert_eq!(lanes(body, 32), (0..32).map(|i| 5 + i % 4).collect::<Vec<_>>());
}

#[test]
fn predicated_accesses_do_not_touch_memory() {
    let body = "setp.lt.u32 %p1, %t, 2; mov.u64 %d1, 16; @!%p1 mov.u64 %d2, 0; @%p1 mov.u64 %d2, %out;
        mov.u32 %r1, 9; @%p1 st.global.u32 [%d2], %r1; @%p1 ld.global.u32 %r1, [%d2]; @%p1 atom.global.add.u32 %r2, [%d2], 1;";
    assert_eq!(lanes(body, 4), [10, 10, 0, 0]);
}

#[test]
fn shuffles() {
    // 9.7.9.9: c holds the clamp (low) and the segment mask (from bit 8); the predicate tells whether the lane was in
    // range.
    let body = "add.u32 %r1, %t, 100;
        shfl.sync.up.b32 %r2|%p1, %r1, 3, 0, -1; selp.u32 %r3, 1, 0, %p1;
        shfl.sync.down.b32 %r4|%p2, %r1, 2, 0x181f, -1; selp.u32 %r5, 1, 0, %p2;
        shfl.sync.bfly.b32 %r6, %r1, 5, 31, -1; shfl.sync.idx.b32 %r7, %r1, 9, 0x181f, -1;
        st.global.v4.u32 [%out], {%r2, %r3, %r4, %r5}; st.global.v2.u32 [%out+16], {%r6, %r7};";
    for (lane, row) in (0u32..).zip(rows(body, &vec![vec![]; 32])) {
        let up = if lane >= 3 { lane - 3 } else { lane };
        // Segments of 8 lanes.
        let down = if lane % 8 + 2 < 8 { lane + 2 } else { lane };
        let index = lane / 8 * 8 + 1;
        let expected = [up + 100, (lane >= 3).into(), down + 100, (lane % 8 < 6).into(), (lane ^ 5) + 100, index + 100];
        assert_eq!(row[..6], expected, "lane {lane}");
    }
}

#[test]
fn warp_operations_wait_for_their_members() {
    // The two halves come from different sides of a branch, and from different instructions.
    let body = "setp.lt.u32 %p1, %t, 16; mov.u32 %r1, 1; @%p1 bra LOW;
        mov.u32 %r4, 0; SPIN: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 50; @%p2 bra SPIN;
        shfl.sync.bfly.b32 %r2, %t, 16, 31, -1; bra JOIN;
        LOW: shfl.sync.bfly.b32 %r2, %t, 16, 31, -1;
        JOIN: st.global.u32 [%out], %r2;";
    assert_eq!(lanes(body, 32), (0..32).map(|i| i ^ 16).collect::<Vec<_>>());
}

#[test]
fn votes_and_matches_and_reductions() {
    let body = "setp.gt.u32 %p1, %t, 4; setp.ge.u32 %p2, %t, 0;
        vote.sync.ballot.b32 %r1, %p1, -1; vote.sync.all.pred %p3, %p1, -1; vote.sync.any.pred %p4, %p1, -1;
        vote.sync.uni.pred %p5, %p2, -1; selp.u32 %r2, 1, 0, %p3; selp.u32 %r3, 1, 0, %p4; selp.u32 %r4, 1, 0, %p5;
        st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};
        and.b32 %r5, %t, 3; match.any.sync.b32 %r6, %r5, -1; match.all.sync.b32 %r7|%p6, %r5, -1;
        redux.sync.add.s32 %r8, %t, -1; redux.sync.max.s32 %r9, %r5, -1;
        st.global.v4.u32 [%out+16], {%r6, %r7, %r8, %r9};
        mov.u32 %r10, 0xffff; @%p1 mov.u32 %r10, 0xffff; shr.u32 %r11, %t, 4; setp.ne.u32 %p7, %r11, 0; @%p7 mov.u32 %r10, 0xffff0000;
        vote.sync.ballot.b32 %r12, %p1, %r10; mov.u32 %r13, %lanemask_lt; st.global.v2.u32 [%out+32], {%r12, %r13};";
    for (lane, row) in rows(body, &vec![vec![]; 32]).iter().enumerate() {
        assert_eq!(row[..4], [0xffff_ffe0, 0, 1, 1]);
        assert_eq!(row[4..8], [0x1111_1111 << (lane % 4), 0, 496, 3]);
        let half = if lane < 16 { 0x0000_ffe0 } else { 0xffff_0000 };
        assert_eq!(row[8..10], [half, ((1u64 << lane) - 1) as u32]);
    }
}

#[test]
fn an_operation_of_a_warp_ignores_lanes_that_exited() {
    let body = "setp.ge.u32 %p1, %t, 10; @%p1 exit; redux.sync.add.u32 %r1, %t, -1; st.global.u32 [%out], %r1;";
    assert_eq!(lanes(body, 32)[..10], [45; 10]);
}

#[test]
fn barriers_count_threads() {
    // 70 threads are three warps, the last of them partial; the threads above 65 leave early.
    let body = ".shared .u32 cells[70]; mov.u32 %r9, cells; mad.lo.u32 %r9, %t, 4, %r9;
        setp.gt.u32 %p1, %t, 65; @%p1 exit; st.shared.u32 [%r9], %t; barrier.sync 0;
        mov.u32 %r1, cells; sub.u32 %r2, 65, %t; mad.lo.u32 %r1, %r2, 4, %r1; ld.shared.u32 %r3, [%r1];
        setp.lt.u32 %p2, %t, 7; bar.red.popc.u32 %r4, 0, %p2; bar.red.or.pred %p3, 0, %p2; bar.red.and.pred %p4, 0, !%p2;
        selp.u32 %r5, 1, 0, %p3; selp.u32 %r6, 1, 0, %p4; st.global.v4.u32 [%out], {%r3, %r4, %r5, %r6};";
    for (thread, row) in (0u32..66).zip(rows(body, &vec![vec![]; 70])) {
        assert_eq!(row[..4], [65 - thread, 7, 1, 0]);
    }
}

#[test]
fn named_barriers_pass_data_between_warps() {
    // Warp 0 produces and arrives; warp 1 waits for 64 threads.
    let body = ".shared .u32 cell; setp.ge.u32 %p1, %t, 32; @%p1 bra CONSUMER;
        mov.u32 %r2, 0; WORK: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 3000; @%p2 bra WORK;
        st.shared.u32 [cell], %r2; bar.arrive 3, 64; bra DONE;
        CONSUMER: bar.sync 3, 64; ld.shared.u32 %r3, [cell]; st.global.u32 [%out], %r3; DONE:";
    assert_eq!(lanes(body, 64)[32..], [3000; 32]);
}

#[test]
fn lanes_of_a_warp_may_spin_on_each_other() {
    // A lock around a plain increment: forward progress of every lane, in both blocks.
    let body = "ld.param.u64 %d3, [in];
        TRY: atom.global.acquire.gpu.cas.b32 %r1, [%d3], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra TRY;
        ld.global.u32 %r2, [%d3+4]; add.u32 %r2, %r2, 1; st.global.u32 [%d3+4], %r2;
        membar.gl; atom.global.exch.b32 %r1, [%d3], 0;";
    let (input, output) = (Buffer::of_u32(&[0; 16]), Buffer::new(16));
    let gpu = Gpu::new(&[&kernel(body)]);
    gpu.run("k", 3, 96, &[Arg::Ptr(&input), Arg::Ptr(&output)]);
    assert_eq!(input.u32s()[..2], [0, 288]);
}

#[test]
fn a_block_may_wait_for_a_later_one() {
    // Block 0 waits for a flag that the last block sets: also on a single OS thread.
    let body = "ld.param.u64 %d3, [in]; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @%p1 bra WAIT;
        setp.eq.u32 %p2, %r1, 2; @%p2 st.global.release.gpu.u32 [%d3], 7; bra DONE;
        WAIT: ld.global.acquire.gpu.u32 %r2, [%d3]; setp.eq.u32 %p3, %r2, 0; @%p3 bra WAIT; st.global.u32 [%out], %r2; DONE:";
    let (input, output) = (Buffer::of_u32(&[0; 16]), Buffer::new(64));
    let mut gpu = Gpu::new(&[&kernel(body)]);
    gpu.threads = 1;
    gpu.run("k", 3, 1, &[Arg::Ptr(&input), Arg::Ptr(&output)]);
    assert_eq!(output.u32s()[0], 7);
}

/// Block 0 stores vectors of equal elements until block 1 has loaded 100,000; returns how often a load found two
/// numbers in one vector.
fn torn(access: &str, element: &str, registers: &[&str]) -> u32 {
    let (first, last) = (registers[0], registers[registers.len() - 1]);
    let (equal, all) = (vec![first; registers.len()].join(", "), registers.join(", "));
    let kind = element.rsplit('.').next().unwrap();
    let body = format!(
        "ld.param.u64 %d3, [in]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, 0; mov.u32 %r3, 0; setp.eq.u32 %p1, %r1, 0; @!%p1 bra READ;
        WRITE: add.u32 %r2, %r2, 1; cvt.{kind}.u32 {first}, %r2; st.{access}.{element} [%d3], {{{equal}}};
        ld.relaxed.gpu.global.u32 %r4, [%d3+32]; setp.eq.u32 %p2, %r4, 0; @%p2 bra WRITE; bra DONE;
        READ: add.u32 %r2, %r2, 1; ld.{access}.{element} {{{all}}}, [%d3]; setp.ne.{kind} %p3, {first}, {last};
        selp.u32 %r4, 1, 0, %p3; add.u32 %r3, %r3, %r4; setp.lt.u32 %p2, %r2, 100000; @%p2 bra READ;
        st.global.u32 [%out], %r3; st.relaxed.gpu.global.u32 [%d3+32], 1; DONE:"
    );
    let (input, output) = (Buffer::of_u32(&[0; 16]), Buffer::new(64));
    let mut gpu = Gpu::new(&[&kernel(&body)]);
    // Each block then has an OS thread.
    gpu.cooperative = true;
    gpu.run("k", 2, 1, &[Arg::Ptr(&input), Arg::Ptr(&output)]);
    output.u32s()[0]
}

#[test]
fn strong_vectors_are_read_and_written_as_a_whole() {
    // CUB hands a tile's state and value to later blocks in one such vector.
    assert_eq!(torn("relaxed.gpu.global", "v2.u64", &["%d5", "%d6"]), 0);
    assert_eq!(torn("relaxed.gpu.global", "v4.u32", &["%r5", "%r6", "%r7", "%r8"]), 0);
    assert_eq!(torn("volatile.global", "v2.u32", &["%r5", "%r6"]), 0);
    assert_eq!(torn("global.cg", "v2.u64", &["%d5", "%d6"]), 0);
    assert_eq!(torn("relaxed.gpu.global", "v4.u16", &["%h5", "%h6", "%h7", "%h8"]), 0);
}

#[test]
fn a_deadlock_is_a_fault() {
    let body = "setp.lt.u32 %p1, %t, 32; @%p1 bra A; bar.sync 1; bra B; A: bar.sync 2; B:";
    let fault = launch(body, 1, 64, &[0; 1024]).unwrap_err();
    assert_eq!(fault.code, 719);
    assert!(
        fault.message.contains("waiting at barrier 1") && fault.message.contains("waiting at barrier 2"),
        "{}",
        fault.message
    );
}

#[test]
fn an_endless_kernel_can_be_cancelled() {
    for body in ["L: bra L;", "L: nanosleep.u32 100; bra L;", "setp.lt.u32 %p1, %t, 3; L: @%p1 bra L;"] {
        let (input, output) = (Buffer::new(64 * 32), Buffer::new(64 * 32));
        let gpu = Gpu::new(&[&kernel(body)]);
        let fault = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                gpu.cancel.store(true, Ordering::Relaxed);
            });
            gpu.launch("k", [4, 1, 1], [32, 1, 1], &[Arg::Ptr(&input), Arg::Ptr(&output)]).unwrap_err()
        });
        assert_eq!(fault.code, 702, "{body}");
    }
}

#[test]
fn atomics() {
    let body = "ld.param.u64 %d3, [in];
        atom.global.add.u32 %r1, [%d3], 2; red.global.inc.u32 [%d3+4], 4; red.global.dec.u32 [%d3+8], 4;
        red.global.min.s32 [%d3+12], -5; red.global.max.u32 [%d3+16], %t; red.global.and.b32 [%d3+20], 0xfff0;
        red.global.or.b32 [%d3+24], 3; red.global.xor.b32 [%d3+28], 1; mov.f32 %f1, 0f3F000000;
        red.global.add.f32 [%d3+32], %f1; mov.f64 %fd1, 0d3FD0000000000000; red.global.add.f64 [%d3+40], %fd1;
        mov.u64 %d4, 0x100000000; atom.global.add.u64 %d5, [%d3+48], %d4; mov.b32 %r3, 0x3c003800;
        atom.global.add.noftz.f16x2 %r4, [%d3+56], %r3; cvt.u16.u32 %h1, %t; add.u16 %h2, %h1, 1;
        atom.global.cas.b16 %h3, [%d3+60], %h1, %h2; st.global.u32 [%out], %r1;";
    let input = [0, 0, 0, 7, 0, 0xffff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (input, output) = (Buffer::of_u32(&input), Buffer::new(33 * 64));
    let gpu = Gpu::new(&[&kernel(body)]);
    gpu.run("k", 1, 33, &[Arg::Ptr(&input), Arg::Ptr(&output)]);
    let words = input.u32s();
    // 33 increments modulo 5; 33 decrements that wrap to 4.
    assert_eq!(words[..8], [66, 33 % 5, 2, (-5i32) as u32, 32, 0xfff0, 3, 1]);
    assert_eq!(f32::from_bits(words[8]), 16.5);
    assert_eq!(input.u64s()[5], 8.25f64.to_bits());
    assert_eq!(input.u64s()[6], 33 << 32);
    // 33 * 1.0 and 33 * 0.5 in f16; the 16-bit cas counted up lane by lane.
    assert_eq!(words[14..], [0x5020_4c20, 33]);
    assert_eq!(
        output.u32s().chunks(16).map(|row| row[0]).collect::<Vec<_>>(),
        (0..33).map(|i| 2 * i).collect::<Vec<_>>()
    );
}

#[test]
fn atomics_on_vectors() {
    // 9.7.13.3, 9.7.13.5: each element by itself; 33 threads each add the same. A result may be where a later source was.
    let body = "ld.param.u64 %d3, [in]; mov.f32 %f1, 0f3F000000; mov.f32 %f2, 0f3F800000; mov.b32 %r3, 0x3c003800;
        mov.b32 %r4, 0x4000bc00; mov.b32 {%h1, %h2}, %r3; mov.b32 %r5, 0x3f80bf80; mov.b32 {%h3, %h4}, %r5;
        red.global.add.v2.f32 [%d3], {%f1, %f2}; red.global.add.noftz.v2.f16x2 [%d3+8], {%r3, %r4};
        red.global.max.noftz.v2.f16 [%d3+16], {%h1, %h2}; red.global.min.noftz.v4.bf16 [%d3+24], {%h3, %h4, %h4, %h3};
        atom.global.max.noftz.v2.bf16x2 {%r6, _}, [%d3+32], {%r5, %r5};
        atom.global.add.v4.f32 {%f2, %f1, %f3, %f4}, [%d3+48], {%f1, %f2, %f2, %f1};
        st.global.u32 [%out], %r6; st.global.v4.f32 [%out+16], {%f2, %f1, %f3, %f4};";
    let (input, output) = (Buffer::of_u32(&[0; 16]), Buffer::new(33 * 64));
    let gpu = Gpu::new(&[&kernel(body)]);
    gpu.run("k", 1, 33, &[Arg::Ptr(&input), Arg::Ptr(&output)]);
    let (words, floats) = (input.u32s(), input.f32s());
    assert_eq!(floats[..2], [16.5, 33.0]);
    // 33 * (1, 0.5) and 33 * (2, -1) in f16, and the larger of 0 and (1, 0.5).
    assert_eq!(words[2..5], [0x5020_4c20, 0x5420_d020, 0x3c00_3800]);
    // The smaller of 0 and (-1, 1, 1, -1) in bf16, and the larger of 0 and (1, -1) twice.
    assert_eq!(words[6..10], [0x0000_bf80, 0xbf80_0000, 0x3f80_0000, 0x3f80_0000]);
    assert_eq!(floats[12..], [16.5, 33.0, 33.0, 16.5]);
    // The last thread saw what the others left.
    assert_eq!(output.u32s()[32 * 16], 0x3f80_0000);
    assert_eq!(output.f32s()[32 * 16 + 4..32 * 16 + 8], [16.0, 32.0, 32.0, 16.0]);
    for (text, why) in [
        ("red.global.add.v2.u32 [%d3], {%r1, %r2};", "no such vector"),
        ("red.global.add.v8.f32 [%d3], {%f1, %f1, %f1, %f1, %f1, %f1, %f1, %f1};", "no such vector"),
        ("red.global.add.v4.f32 [%d3], {%f1, %f2};", "another length"),
        ("red.global.min.f16x2 [%d3], %r1;", "the type is not supported"),
    ] {
        let program = softgpu::engine::Program::compile(&[&kernel(text)]).unwrap();
        assert!(program.kernels()[0].unsupported.as_ref().unwrap().contains(why), "{text}");
    }
}

#[test]
fn functions_recurse_and_are_called_by_address() {
    let text = ".version 8.4\n.target sm_80\n.address_size 64
        .func (.param .b32 r) fib(.param .b32 n) { .reg .b32 %r<8>; .reg .pred %p; ld.param.u32 %r1, [n];
            setp.lt.u32 %p, %r1, 2; @%p bra BASE; { .param .b32 a; .param .b32 b; sub.u32 %r2, %r1, 1; st.param.b32 [a], %r2;
            call.uni (b), fib, (a); ld.param.b32 %r3, [b]; } { .param .b32 a; .param .b32 b; sub.u32 %r2, %r1, 2;
            st.param.b32 [a], %r2; call.uni (b), fib, (a); ld.param.b32 %r4, [b]; } add.u32 %r1, %r3, %r4;
            BASE: st.param.b32 [r], %r1; ret; }
        .func (.param .b32 r) triple(.param .b32 n) { .reg .b32 %r<8>; ld.param.u32 %r1, [n]; mul.lo.u32 %r1, %r1, 3;
            st.param.b32 [r], %r1; ret; }
        .func endless() { call endless; ret; }
        .global .u64 table[2] = {fib, triple};
        .entry k(.param .u64 out) { .reg .b64 %d<8>; .reg .b32 %r<8>; .param .b32 a; .param .b32 b; ld.param.u64 %d1, [out];
            mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 1; mul.wide.u32 %d2, %r2, 8; mov.u64 %d3, table; add.u64 %d3, %d3, %d2;
            ld.global.u64 %d4, [%d3]; st.param.b32 [a], %r1; P: .callprototype (.param .b32 _) _ (.param .b32 _);
            call (b), %d4, (a), P; ld.param.b32 %r3, [b]; mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2;
            st.global.u32 [%d1], %r3; ret; }
        .entry overflow() { call endless; ret; }
        .entry wild() { .reg .b64 %d; mov.u64 %d, 12345; P: .callprototype _ (); call %d, (), P; ret; }";
    let output = Buffer::new(80);
    let gpu = Gpu::new(&[text]);
    gpu.run("k", 1, 20, &[Arg::Ptr(&output)]);
    let mut fib = vec![0u32, 1];
    (2..20).for_each(|i| fib.push(fib[i - 1] + fib[i - 2]));
    assert_eq!(output.u32s(), (0..20).map(|i| if i % 2 == 0 { fib[i] } else { 3 * i as u32 }).collect::<Vec<_>>());
    assert_eq!(gpu.launch("overflow", [1; 3], [32, 1, 1], &[]).unwrap_err().code, 719);
    assert_eq!(gpu.launch("wild", [1; 3], [32, 1, 1], &[]).unwrap_err().code, 718);
}

#[test]
fn special_registers() {
    let body = "mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %laneid; mov.u32 %r4, %warpid;
        mov.u32 %r5, %tid.x; mad.lo.u32 %r6, %r1, 5, %r5; mad.lo.u32 %r6, %r2, 15, %r6; ld.param.u64 %d1, [out];
        mul.wide.u32 %d2, %r6, 64; add.u64 %d1, %d1, %d2; mov.u32 %r7, %ntid.y; mov.u32 %r8, %nctaid.x;
        st.global.v4.u32 [%d1], {%r5, %r1, %r2, %r3}; st.global.v4.u32 [%d1+16], {%r4, %r7, %r8, %r8};";
    let (input, output) = (Buffer::new(64), Buffer::new(60 * 64));
    let gpu = Gpu::new(&[&kernel(body)]);
    gpu.launch("k", [1, 1, 1], [5, 3, 4], &[Arg::Ptr(&input), Arg::Ptr(&output)]).unwrap();
    for (thread, row) in (0u32..60).zip(output.u32s().chunks(16)) {
        assert_eq!(row[..7], [thread % 5, thread / 5 % 3, thread / 15, thread % 32, thread / 32, 3, 1]);
    }
}
