//! The measured kernels: arithmetic only, diverging loops, memory only, and shared memory with barriers.

use std::ffi::CString;

use super::ptx::{self, Piece};
use crate::samples::noise;

/// A function that checks a kernel's output.
type Check = Box<dyn Fn(&[u8]) -> bool>;

pub struct Workload {
    pub name: &'static str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub input: Vec<u8>,
    pub output_bytes: usize,
    /// The parameters after the two addresses.
    pub numbers: Vec<u64>,
    pub is_right: Check,
    declarations: &'static str,
    pieces: Vec<Piece>,
}

impl Workload {
    pub fn text(&self) -> CString {
        ptx::module(self.declarations, self.numbers.len(), &self.pieces)
    }

    pub fn lane_instructions(&self) -> u64 {
        ptx::lane_instructions(&self.pieces)
    }
}

/// Returns all workloads; smaller ones with `quick`.
pub fn all(quick: bool) -> Vec<Workload> {
    let part = if quick { 4 } else { 1 };
    vec![fma(1024 / part), mandelbrot(1024 / part), vector_add((4 << 20) / part), matmul(512 / part)]
}

/// Sets `%i` to the thread's index in the grid, and `%in` and `%out` to the addresses.
const INDEX: &str = "
    ld.param.u64 %in, [in];
    ld.param.u64 %out, [out];
    mov.u32 %t, %tid.x;
    mov.u32 %b, %ctaid.x;
    mov.u32 %n, %ntid.x;
    mad.lo.u32 %i, %b, %n, %t;
    mul.wide.u32 %o, %i, 4;
    add.u64 %out, %out, %o;
";
const REGISTERS: &str = "
    .reg .b64 %in, %out, %o, %a, %c;
    .reg .b32 %t, %b, %n, %i, %k, %m, %x, %y;
    .reg .f32 %f<16>;
    .reg .pred %p, %q;
";

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|word| f32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
}

/// Returns small whole numbers. Sums of their products are exact in any order.
fn small_floats(count: usize) -> Vec<u8> {
    noise(count).iter().flat_map(|byte| f32::from(byte % 8).to_ne_bytes()).collect()
}

/// A kernel with four chains of fused multiply-adds in every thread.
fn fma(turns: u32) -> Workload {
    const UNROLLED: u32 = 8;
    const THREADS: u32 = 65536;
    let chain = "
        fma.rn.f32 %f0, %f0, %f4, %f5;
        fma.rn.f32 %f1, %f1, %f4, %f5;
        fma.rn.f32 %f2, %f2, %f4, %f5;
        fma.rn.f32 %f3, %f3, %f4, %f5;";
    let threads = u64::from(THREADS);
    let pieces = vec![
        Piece::new(INDEX, threads),
        Piece::new(
            "ld.param.u32 %m, [n0];
            cvt.rn.f32.u32 %f0, %i;
            add.f32 %f1, %f0, 0f3F800000;
            add.f32 %f2, %f0, 0f40000000;
            add.f32 %f3, %f0, 0f40400000;
            mov.f32 %f4, 0f3F000000;
            mov.f32 %f5, 0f3F800000;
            mov.u32 %k, 0;
        loop:",
            threads,
        ),
        Piece::new(chain.repeat(UNROLLED as usize), threads * u64::from(turns)),
        Piece::new("add.u32 %k, %k, 1; setp.lt.u32 %p, %k, %m; @%p bra loop;", threads * u64::from(turns)),
        Piece::new(
            "add.f32 %f0, %f0, %f1; add.f32 %f2, %f2, %f3; add.f32 %f0, %f0, %f2; st.global.f32 [%out], %f0; ret;",
            threads,
        ),
    ];
    let expected = move |thread: u32| {
        let first = thread as f32;
        let chains = [first, first + 1.0, first + 2.0, first + 3.0]
            .map(|start| (0..turns * UNROLLED).fold(start, |x, _| x.mul_add(0.5, 1.0)));
        (chains[0] + chains[1]) + (chains[2] + chains[3])
    };
    Workload {
        name: "fma",
        grid: [THREADS / 256, 1, 1],
        block: [256, 1, 1],
        input: vec![0; 4],
        output_bytes: 4 * THREADS as usize,
        numbers: vec![turns.into()],
        is_right: Box::new(move |result| {
            let result = floats(result);
            (0..THREADS).step_by(4099).all(|thread| result[thread as usize] == expected(thread))
        }),
        declarations: REGISTERS,
        pieces,
    }
}

/// The maximum number of iterations of the diverging loop.
const LIMIT: u32 = 256;

/// Returns the number of iterations for a point, with the same rounding as the kernel.
fn escape_turns(x: u32, y: u32, step: f32) -> u32 {
    let (cx, cy) = ((x as f32).mul_add(step, -2.0), (y as f32).mul_add(step, -1.5));
    let (mut zx, mut zy, mut turns) = (0f32, 0f32, 0);
    loop {
        let (xx, yy) = (zx * zx, zy * zy);
        zy = zx.mul_add(zy + zy, cy);
        zx = (xx - yy) + cx;
        turns += 1;
        if xx + yy >= 4.0 || turns >= LIMIT {
            return turns;
        }
    }
}

/// A kernel that computes the Mandelbrot set on a square. Neighbouring threads leave the loop after different numbers
/// of iterations.
fn mandelbrot(side: u32) -> Workload {
    let step = 3.0 / side as f32;
    let expected: Vec<u32> = (0..side).flat_map(|y| (0..side).map(move |x| escape_turns(x, y, step))).collect();
    let (threads, turns) = (u64::from(side) * u64::from(side), expected.iter().map(|&turns| u64::from(turns)).sum());
    let pieces = vec![
        Piece::new(INDEX, threads),
        Piece::new(
            "ld.param.u32 %m, [n0];
            ld.param.f32 %f0, [n1];
            rem.u32 %x, %i, %m;
            div.u32 %y, %i, %m;
            cvt.rn.f32.u32 %f1, %x;
            cvt.rn.f32.u32 %f2, %y;
            fma.rn.f32 %f1, %f1, %f0, 0fC0000000;
            fma.rn.f32 %f2, %f2, %f0, 0fBFC00000;
            mov.f32 %f3, 0f00000000;
            mov.f32 %f4, 0f00000000;
            mov.u32 %k, 0;
        loop:",
            threads,
        ),
        Piece::new(
            "mul.rn.f32 %f5, %f3, %f3;
            mul.rn.f32 %f6, %f4, %f4;
            add.rn.f32 %f7, %f4, %f4;
            fma.rn.f32 %f4, %f3, %f7, %f2;
            sub.rn.f32 %f3, %f5, %f6;
            add.rn.f32 %f3, %f3, %f1;
            add.rn.f32 %f8, %f5, %f6;
            add.u32 %k, %k, 1;
            setp.lt.u32 %p, %k, 256;
            setp.lt.and.f32 %p, %f8, 0f40800000, %p;
            @%p bra loop;",
            turns,
        ),
        Piece::new("st.global.u32 [%out], %k; ret;", threads),
    ];
    Workload {
        name: "mandelbrot",
        grid: [side * side / 256, 1, 1],
        block: [256, 1, 1],
        input: vec![0; 4],
        output_bytes: 4 * expected.len(),
        numbers: vec![side.into(), step.to_bits().into()],
        is_right: Box::new(move |result| {
            let turns = result.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
            turns.eq(expected.iter().copied())
        }),
        declarations: REGISTERS,
        pieces,
    }
}

/// A kernel that adds two vectors, one element for each thread, in the form that compilers generate.
fn vector_add(count: u32) -> Workload {
    let threads = u64::from(count);
    let input = small_floats(2 * count as usize);
    let values = floats(&input);
    let pieces = vec![
        Piece::new(INDEX, threads),
        Piece::new("ld.param.u32 %m, [n0]; setp.ge.u32 %p, %i, %m; @%p bra end;", threads),
        Piece::new(
            "mul.wide.u32 %c, %m, 4;
            add.u64 %a, %in, %o;
            add.u64 %c, %a, %c;
            ld.global.f32 %f0, [%a];
            ld.global.f32 %f1, [%c];
            add.f32 %f2, %f0, %f1;
            st.global.f32 [%out], %f2;",
            threads,
        ),
        Piece::new("end: ret;", threads),
    ];
    Workload {
        name: "vector_add",
        grid: [count.div_ceil(256), 1, 1],
        block: [256, 1, 1],
        input,
        output_bytes: 4 * count as usize,
        numbers: vec![threads],
        is_right: Box::new(move |result| {
            let (a, b) = values.split_at(values.len() / 2);
            floats(result).into_iter().eq(a.iter().zip(b).map(|(a, b)| a + b))
        }),
        declarations: REGISTERS,
        pieces,
    }
}

/// A kernel that multiplies a square matrix by itself. All threads of a block wait for tiles in shared memory.
fn matmul(side: u32) -> Workload {
    const TILE: u32 = 16;
    let (n, tiles) = (u64::from(side), u64::from(side / TILE));
    let input = small_floats((side * side) as usize);
    let values = floats(&input);
    let threads = n * n;
    let products: String = (0..TILE)
        .map(|k| {
            format!(
                "ld.shared.f32 %f1, [%x+{}]; ld.shared.f32 %f2, [%y+{}]; fma.rn.f32 %f0, %f1, %f2, %f0;\n",
                4 * k,
                4 * TILE * k
            )
        })
        .collect();
    let pieces = vec![
        Piece::new(
            "ld.param.u64 %in, [in];
            ld.param.u64 %out, [out];
            ld.param.u32 %m, [n0];
            mov.u32 %tx, %tid.x;
            mov.u32 %ty, %tid.y;
            mov.u32 %bx, %ctaid.x;
            mov.u32 %by, %ctaid.y;
            mad.lo.u32 %col, %bx, 16, %tx;
            mad.lo.u32 %row, %by, 16, %ty;
            mad.lo.u32 %i, %row, %m, %tx;
            mul.wide.u32 %o, %i, 4;
            add.u64 %a, %in, %o;
            mad.lo.u32 %i, %ty, %m, %col;
            mul.wide.u32 %o, %i, 4;
            add.u64 %b, %in, %o;
            mad.lo.u32 %i, %row, %m, %col;
            mul.wide.u32 %o, %i, 4;
            add.u64 %out, %out, %o;
            mul.wide.u32 %step, %m, 64;
            mov.u32 %x, left;
            mov.u32 %y, right;
            mad.lo.u32 %x, %ty, 64, %x;
            mad.lo.u32 %y, %tx, 4, %y;
            mad.lo.u32 %sx, %tx, 4, %x;
            mad.lo.u32 %sy, %ty, 64, %y;
            mov.f32 %f0, 0f00000000;
            mov.u32 %k, 0;
        loop:",
            threads,
        ),
        Piece::new(
            "ld.global.f32 %f1, [%a];
            ld.global.f32 %f2, [%b];
            st.shared.f32 [%sx], %f1;
            st.shared.f32 [%sy], %f2;
            bar.sync 0;",
            threads * tiles,
        ),
        Piece::new(products, threads * tiles),
        Piece::new(
            "bar.sync 0;
            add.u64 %a, %a, 64;
            add.u64 %b, %b, %step;
            add.u32 %k, %k, 16;
            setp.lt.u32 %p, %k, %m;
            @%p bra loop;",
            threads * tiles,
        ),
        Piece::new("st.global.f32 [%out], %f0; ret;", threads),
    ];
    Workload {
        name: "matmul",
        grid: [side / TILE, side / TILE, 1],
        block: [TILE, TILE, 1],
        input,
        output_bytes: 4 * (side * side) as usize,
        numbers: vec![n],
        is_right: Box::new(move |result| {
            let (result, side) = (floats(result), side as usize);
            (0..side * side).step_by(127).all(|at| {
                let (row, column) = (at / side, at % side);
                let products = (0..side).map(|k| values[row * side + k] * values[k * side + column]);
                result[at] == products.sum::<f32>()
            })
        }),
        declarations: "
    .shared .align 16 .b8 left[1024];
    .shared .align 16 .b8 right[1024];
    .reg .b64 %in, %out, %o, %a, %b, %step;
    .reg .b32 %tx, %ty, %bx, %by, %col, %row, %i, %k, %m, %x, %y, %sx, %sy;
    .reg .f32 %f<3>;
    .reg .pred %p;
",
        pieces,
    }
}
