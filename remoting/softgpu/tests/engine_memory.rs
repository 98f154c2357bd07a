//! State spaces, checks, and the functions the driver provides.

mod engine_support;

use engine_support::{Arg, Buffer, Gpu, kernel, rows};

fn fault(body: &str) -> (u32, String) {
    let (input, output) = (Buffer::new(64), Buffer::new(64));
    let gpu = Gpu::new(&[&kernel(body)]);
    let fault = gpu.launch("k", [1, 1, 1], [1, 1, 1], &[Arg::Ptr(&input), Arg::Ptr(&output)]).unwrap_err();
    (fault.code, fault.message)
}

#[test]
fn loads_extend_and_stores_truncate() {
    let body = "ld.global.s8 %r1, [%in]; ld.global.u8 %r2, [%in]; ld.global.s16 %d1, [%in]; ld.global.s32 %d2, [%in+4];
        st.global.v2.u32 [%out], {%r1, %r2}; st.global.v2.u64 [%out+16], {%d1, %d2};
        ld.global.v4.u8 {%h1, %h2, %h3, %h4}, [%in]; cvt.u32.u16 %r3, %h3; st.global.u8 [%out+8], %r3; st.global.u16 [%out+10], %d2;";
    let row = rows(body, &[vec![0x1234_fff0, 0x8000_0001]])[0];
    assert_eq!(row[..3], [0xffff_fff0, 0xf0, 0x0001_0034]);
    assert_eq!(row[4..8], [0xffff_fff0, u32::MAX, 0x8000_0001, u32::MAX]);
}

#[test]
fn illegal_and_misaligned_accesses() {
    assert_eq!(fault("mov.u64 %d1, 0; ld.global.u32 %r1, [%d1];").0, 700);
    assert_eq!(fault("ld.global.u32 %r1, [%out+64];").0, 700);
    assert_eq!(fault("ld.global.u32 %r1, [%in+-4];").0, 700);
    assert_eq!(fault("st.global.u32 [%out+2], 1;").0, 716);
    assert_eq!(fault("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in+8];").0, 716);
    assert_eq!(fault("atom.global.add.u64 %d1, [%in+4], 1;").0, 716);
    assert_eq!(fault("mov.u64 %d1, -4; ld.global.u32 %r1, [%d1];").0, 700);
    assert_eq!(fault("mov.u64 %d1, -8; ld.u64 %d1, [%d1+8];").0, 700);
    assert_eq!(fault(".shared .u32 s[4]; st.shared.u32 [s+16], 1;").0, 700);
    assert_eq!(fault(".local .u32 s[4]; mov.u64 %d1, s; st.local.u32 [%d1+0x100000], 1;").0, 700);
    assert_eq!(fault("trap;").0, 719);
    // A function's address is not memory.
    let text = ".version 8.4\n.target sm_80\n.address_size 64\n.func f() { ret; }
        .entry k() { .reg .b64 %d; mov.u64 %d, f; ld.u8 %d, [%d]; ret; }";
    assert_eq!(Gpu::new(&[text]).launch("k", [1; 3], [1; 3], &[]).unwrap_err().code, 700);
}

#[test]
fn memory_that_was_freed_is_illegal() {
    let output = Buffer::new(64);
    let gpu = Gpu::new(&[&kernel("ld.global.u64 %d1, [%in]; st.global.u32 [%d1], 5;")]);
    let freed = Buffer::new(64);
    let mut pointing = Buffer::new(64);
    pointing.fill(&freed.address().to_le_bytes());
    gpu.memory.insert(freed.address(), 64);
    let args = [Arg::Ptr(&pointing), Arg::Ptr(&output)];
    gpu.launch("k", [1; 3], [1; 3], &args).unwrap();
    gpu.memory.remove(freed.address());
    assert_eq!(gpu.launch("k", [1; 3], [1; 3], &args).unwrap_err().code, 700);
    assert_eq!(freed.u32s()[0], 5);
}

#[test]
fn generic_addresses_reach_every_space() {
    let body = ".shared .align 8 .u32 s[8]; .local .align 8 .b8 l[32];
        mov.u64 %d1, s; cvta.shared.u64 %d2, %d1; mov.u64 %d3, l; cvta.local.u64 %d4, %d3; cvta.global.u64 %d5, %out;
        mul.wide.u32 %d6, %t, 4; add.u64 %d2, %d2, %d6;
        st.u32 [%d2], %t; add.u32 %r1, %t, 10; st.u32 [%d4+4], %r1; ld.shared.u32 %r2, [s]; ld.local.u32 %r3, [%d3+4];
        ld.u32 %r4, [%d2]; st.v4.u32 [%d5], {%r2, %r3, %r4, 0};
        isspacep.shared %p1, %d2; isspacep.local %p2, %d4; isspacep.global %p3, %d5; isspacep.shared %p4, %d5;
        selp.u32 %r5, 1, 0, %p1; selp.u32 %r6, 1, 0, %p2; selp.u32 %r7, 1, 0, %p3; selp.u32 %r8, 1, 0, %p4;
        st.v4.u32 [%d5+16], {%r5, %r6, %r7, %r8}; cvta.to.shared.u64 %d7, %d2; sub.u64 %d7, %d7, %d6; sub.u64 %d7, %d7, %d1;
        st.u64 [%d5+32], %d7;";
    for (thread, row) in (0u32..8).zip(rows(body, &vec![vec![]; 8])) {
        assert_eq!(row[..10], [0, thread + 10, thread, 0, 1, 1, 1, 0, 0, 0]);
    }
}

#[test]
fn dynamic_shared_memory_follows_the_static() {
    let text = ".version 8.4\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 dyn[];\n.shared .align 4 .b8 fixed[20];
        .entry k(.param .u64 out) { .reg .b64 %d<4>; .reg .b32 %r<6>; ld.param.u64 %d1, [out]; mov.u32 %r1, fixed; mov.u32 %r2, dyn;
        sub.u32 %r3, %r2, %r1; mov.u32 %r4, %dynamic_smem_size; mov.u32 %r5, %total_smem_size; st.shared.u32 [dyn+28], %r3;
        ld.shared.u32 %r3, [%r2+28]; st.global.u32 [%d1], %r3; st.global.u32 [%d1+4], %r4; st.global.u32 [%d1+8], %r5; ret; }";
    let output = Buffer::new(64);
    let mut gpu = Gpu::new(&[text]);
    gpu.shared = 48;
    gpu.run("k", 1, 1, &[Arg::Ptr(&output)]);
    assert_eq!(output.u32s()[..3], [32, 48, 68]);
    assert_eq!(gpu.image.program().kernels()[0].static_shared, 20);
}

/// Returns where a kernel with `fixed` static bytes finds each of its dynamic arrays, and what came back from their
/// ends.
fn dynamic_starts(fixed: u32, aligns: [u32; 3]) -> Vec<u32> {
    let [first, second, third] = aligns;
    let text = format!(
        ".version 8.4\n.target sm_80\n.address_size 64\n.extern .shared .align {first} .b8 first[];
        .extern .shared .align {second} .b8 second[];\n.extern .shared .align {third} .b8 third[];
        .shared .align 1 .b8 fixed[{fixed}];
        .func (.param .b64 r) far() {{ .reg .b64 %d; mov.b64 %d, second; cvta.shared.u64 %d, %d; st.param.b64 [r], %d; ret; }}
        .entry k(.param .u64 out) {{ .reg .b64 %d<8>; .reg .b32 %r<8>;
            ld.param.u64 %d1, [out]; st.shared.u8 [fixed], 1; mov.u32 %r1, first; mov.u32 %r2, third;
            {{ .param .b64 r; call (r), far, (); ld.param.b64 %d2, [r]; }} cvta.to.shared.u64 %d2, %d2; cvt.u32.u64 %r3, %d2;
            mov.u32 %r4, %dynamic_smem_size; add.u32 %r5, %r1, %r4; st.shared.v4.u32 [%r5+-16], {{%r1, %r2, %r3, %r4}};
            ld.shared.v2.u64 {{%d3, %d4}}, [%r5+-16]; st.global.v2.u64 [%d1], {{%d3, %d4}}; ret; }}"
    );
    let output = Buffer::new(16);
    let mut gpu = Gpu::new(&[&text]);
    gpu.shared = 64;
    assert_eq!(gpu.image.program().kernels()[0].static_shared, fixed);
    gpu.run("k", 1, 1, &[Arg::Ptr(&output)]);
    output.u32s()
}

/// All arrays of dynamic shared memory begin at one address, aligned as the strictest and for every type of PTX.
#[test]
fn dynamic_shared_memory_is_aligned_for_every_type() {
    for power in 0..8 {
        let align = 1 << power;
        for aligns in [[align, 1, 1], [1, align, 1], [1, 1, align], [align, align, align]] {
            for fixed in [1_u32, 4, 16, 20, 129] {
                let start = fixed.next_multiple_of(align.max(16));
                assert_eq!(dynamic_starts(fixed, aligns), [start, start, start, 64], "{aligns:?} behind {fixed} bytes");
            }
        }
    }
    assert_eq!(dynamic_starts(1, [4, 1024, 1]), [1024, 1024, 1024, 64]);
}

#[test]
fn shared_variables_of_other_kernels_cost_nothing() {
    let text = ".version 8.4\n.target sm_80\n.address_size 64\n.shared .b8 a[1000];\n.shared .b8 b[64];\n.shared .b8 c[32];
        .func f() { .reg .b32 %r; ld.shared.u8 %r, [c]; ret; }
        .entry one() { .reg .b32 %r; ld.shared.u8 %r, [a]; ret; } .entry two() { .reg .b32 %r; ld.shared.u8 %r, [b]; ret; }
        .entry three() { .reg .b32 %r; ld.shared.u8 %r, [b]; call f; ret; } .entry four() { ret; }
        .func g() { .shared .b8 own[16]; .reg .b32 %r; ld.shared.u8 %r, [own]; ret; } .entry five() { call g; ret; }
        .func over() { call f; ret; } .entry six() { .shared .b8 mine[8]; .reg .b32 %r; ld.shared.u8 %r, [mine]; call over; ret; }";
    let gpu = Gpu::new(&[text]);
    let sizes: Vec<u32> = gpu.image.program().kernels().iter().map(|k| k.static_shared).collect();
    assert_eq!(sizes[..5], [1000, 64, 96, 0, 16]);
    // `c` lies behind `b`, which is not this kernel's.
    assert!((40..=104).contains(&sizes[5]), "{sizes:?}");
}

/// The code that clang emits: every shared variable is weak, whichever kernel uses it.
#[test]
fn weak_shared_variables_count_for_their_kernels_alone() {
    let text = ".version 8.4\n.target sm_80\n.address_size 64\n.weak .shared .align 4 .b8 a[40000];\n.weak .shared .align 4 .b8 b[30000];
        .visible .shared .align 4 .b8 c[20000];\n.weak .shared .align 4 .b8 both[16];\n.weak .shared .align 4 .b8 nobody[50000];
        .entry one(.param .u64 out) { .reg .b32 %r<3>; .reg .b64 %d; ld.param.u64 %d, [out]; st.shared.u32 [a+39996], 7; st.shared.u32 [both], 9;
            ld.shared.u32 %r1, [a+39996]; ld.shared.u32 %r2, [both]; st.global.v2.u32 [%d], {%r1, %r2}; ret; }
        .entry two(.param .u64 out) { .reg .b32 %r<3>; .reg .b64 %d; ld.param.u64 %d, [out]; st.shared.u32 [b], 5; st.shared.u32 [both+12], 6;
            ld.shared.u32 %r1, [b]; ld.shared.u32 %r2, [both+12]; st.global.v2.u32 [%d], {%r1, %r2}; ret; }
        .entry three(.param .u64 out) { .reg .b32 %r; ld.shared.u8 %r, [c]; ret; } .entry four(.param .u64 out) { ret; }";
    let gpu = Gpu::new(&[text]);
    let sizes: Vec<u32> = gpu.image.program().kernels().iter().map(|k| k.static_shared).collect();
    assert_eq!(sizes, [40016, 30016, 20000, 0]);
    for (kernel, expected) in [("one", [7, 9]), ("two", [5, 6])] {
        let output = Buffer::new(8);
        gpu.run(kernel, 1, 1, &[Arg::Ptr(&output)]);
        assert_eq!(output.u32s(), expected);
    }
    // A variable that another unit names keeps one place in both.
    let user = ".version 8.4\n.target sm_80\n.address_size 64\n.extern .shared .align 4 .b8 c[20000];\n.weak .shared .align 4 .b8 a[40000];
        .visible .func far() { .reg .b32 %r; ld.shared.u8 %r, [c]; ret; } .entry five() { .reg .b32 %r; ld.shared.u8 %r, [a]; call far; ret; }";
    let sizes = |gpu: &Gpu| gpu.image.program().kernels().iter().map(|k| k.static_shared).collect::<Vec<u32>>();
    let joined = sizes(&Gpu::new(&[text, user]));
    assert!(joined[0] >= 40016 && joined[2] >= 20000 && joined[4] >= 60000, "{joined:?}");
}

/// An array declared to be elsewhere, with a size, that no unit has: dynamic shared memory.
#[test]
fn an_external_shared_array_may_say_its_size() {
    let text = ".version 8.4\n.target sm_80\n.address_size 64\n.extern .shared .align 8 .b8 sized[1024];\n.shared .align 4 .b8 fixed[20];
        .entry k(.param .u64 out) { .reg .b64 %d; .reg .b32 %r<3>; ld.param.u64 %d, [out]; st.shared.u32 [fixed], 1; mov.u32 %r1, sized;
        st.shared.u32 [sized+2044], %r1; ld.shared.u32 %r2, [%r1+2044]; st.global.u32 [%d], %r2; ret; }";
    let output = Buffer::new(4);
    let mut gpu = Gpu::new(&[text]);
    gpu.shared = 2048;
    assert_eq!(gpu.image.program().kernels()[0].static_shared, 20);
    gpu.run("k", 1, 1, &[Arg::Ptr(&output)]);
    assert_eq!(output.u32s(), [32]);
    // With a unit that has it, it is that one.
    let having = ".version 8.4\n.target sm_80\n.address_size 64\n.visible .shared .align 8 .b8 sized[1024];";
    assert_eq!(Gpu::new(&[text, having]).image.program().kernels()[0].static_shared, 1044);
}

#[test]
fn copies_that_ignore_their_source_write_zeros() {
    let body =
        ".shared .align 16 .b8 s[64]; mov.u32 %r1, s; and.b32 %r2, %t, 1; setp.eq.u32 %p1, %r2, 1; mov.u64 %d1, 64;
        mad.lo.u32 %r1, %t, 32, %r1; @%p1 mov.u64 %in, %d1; cp.async.ca.shared.global [%r1], [%in], 16, %p1;
        mov.u64 %d2, %out; cp.async.cg.shared.global [%r1+16], [%d2], 16, !%p1; cp.async.wait_all;
        ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r1]; st.global.v4.u32 [%out+32], {%r3, %r4, %r5, %r6};
        ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r1+16]; st.global.v4.u32 [%out+48], {%r3, %r4, %r5, %r6};";
    let body = format!("mov.u32 %r9, 77; st.global.v4.u32 [%out], {{%r9, %r9, %r9, %r9}}; {body}");
    // The second thread's address is none at all; the first one's second copy is ignored.
    let found = rows(&body, &[vec![1, 2, 3, 4], vec![5, 6, 7, 8]]);
    assert_eq!(found[0][8..], [1, 2, 3, 4, 0, 0, 0, 0]);
    assert_eq!(found[1][8..], [0, 0, 0, 0, 77, 77, 77, 77]);
}

#[test]
fn copies_to_shared_memory_zero_what_is_not_read() {
    let body = ".shared .align 16 .b8 s[32]; mov.u32 %r1, s; mov.u32 %r2, 5;
        cp.async.cg.shared.global [%r1], [%in], 16; cp.async.ca.shared.global [%r1+16], [%in+16], 8, %r2;
        cp.async.commit_group; cp.async.wait_group 0; ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [s]; ld.shared.v2.u32 {%r7, %r8}, [s+16];
        st.global.v4.u32 [%out], {%r3, %r4, %r5, %r6}; st.global.v2.u32 [%out+16], {%r7, %r8};";
    let row = rows(body, &[vec![1, 2, 3, 4, 0x1111_1111, 0x2222_2222]])[0];
    assert_eq!(row[..6], [1, 2, 3, 4, 0x1111_1111, 0x22]);
}

const SYSCALLS: &str = r#".version 8.4
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 format, .param .b64 arguments);
.extern .func (.param .b64 r) malloc(.param .b64 size);
.extern .func free(.param .b64 pointer);
.extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 c);
.global .align 1 .b8 format[40] = {37,45,53,100,124,37,48,54,46,50,102,124,37,108,108,120,124,37,115,124,37,99,37,37,10,0};
.global .align 1 .b8 word[4] = {97,98,99,0};
.global .align 1 .b8 name[3] = {102,40,0};
.entry print(.param .u64 out) {
    .local .align 8 .b8 buffer[48];
    .reg .b64 %d<8>; .reg .b32 %r<4>;
    mov.u64 %d1, buffer; cvta.local.u64 %d2, %d1;
    mov.u32 %r1, %tid.x; st.local.u32 [%d1], %r1; mov.u64 %d3, 0d4009333333333333; st.local.u64 [%d1+8], %d3;
    mov.u64 %d3, 0x1234567890; st.local.u64 [%d1+16], %d3; mov.u64 %d3, word; cvta.global.u64 %d3, %d3; st.local.u64 [%d1+24], %d3;
    st.local.u32 [%d1+32], 33;
    .param .b64 a; .param .b64 b; .param .b32 r; mov.u64 %d4, format; st.param.b64 [a], %d4; st.param.b64 [b], %d2;
    call.uni (r), vprintf, (a, b); ld.param.b32 %r2, [r]; ld.param.u64 %d5, [out]; st.global.u32 [%d5], %r2; ret;
}
.entry heap(.param .u64 out) {
    .reg .b64 %d<8>; .reg .b32 %r<4>; .param .b64 size; .param .b64 p;
    st.param.b64 [size], 24; call.uni (p), malloc, (size); ld.param.b64 %d1, [p];
    mov.u32 %r1, %tid.x; st.u32 [%d1+20], %r1; bar.sync 0; ld.u32 %r2, [%d1+20];
    ld.param.u64 %d2, [out]; mul.wide.u32 %d3, %r1, 4; add.u64 %d2, %d2, %d3; st.global.u32 [%d2], %r2;
    { .param .b64 q; st.param.b64 [q], %d1; call.uni free, (q); }
    ret;
}
.entry overrun(.param .u64 out) {
    .reg .b64 %d<8>; .param .b64 size; .param .b64 p;
    st.param.b64 [size], 24; call.uni (p), malloc, (size); ld.param.b64 %d1, [p]; st.u32 [%d1+32], 1; ret;
}
.entry fails() {
    .reg .b64 %d<4>; .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    mov.u64 %d1, word; mov.u64 %d2, name; st.param.b64 [a], %d1; st.param.b64 [b], %d2; st.param.b32 [c], 77;
    st.param.b64 [d], %d2; st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); ret;
}
"#;

#[test]
fn the_driver_provides_printf_malloc_and_assert() {
    let mut gpu = Gpu::new(&[SYSCALLS]);
    gpu.threads = 1;
    let output = Buffer::new(64 * 4);
    gpu.run("print", 1, 2, &[Arg::Ptr(&output)]);
    assert_eq!(gpu.text(), "0    |003.15|1234567890|abc|!%\n1    |003.15|1234567890|abc|!%\n");
    assert_eq!(output.u32s()[0], 5);
    gpu.run("heap", 1, 64, &[Arg::Ptr(&output)]);
    assert_eq!(output.u32s(), (0..64).collect::<Vec<_>>());
    assert_eq!(gpu.launch("overrun", [1; 3], [1; 3], &[Arg::Ptr(&output)]).unwrap_err().code, 700);
    let fault = gpu.launch("fails", [1; 3], [1; 3], &[]).unwrap_err();
    assert_eq!(fault.code, 710);
    assert!(
        gpu.text().ends_with("f(:77: f(: block: [0,0,0], thread: [0,0,0] Assertion `abc` failed.\n"),
        "{}",
        gpu.text()
    );
}

#[test]
fn cache_policies_are_accepted() {
    let body = ".shared .align 16 .b8 s[16]; createpolicy.fractional.L2::evict_first.b64 %d1, 1.0; mov.u32 %r1, s;
        ld.global.L1::evict_last.L2::cache_hint.v2.b32 {%r2, %r3}, [%in], %d1;
        cp.async.ca.shared.global.L2::cache_hint [%r1], [%in], 8, %d1; cp.async.wait_all; ld.shared.u32 %r4, [s+4];
        st.global.L2::cache_hint.v2.b32 [%out], {%r3, %r4}, %d1;";
    assert_eq!(rows(body, &[vec![3, 4]])[0][..2], [4, 4]);
}

#[test]
fn dynamic_shared_memory_is_as_long_as_asked_for_behind_static_memory() {
    let text = ".version 8.4\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 words[];
        .entry k(.param .u64 out, .param .u32 last) {
            .shared .align 1 .b8 flag[1]; .reg .b32 %r<8>; .reg .b64 %d; .reg .b16 %h;
            ld.param.u64 %d, [out]; ld.param.u32 %r1, [last];
            mov.u16 %h, 7; st.shared.u8 [flag], %h;
            mov.u32 %r2, words; add.u32 %r2, %r2, %r1; st.shared.u32 [%r2], %r1;
            ld.shared.u32 %r3, [%r2]; st.global.u32 [%d], %r3; ret; }";
    let output = Buffer::new(4);
    let mut gpu = Gpu::new(&[text]);
    gpu.shared = 512;
    gpu.run("k", 1, 1, &[Arg::Ptr(&output), Arg::U32(508)]);
    assert_eq!(output.u32s(), [508]);
    let fault = gpu.launch("k", [1; 3], [1; 3], &[Arg::Ptr(&output), Arg::U32(1024)]).unwrap_err();
    assert_eq!(fault.code, 700);
}
