//! Video instructions, packed halves and `fns`, against references written from the text of the PTX ISA. The sections are
//! those of the ISA.

mod engine_support;

use engine_support::{kernel, rows, words};
use softgpu::engine::Program;

/// Numbers of all kinds, the same in every run.
fn samples() -> Vec<[u32; 3]> {
    let corners = [0, 1, 31, 32, 33, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    let mut state = 12345u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 ^ (state >> 16) as u32
    };
    let mut made: Vec<[u32; 3]> = (0..12).map(|_| [next(), next(), next()]).collect();
    for (index, a) in corners.iter().enumerate() {
        made.push([*a, corners[(index * 5 + 3) % corners.len()], corners[(index * 3 + 1) % corners.len()]]);
    }
    made
}

/// `partSelectSignExtend` of 9.7.17.
fn select(word: u32, part: &str, signed: bool) -> i128 {
    let bytes = word.to_le_bytes();
    let index = part.get(1..).map_or(0, |digit| digit.parse().unwrap());
    match part.get(..1) {
        None => {
            if signed {
                i128::from(word as i32)
            } else {
                i128::from(word)
            }
        }
        Some("b") => {
            if signed {
                i128::from(bytes[index] as i8)
            } else {
                i128::from(bytes[index])
            }
        }
        _ => {
            let half = u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]);
            if signed { i128::from(half as i16) } else { i128::from(half) }
        }
    }
}

fn width(part: &str) -> u32 {
    match part.get(..1) {
        None => 32,
        Some("b") => 8,
        _ => 16,
    }
}

/// `optSaturate`
fn saturate(value: i128, bits: u32, signed: bool) -> i128 {
    let high = if signed { (1 << (bits - 1)) - 1 } else { (1 << bits) - 1 };
    let low = if signed { -(1 << (bits - 1)) } else { 0 };
    value.max(low).min(high)
}

/// `optMerge`
fn merge(value: i128, part: &str, c: u32) -> u32 {
    let mut bytes = c.to_le_bytes();
    let index: usize = part[1..].parse().unwrap();
    let new = (value as u32).to_le_bytes();
    if part.starts_with('b') {
        bytes[index] = new[0];
    } else {
        bytes[2 * index..2 * index + 2].copy_from_slice(&new[..2]);
    }
    u32::from_le_bytes(bytes)
}

fn scalar(op: &str, a: i128, b: i128, wrap: bool) -> i128 {
    let distance = if wrap { b & 31 } else { b.min(32) };
    match op {
        "vadd" => a + b,
        "vsub" => a - b,
        "vabsdiff" => (a - b).abs(),
        "vmin" => a.min(b),
        "vmax" => a.max(b),
        "vshl" => a * (1 << distance),
        "vshr" => a.div_euclid(1 << distance),
        "eq" => i128::from(a == b),
        "ne" => i128::from(a != b),
        "lt" => i128::from(a < b),
        "le" => i128::from(a <= b),
        "gt" => i128::from(a > b),
        _ => i128::from(a >= b),
    }
}

/// An operation with its name.
type Named<T> = (&'static str, fn(T, T) -> T);

const SIGNS: [(&str, bool); 2] = [("u32", false), ("s32", true)];
const PARTS: [&str; 4] = ["", "b3", "h0", "h1"];

fn dotted(part: &str) -> String {
    if part.is_empty() { String::new() } else { format!(".{part}") }
}

/// Runs an instruction on all samples, and compares with what is wanted of each.
fn check(instruction: &str, wanted: impl Fn(u32, u32, u32) -> u32) {
    let loads: String = (1..4).map(|i| format!("ld.global.u32 %r{i}, [%in+{}];\n", 4 * (i - 1))).collect();
    let samples = samples();
    let inputs: Vec<Vec<u32>> = samples.iter().map(|sample| sample.to_vec()).collect();
    for (row, [a, b, c]) in
        rows(&format!("{loads}{instruction}\nst.global.u32 [%out], %r0;"), &inputs).iter().zip(samples)
    {
        assert_eq!(row[0], wanted(a, b, c), "{instruction} of {a:#x}, {b:#x}, {c:#x}");
    }
}

#[test]
fn sums_differences_and_extremes_of_parts() {
    // 9.7.17.1
    for (number, op) in ["vadd", "vsub", "vabsdiff", "vmin", "vmax"].into_iter().enumerate() {
        for signs in 0..8 {
            let [(dt, ds), (at, a_signed), (bt, b_signed)] =
                [SIGNS[signs & 1], SIGNS[signs >> 1 & 1], SIGNS[signs >> 2]];
            let (pa, pb) = (PARTS[(number + signs) % 4], PARTS[(number + signs / 4) % 4]);
            for sat in [false, true] {
                let raw = |a, b| scalar(op, select(a, pa, a_signed), select(b, pb, b_signed), false);
                let clamped = |a, b, bits| if sat { saturate(raw(a, b), bits, ds) } else { raw(a, b) };
                let head = format!("{op}.{dt}.{at}.{bt}{}", if sat { ".sat" } else { "" });
                let sources = format!("%r1{}, %r2{}", dotted(pa), dotted(pb));
                check(&format!("{head} %r0, {sources};"), |a, b, _| clamped(a, b, 32) as u32);
                let second: [Named<i128>; 3] =
                    [("add", |x, y| x + y), ("min", |x, y| x.min(y)), ("max", |x, y| x.max(y))];
                for (name, f) in second {
                    let other = |c| select(c, "", ds);
                    check(&format!("{head}.{name} %r0, {sources}, %r3;"), |a, b, c| {
                        f(clamped(a, b, 32), other(c)) as u32
                    });
                }
                for part in ["b0", "b2", "h1"] {
                    let wanted = |a, b, c| merge(clamped(a, b, width(part)), part, c);
                    check(&format!("{head} %r0.{part}, {sources}, %r3;"), wanted);
                }
            }
        }
    }
}

#[test]
fn shifts_of_parts() {
    // 9.7.17.2. The form that compilers emit is the first.
    assert_eq!(words("vshr.u32.u32.u32.clamp.add %r0, %r1, %r2, %r3;", &[0xf000_0000, 28, 3]), 18);
    assert_eq!(words("vshr.u32.u32.u32.clamp.add %r0, %r1, %r2, %r3;", &[0xf000_0000, 32, 3]), 3);
    for (op, mode, wrap) in
        [("vshl", "clamp", false), ("vshl", "wrap", true), ("vshr", "clamp", false), ("vshr", "wrap", true)]
    {
        for (ty, signed) in SIGNS {
            for (part, by) in PARTS.into_iter().zip(["", "b0", "h1", ""]) {
                let raw = |a, b| scalar(op, select(a, part, signed), select(b, by, false), wrap);
                let (head, sources) =
                    (format!("{op}.{ty}.{ty}.u32"), format!("%r1{}, %r2{}", dotted(part), dotted(by)));
                check(&format!("{head}.{mode} %r0, {sources};"), |a, b, _| raw(a, b) as u32);
                let merged = |a, b, c| merge(saturate(raw(a, b), 16, signed), "h0", c);
                check(&format!("{head}.sat.{mode} %r0.h0, {sources}, %r3;"), merged);
                let largest = |a, b, c| raw(a, b).max(select(c, "", signed)) as u32;
                check(&format!("{head}.{mode}.max %r0, {sources}, %r3;"), largest);
            }
        }
    }
}

#[test]
fn products_of_parts() {
    // 9.7.17.3
    for (number, minus) in ["", "a", "b", "ab", "c", "po"].into_iter().enumerate() {
        for signs in 0..4 {
            let [(at, a_signed), (bt, b_signed)] = [SIGNS[signs & 1], SIGNS[signs >> 1]];
            let (part, po) = (PARTS[(number + signs) % 4], minus == "po");
            let negated = minus == "a" || minus == "b";
            let signed = a_signed || b_signed || negated || minus == "c";
            for (scale, shift) in [("", 0), (".shr7", 7), (".shr15", 15)] {
                for sat in [false, true] {
                    let wanted = |a, b, c: u32| {
                        let product = select(a, part, a_signed) * select(b, "h1", b_signed);
                        let other = if signed { i128::from(c as i32) } else { i128::from(c) };
                        // The ISA inverts and adds one, which is the negative.
                        let product = if negated { !product + 1 } else { product };
                        let other = if minus == "c" { !other + 1 } else { other };
                        let result = (product + other + i128::from(po)) >> shift;
                        if sat { saturate(result, 32, signed) as u32 } else { result as u32 }
                    };
                    let sign = |name: &str| if !po && minus.contains(name) { "-" } else { "" };
                    let tail = format!("{}{}{scale}", if po { ".po" } else { "" }, if sat { ".sat" } else { "" });
                    let operands = format!("{}%r1{}, {}%r2.h1, {}%r3", sign("a"), dotted(part), sign("b"), sign("c"));
                    check(&format!("vmad.s32.{at}.{bt}{tail} %r0, {operands};"), wanted);
                }
            }
        }
    }
}

#[test]
fn comparisons_of_parts() {
    // 9.7.17.4
    for op in ["eq", "ne", "lt", "le", "gt", "ge"] {
        for signs in 0..4 {
            let [(at, a_signed), (bt, b_signed)] = [SIGNS[signs & 1], SIGNS[signs >> 1]];
            let truth = |a, b| scalar(op, select(a, "b3", a_signed), select(b, "b0", b_signed), false);
            let head = format!("vset.{at}.{bt}.{op}");
            check(&format!("{head} %r0, %r1.b3, %r2.b0;"), |a, b, _| truth(a, b) as u32);
            check(&format!("{head}.add %r0, %r1.b3, %r2.b0, %r3;"), |a, b, c| (truth(a, b) + i128::from(c)) as u32);
            check(&format!("{head} %r0.b1, %r1.b3, %r2.b0, %r3;"), |a, b, c| merge(truth(a, b), "b1", c));
        }
    }
}

/// The element that a selector's digit names, of a and b one behind the other.
fn element(a: u32, b: u32, number: usize, count: usize, signed: bool) -> i128 {
    let word = [a, b][number / count];
    let part = format!("{}{}", if count == 2 { "h" } else { "b" }, number % count);
    select(word, &part, signed)
}

/// The chosen elements of the first source, and the mask, by count: in the text and as numbers.
const CHOSEN: [(u32, &str, [usize; 4], &str, u32); 4] = [
    (2, "", [0, 1, 0, 0], "", 0b11),
    (2, ".h30", [0, 3, 0, 0], ".h1", 0b10),
    (4, "", [0, 1, 2, 3], "", 0b1111),
    (4, ".b7210", [0, 1, 2, 7], ".b20", 0b101),
];

#[test]
fn several_parts_at_once() {
    // 9.7.18.1 to 9.7.18.4: element i of a source is the one that the selector's digit i from the right names.
    for (count, selector, chosen, mask, bits) in CHOSEN {
        for op in ["vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax", "lt", "ne"] {
            for (ty, signed) in SIGNS {
                for sat in [false, true] {
                    let result = |a, b, i: usize| {
                        let [x, y] = [chosen[i], count as usize + i].map(|n| element(a, b, n, count as usize, signed));
                        let raw = match op {
                            "vavrg" if x + y >= 0 => (x + y + 1) >> 1,
                            "vavrg" => (x + y) >> 1,
                            op => scalar(op, x, y, false),
                        };
                        if sat { saturate(raw, 32 / count, signed) } else { raw }
                    };
                    let counted = || (0..count as usize).filter(|i| bits >> i & 1 == 1);
                    let head = match op.starts_with('v') {
                        true => format!("{op}{count}.{ty}.{ty}.{ty}{}", if sat { ".sat" } else { "" }),
                        false => format!("vset{count}.{ty}.{ty}.{op}"),
                    };
                    let operands = format!("%r0{mask}, %r1{selector}, %r2, %r3;");
                    let sum = |a, b, c| (counted().map(|i| result(a, b, i)).sum::<i128>() + i128::from(c)) as u32;
                    check(&format!("{head}.add {operands}"), sum);
                    let kind = if count == 2 { "h" } else { "b" };
                    let put = |all, i, value| merge(value, &format!("{kind}{i}"), all);
                    let merged = |a, b, c| counted().fold(c, |all, i| put(all, i, result(a, b, i)));
                    check(&format!("{head} {operands}"), merged);
                }
            }
        }
    }
}

fn by_half(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}

#[test]
fn packed_halves() {
    // 9.7.1.1, 9.7.1.11, 9.7.1.12: each half by itself.
    let unsigned: [Named<u32>; 3] = [
        ("add.u16x2", |x, y| x + y),
        ("min.u16x2", |x, y| if x < y { x } else { y }),
        ("max.u16x2", |x, y| if x < y { y } else { x }),
    ];
    for (op, f) in unsigned {
        check(&format!("{op} %r0, %r1, %r2;"), |a, b, _| by_half(a, b, |x, y| f(x.into(), y.into()) as u16));
    }
    let signed: [Named<i32>; 6] = [
        ("add.s16x2", |x, y| x + y),
        ("sub.s16x2", |x, y| x - y),
        ("min.s16x2", |x, y| if x < y { x } else { y }),
        ("max.s16x2", |x, y| if x < y { y } else { x }),
        ("min.relu.s16x2", |x, y| if x.min(y) < 0 { 0 } else { x.min(y) }),
        ("max.relu.s16x2", |x, y| if x.max(y) < 0 { 0 } else { x.max(y) }),
    ];
    for (op, f) in signed {
        let each = |x: u16, y: u16| f((x as i16).into(), (y as i16).into()) as u16;
        check(&format!("{op} %r0, %r1, %r2;"), |a, b, _| by_half(a, b, each));
    }
    check("min.relu.s32 %r0, %r1, %r2;", |a, b, _| (a as i32).min(b as i32).max(0) as u32);
    check("max.relu.s32 %r0, %r1, %r2;", |a, b, _| (a as i32).max(b as i32).max(0) as u32);
}

/// 9.7.1.18, as the ISA's pseudo-code has it.
fn fns(mask: u32, base: i32, offset: i32) -> u32 {
    if offset == 0 {
        return if mask >> base & 1 == 1 { base as u32 } else { u32::MAX };
    }
    let (mut position, mut count, step) = (base, offset.abs() - 1, offset.signum());
    while (0..32).contains(&position) {
        if mask >> position & 1 == 1 {
            if count == 0 {
                return position as u32;
            }
            count -= 1;
        }
        position += step;
    }
    u32::MAX
}

#[test]
fn the_nth_set_bit() {
    for base in [0, 5, 16, 31] {
        for offset in [0, 1, 2, 7, 33, -1, -3, -32] {
            check(&format!("fns.b32 %r0, %r1, {base}, {offset};"), |mask, _, _| fns(mask, base, offset));
        }
    }
}

#[test]
fn what_the_isa_does_not_have_is_refused() {
    for (instruction, why) in [
        ("vadd.u32.u32.u32 %r0.b4, %r1, %r2, %r3;", "there is no part .b4"),
        ("vadd.u32.u32.u64 %r0, %r1, %r2;", "32 bits"),
        ("vadd.u32.u32.u32.add %r0, %r1, %r2;", "number of operands"),
        ("vadd.u32.u32.u32.add %r0.b0, %r1, %r2, %r3;", "merged or used further"),
        ("vshr.u32.u32.s32.clamp %r0, %r1, %r2;", "no sign"),
        ("vshr.u32.u32.u32 %r0, %r1, %r2;", "wraps"),
        ("vmad.u32.u32.u32.po %r0, -%r1, %r2, %r3;", "no more than one"),
        ("vadd2.u32.u32.u32 %r0, %r1.h210, %r2, %r3;", "as many parts"),
        ("vadd2.u32.u32.u32 %r0, %r1.b10, %r2, %r3;", "there are no parts .b10"),
        ("max.relu.u16x2 %r0, %r1, %r2;", "no .relu"),
        ("add.u32 %r0, -%r1, %r2;", "another kind"),
        ("add.u32 %r0, %r1.b0, %r2;", "another kind"),
    ] {
        let said = refusal(instruction);
        assert!(said.contains(why), "{instruction}: {said}");
    }
}

fn refusal(instruction: &str) -> String {
    let program = Program::compile(&[&kernel(instruction)]).unwrap_or_else(|error| panic!("{error}"));
    program.kernels()[0].unsupported.clone().unwrap_or_else(|| panic!("'{instruction}' is provided"))
}
