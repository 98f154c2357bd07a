//! Floating-point instructions and conversions: corner cases. The sections are those of the PTX ISA.

mod engine_support;

use engine_support::{doubles, words};
use rustc_apfloat::ieee::Double;
use rustc_apfloat::{Float, Round};

const NAN: u32 = 0x7fff_ffff;
const INF: u32 = 0x7f80_0000;
const TINY: u32 = 0x0000_0001;

/// Evaluates an f32 instruction on bits: `%f0` from `%f1`, `%f2`, `%f3`.
fn float(instruction: &str, operands: &[u32]) -> u32 {
    let moves: String = (1..=operands.len()).map(|i| format!("mov.b32 %f{i}, %r{i};\n")).collect();
    words(&format!("{moves}{instruction}\nmov.b32 %r0, %f0;"), operands)
}

fn float64(instruction: &str, operands: &[f64]) -> f64 {
    let moves: String = (1..=operands.len()).map(|i| format!("mov.b64 %fd{i}, %d{i};\n")).collect();
    let bits: Vec<u64> = operands.iter().map(|x| x.to_bits()).collect();
    f64::from_bits(doubles(&format!("{moves}{instruction}\nmov.b64 %d0, %fd0;"), &bits))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn nan_is_canonical() {
    assert_eq!(float("add.f32 %f0, %f1, %f2;", &[INF, INF | 1 << 31]), NAN);
    assert_eq!(float("mul.f32 %f0, %f1, %f2;", &[0x7fc1_2345, 0]), NAN);
    assert_eq!(float("sqrt.rn.f32 %f0, %f1;", &bits(&[-1.0])), NAN);
    assert_eq!(float("div.rn.f32 %f0, %f1, %f2;", &[0, 0]), NAN);
}

#[test]
fn contraction_never_happens() {
    // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 fused and 0 otherwise.
    let x = 1.0 + 2f32.powi(-12);
    let y = -(1.0 + 2f32.powi(-11));
    assert_eq!(float("mul.f32 %f4, %f1, %f1; add.f32 %f0, %f4, %f2;", &bits(&[x, y])), 0);
    assert_eq!(float("fma.rn.f32 %f0, %f1, %f1, %f2;", &bits(&[x, y])), 2f32.powi(-24).to_bits());
}

#[test]
fn directed_rounding() {
    // 9.7.3: one ulp of 1.0 is 2^-23 above and 2^-24 below.
    let (one, small) = (1f32.to_bits(), 2f32.powi(-40).to_bits());
    let up = one + 1;
    for (mode, expected) in [("rn", one), ("rz", one), ("rm", one), ("rp", up)] {
        assert_eq!(float(&format!("add.{mode}.f32 %f0, %f1, %f2;"), &[one, small]), expected, "{mode}");
        assert_eq!(float(&format!("fma.{mode}.f32 %f0, %f1, %f1, %f2;"), &[one, small]), expected, "{mode}");
    }
    let negative = small | 1 << 31;
    for (mode, expected) in [("rn", one), ("rz", one - 1), ("rm", one - 1), ("rp", one)] {
        assert_eq!(float(&format!("add.{mode}.f32 %f0, %f1, %f2;"), &[one, negative]), expected, "{mode}");
        assert_eq!(float(&format!("sub.{mode}.f32 %f0, %f1, %f2;"), &[one, small]), expected, "{mode}");
    }
    // 1/3 = 0x3eaaaaaa.aaa...
    for (mode, expected) in [("rn", 0x3eaa_aaab), ("rz", 0x3eaa_aaaa), ("rm", 0x3eaa_aaaa), ("rp", 0x3eaa_aaab)] {
        assert_eq!(float(&format!("div.{mode}.f32 %f0, %f1, %f2;"), &bits(&[1.0, 3.0])), expected, "{mode}");
        assert_eq!(float(&format!("rcp.{mode}.f32 %f0, %f1;"), &bits(&[3.0])), expected, "{mode}");
    }
    // sqrt(2) = 0x3fb504f3.33...
    for (mode, expected) in [("rn", 0x3fb5_04f3), ("rz", 0x3fb5_04f3), ("rm", 0x3fb5_04f3), ("rp", 0x3fb5_04f4)] {
        assert_eq!(float(&format!("sqrt.{mode}.f32 %f0, %f1;"), &bits(&[2.0])), expected, "{mode}");
    }
    // Overflow goes to infinity or to the largest number; a product below the smallest to zero or to it.
    let max = f32::MAX.to_bits();
    for (mode, over, under) in [("rn", INF, 0), ("rz", max, 0), ("rm", max, 0), ("rp", INF, TINY)] {
        assert_eq!(float(&format!("add.{mode}.f32 %f0, %f1, %f1;"), &[max]), over, "{mode}");
        assert_eq!(float(&format!("mul.{mode}.f32 %f0, %f1, %f1;"), &[TINY]), under, "{mode}");
    }
    // An exact zero is -0 only when rounding down.
    assert_eq!(float("add.rm.f32 %f0, %f1, %f2;", &bits(&[1.0, -1.0])), 1 << 31);
    assert_eq!(float("add.rp.f32 %f0, %f1, %f2;", &bits(&[1.0, -1.0])), 0);
    let third = 1f64 / 3.0;
    assert_eq!(float64("div.rp.f64 %fd0, %fd1, %fd2;", &[1.0, 3.0]), third.next_up());
    assert_eq!(float64("div.rm.f64 %fd0, %fd1, %fd2;", &[1.0, 3.0]), third);
    assert_eq!(float64("add.rz.f64 %fd0, %fd1, %fd2;", &[1.0, -1e-30]), 1f64.next_down());
    assert_eq!(float64("fma.rp.f64 %fd0, %fd1, %fd1, %fd2;", &[1.0, 1e-300]), 1f64.next_up());
    assert_eq!(float64("sqrt.rp.f64 %fd0, %fd1;", &[2.0]), 2f64.sqrt());
    assert_eq!(float64("mul.rp.f64 %fd0, %fd1, %fd1;", &[5e-324]), 5e-324);
}

/// Numbers whose sums, products and quotients are exact, lose something, or are too small or too large.
fn numbers() -> Vec<f64> {
    let powers = [-1074, -1022, -969, -968, -600, -53, 0, 53, 511, 1021].map(|exponent| 2f64.powi(exponent));
    let near = powers.iter().flat_map(|&power| [power, power.next_up(), -power * 1.7]);
    near.chain([0.0, -0.0, f64::MAX, f64::INFINITY, f64::NAN, 3.0, 0.1]).collect()
}

#[test]
fn directed_rounding_of_f64_is_that_of_a_software_implementation() {
    let soft = |x: f64| Double::from_bits(x.to_bits().into());
    let modes = [("rz", Round::TowardZero), ("rm", Round::TowardNegative), ("rp", Round::TowardPositive)];
    let numbers = numbers();
    for (a, b) in numbers.iter().flat_map(|&a| numbers.iter().map(move |&b| (a, b))) {
        for (mode, round) in modes {
            for (op, expected) in [
                ("add", soft(a).add_r(soft(b), round).value),
                ("sub", soft(a).sub_r(soft(b), round).value),
                ("mul", soft(a).mul_r(soft(b), round).value),
                ("div", soft(a).div_r(soft(b), round).value),
            ] {
                let (got, expected) =
                    (float64(&format!("{op}.{mode}.f64 %fd0, %fd1, %fd2;"), &[a, b]), expected.to_bits() as u64);
                let same = got.to_bits() == expected || got.is_nan() && f64::from_bits(expected).is_nan();
                assert!(same, "{op}.{mode} {a:e} {b:e}: {got:e}, not {:e}", f64::from_bits(expected));
            }
        }
    }
}

#[test]
fn flush_and_saturation() {
    // .ftz flushes subnormal inputs and results to sign-preserving zero.
    assert_eq!(float("add.f32 %f0, %f1, %f2;", &[TINY, TINY]), 2);
    assert_eq!(float("add.ftz.f32 %f0, %f1, %f2;", &[TINY, 0]), 0);
    assert_eq!(float("mul.ftz.f32 %f0, %f1, %f2;", &bits(&[-1e-20, 1e-20])), 1 << 31);
    assert_eq!(float("mul.f32 %f0, %f1, %f2;", &bits(&[-1e-20, 1e-20])), (-1e-40f32).to_bits());
    // .sat clamps to [0, 1]; NaN becomes +0.
    assert_eq!(float("add.sat.f32 %f0, %f1, %f2;", &bits(&[0.75, 0.5])), 1f32.to_bits());
    assert_eq!(float("mul.sat.f32 %f0, %f1, %f2;", &bits(&[-0.75, 0.5])), 0);
    assert_eq!(float("fma.rn.sat.f32 %f0, %f1, %f2, %f2;", &[NAN, 0]), 0);
    assert_eq!(
        float("setp.eq.ftz.f32 %p1, %f1, %f2; selp.f32 %f0, 0f3f800000, 0f00000000, %p1;", &[TINY, 0]),
        1f32.to_bits()
    );
}

#[test]
fn minimum_and_maximum() {
    // 9.7.3.11, 9.7.3.12: NaN loses unless .NaN; +0 > -0.
    assert_eq!(float("min.f32 %f0, %f1, %f2;", &[NAN, 1f32.to_bits()]), 1f32.to_bits());
    assert_eq!(float("max.f32 %f0, %f1, %f2;", &[1f32.to_bits(), NAN]), 1f32.to_bits());
    assert_eq!(float("max.f32 %f0, %f1, %f2;", &[NAN, 0xffc0_0001]), NAN);
    assert_eq!(float("min.NaN.f32 %f0, %f1, %f2;", &[NAN, 1f32.to_bits()]), NAN);
    assert_eq!(float("min.f32 %f0, %f1, %f2;", &[0, 1 << 31]), 1 << 31);
    assert_eq!(float("max.f32 %f0, %f1, %f2;", &[1 << 31, 0]), 0);
    assert_eq!(float("max.xorsign.abs.f32 %f0, %f1, %f2;", &bits(&[-3.0, 2.0])), (-3f32).to_bits());
    assert_eq!(float("min.xorsign.abs.f32 %f0, %f1, %f2;", &bits(&[-3.0, -2.0])), 2f32.to_bits());
    // 9.7.3.9: the sign is the first operand's.
    assert_eq!(float("copysign.f32 %f0, %f1, %f2;", &bits(&[-0.0, 2.0])), (-2f32).to_bits());
}

#[test]
fn approximations_at_their_limits() {
    // 9.7.3.8: |b| in (2^126, 2^128) gives 0.
    assert_eq!(float("div.approx.f32 %f0, %f1, %f2;", &bits(&[2f32.powi(127), 2f32.powi(127)])), 0);
    assert_eq!(float("div.full.f32 %f0, %f1, %f2;", &bits(&[2f32.powi(127), 2f32.powi(127)])), 1f32.to_bits());
    assert_eq!(float("rcp.approx.f32 %f0, %f1;", &[1 << 31]), INF | 1 << 31);
    assert_eq!(float("rsqrt.approx.f32 %f0, %f1;", &[1 << 31]), INF | 1 << 31);
    assert_eq!(float("rsqrt.approx.f32 %f0, %f1;", &bits(&[-1.0])), NAN);
    assert_eq!(float("lg2.approx.f32 %f0, %f1;", &[0]), INF | 1 << 31);
    assert_eq!(float("ex2.approx.f32 %f0, %f1;", &[INF | 1 << 31]), 0);
    assert_eq!(float("ex2.approx.ftz.f32 %f0, %f1;", &bits(&[-130.0])), 0);
    assert_eq!(float("sin.approx.f32 %f0, %f1;", &[INF]), NAN);
    assert_eq!(float("cos.approx.f32 %f0, %f1;", &[0]), 1f32.to_bits());
    assert_eq!(float("tanh.approx.f32 %f0, %f1;", &[INF]), 1f32.to_bits());
}

#[test]
fn ordered_and_unordered_comparisons() {
    let test = |comparison: &str, a: u32, b: u32| {
        let text = format!("setp.{comparison}.f32 %p1, %f1, %f2; selp.f32 %f0, 0f3f800000, 0f00000000, %p1;");
        float(&text, &[a, b]) != 0
    };
    for comparison in ["eq", "ne", "lt", "le", "gt", "ge"] {
        assert!(!test(comparison, NAN, 0), "{comparison}");
        assert!(test(&format!("{comparison}u"), NAN, 0), "{comparison}u");
    }
    assert!(test("eq", 0, 1 << 31));
    assert!(test("nan", 0, NAN) && !test("num", 0, NAN));
    let testp = |kind: &str, a: u32| {
        float(&format!("testp.{kind}.f32 %p1, %f1; selp.f32 %f0, 0f3f800000, 0f00000000, %p1;"), &[a]) != 0
    };
    assert!(testp("subnormal", TINY) && testp("notanumber", NAN) && testp("number", INF) && testp("infinite", INF));
    assert!(!testp("normal", TINY) && !testp("finite", NAN) && !testp("number", NAN));
}

#[test]
fn float_to_integer_saturates() {
    // 9.7.9.21: NaN is 0, or the top bit if the source is f64 or the destination 64 bits wide.
    let to = |form: &str, a: u32| words(&format!("mov.b32 %f1, %r1; cvt.{form}.f32 %r0, %f1;"), &[a]);
    assert_eq!(to("rzi.s32", 3e9f32.to_bits()), i32::MAX as u32);
    assert_eq!(to("rzi.s32", (-3e9f32).to_bits()), i32::MIN as u32);
    assert_eq!(to("rzi.u32", (-1f32).to_bits()), 0);
    assert_eq!(to("rzi.s32", NAN), 0);
    assert_eq!(to("rni.s32", 2.5f32.to_bits()), 2);
    assert_eq!(to("rni.s32", 3.5f32.to_bits()), 4);
    assert_eq!(to("rmi.s32", (-2.5f32).to_bits()), (-3i32) as u32);
    assert_eq!(to("rpi.s32", (-2.5f32).to_bits()), (-2i32) as u32);
    assert_eq!(to("rzi.u8", 300f32.to_bits()), 255);
    assert_eq!(to("rzi.s8", (-300f32).to_bits()), (-128i32) as u32);
    // A subnormal rounds down to -1 unless it is flushed first.
    assert_eq!(to("rmi.s32", TINY | 1 << 31), u32::MAX);
    assert_eq!(to("rmi.ftz.s32", TINY | 1 << 31), 0);
    let wide = |form: &str, a: f64| doubles(&format!("mov.b64 %fd1, %d1; cvt.{form}.f64 %d0, %fd1;"), &[a.to_bits()]);
    assert_eq!(wide("rzi.s64", f64::NAN), 1 << 63);
    assert_eq!(wide("rzi.u64", 1e30), u64::MAX);
    assert_eq!(wide("rzi.s64", -1e30), 1 << 63);
    let narrow =
        |a: f64| doubles("mov.b64 %fd1, %d1; cvt.rzi.s32.f64 %r1, %fd1; cvt.u64.u32 %d0, %r1;", &[a.to_bits()]);
    assert_eq!(narrow(f64::NAN), 0x8000_0000);
    assert_eq!(narrow(-1.75), 0xffff_ffff);
}

#[test]
fn integer_conversions_extend_and_saturate() {
    assert_eq!(doubles("cvt.u32.u64 %r1, %d1; cvt.s64.s32 %d0, %r1;", &[0x1_8000_0000]), 0xffff_ffff_8000_0000);
    assert_eq!(words("cvt.s32.s8 %r0, %r1;", &[0x1280]), 0xffff_ff80);
    assert_eq!(words("cvt.u32.u8 %r0, %r1;", &[0x1280]), 0x80);
    assert_eq!(words("cvt.sat.u8.s32 %r0, %r1;", &[(-5i32) as u32]), 0);
    assert_eq!(words("cvt.sat.s8.s32 %r0, %r1;", &[200]), 127);
    assert_eq!(words("cvt.sat.u32.s32 %r0, %r1;", &[0x8000_0000]), 0);
    assert_eq!(words("cvt.sat.s32.u32 %r0, %r1;", &[0x8000_0000]), 0x7fff_ffff);
    assert_eq!(words("cvt.u16.u32 %h1, %r1; cvt.s32.s16 %r0, %h1;", &[0x1_8001]), 0xffff_8001);
}

#[test]
fn integer_to_float_rounds_once() {
    let float_of = |form: &str, a: u32| words(&format!("cvt.{form} %f1, %r1; mov.b32 %r0, %f1;"), &[a]);
    assert_eq!(float_of("rn.f32.s32", 0x0100_0001), 16777216f32.to_bits());
    assert_eq!(float_of("rp.f32.s32", 0x0100_0001), 16777218f32.to_bits());
    assert_eq!(float_of("rz.f32.u32", u32::MAX), 4294967040f32.to_bits());
    assert_eq!(float_of("rn.f32.u32", u32::MAX), 4294967296f32.to_bits());
    // Through f64 this would round twice, to the even neighbour below.
    let bits = (1u64 << 62) + (1 << 38) + 1;
    let value = doubles("cvt.rn.f32.s64 %f1, %d1; mov.b32 %r1, %f1; cvt.u64.u32 %d0, %r1;", &[bits]);
    assert_eq!(value, u64::from((2f32.powi(62).to_bits()) + 1));
    let double = doubles("cvt.rm.f64.u64 %fd1, %d1; mov.b64 %d0, %fd1;", &[u64::MAX]);
    assert_eq!(f64::from_bits(double), 2f64.powi(64).next_down());
}

#[test]
fn float_to_float() {
    let convert =
        |form: &str, a: u32| words(&format!("mov.b32 %f1, %r1; cvt.{form}.f32 %f0, %f1; mov.b32 %r0, %f0;"), &[a]);
    assert_eq!(convert("rni.f32", 2.5f32.to_bits()), 2f32.to_bits());
    assert_eq!(convert("rmi.f32", (-0.5f32).to_bits()), (-1f32).to_bits());
    assert_eq!(convert("rpi.f32", (-0.5f32).to_bits()), (-0f32).to_bits());
    assert_eq!(convert("sat.f32", 7f32.to_bits()), 1f32.to_bits());
    assert_eq!(convert("sat.f32", NAN), 0);
    assert_eq!(convert("ftz.f32", TINY), 0);
    let from_double = |mode: &str, a: f64| {
        doubles(
            &format!("mov.b64 %fd1, %d1; cvt.{mode}.f32.f64 %f1, %fd1; mov.b32 %r1, %f1; cvt.u64.u32 %d0, %r1;"),
            &[a.to_bits()],
        ) as u32
    };
    assert_eq!(from_double("rn", 1.0 + 2f64.powi(-24)), 1f32.to_bits());
    assert_eq!(from_double("rp", 1.0 + 2f64.powi(-50)), 1f32.to_bits() + 1);
    assert_eq!(from_double("rz", 1e300), f32::MAX.to_bits());
    assert_eq!(from_double("rp", 1e-60), TINY);
    assert_eq!(from_double("rn", f64::NAN), NAN);
}

#[test]
fn half_precision() {
    let to_half = |mode: &str, a: f32| {
        words(&format!("mov.b32 %f1, %r1; cvt.{mode}.f16.f32 %h1, %f1; cvt.u32.u16 %r0, %h1;"), &[a.to_bits()])
    };
    for (value, expected) in [
        (1.0, 0x3c00),
        (65504.0, 0x7bff),
        (65520.0, 0x7c00),
        (65519.0, 0x7bff),
        (6e-8, 1),
        (2e-8, 0),
        (3e-8, 1),
        (-0.0, 0x8000),
        (6.1e-5, 0x03ff),
        (f32::NAN, 0x7fff),
    ] {
        assert_eq!(to_half("rn", value), expected, "{value}");
    }
    assert_eq!(to_half("rz", 65520.0), 0x7bff);
    assert_eq!(to_half("rp", 1e-10), 1);
    // Ties to even: 2049 lies between 2048 and 2050.
    assert_eq!(to_half("rn", 2049.0), 0x6800);
    assert_eq!(to_half("rn", 2051.0), 0x6802);
    let from_half = |bits: u32| words("cvt.u16.u32 %h1, %r1; cvt.f32.f16 %f1, %h1; mov.b32 %r0, %f1;", &[bits]);
    for bits in (0..0x7c00).step_by(7).chain(0x8000..0x8010) {
        let magnitude = bits & 0x7fff;
        let (exponent, fraction) = ((magnitude >> 10) as i32, f64::from(magnitude & 0x3ff));
        let value =
            if exponent == 0 { fraction * 2f64.powi(-24) } else { (1024.0 + fraction) * 2f64.powi(exponent - 25) };
        if bits % 91 == 0 || bits >= 0x8000 {
            assert_eq!(from_half(bits), (value as f32).to_bits() | (bits & 0x8000) << 16, "{bits:04x}");
        }
    }
    // Packed: the first source goes to the upper half.
    assert_eq!(
        words("mov.b32 %f1, %r1; mov.b32 %f2, %r2; cvt.rn.f16x2.f32 %r0, %f1, %f2;", &bits(&[1.0, 2.0])),
        0x3c00_4000
    );
    assert_eq!(
        words("mov.b32 %f1, %r1; mov.b32 %f2, %r2; cvt.rn.bf16x2.f32 %r0, %f1, %f2;", &bits(&[1.0, -2.0])),
        0x3f80_c000
    );
    assert_eq!(
        words("mov.b32 %f1, %r1; mov.b32 %f2, %r2; cvt.rn.relu.bf16x2.f32 %r0, %f1, %f2;", &bits(&[1.0, -2.0])),
        0x3f80_0000
    );
    // 1 + 2^-11 is a tie of f16, broken upwards by what is left of the product.
    let fused = words("fma.rn.f16x2 %r0, %r1, %r2, %r3;", &[0x3c00_3c01, 0x3c00_3c01, 0x3c00_1000]);
    let exact = (1.0 + 2f64.powi(-10)).powi(2) + 2f64.powi(-11);
    assert_eq!(fused, 0x4000_0000 | to_half("rn", exact as f32));
    assert_eq!(words("max.NaN.f16x2 %r0, %r1, %r2;", &[0x7e00_8000, 0x3c00_0000]), 0x7fff_0000);
    // tf32 keeps 10 bits of fraction; .rna breaks ties away from zero.
    assert_eq!(words("mov.b32 %f1, %r1; cvt.rna.tf32.f32 %r0, %f1;", &[0x3f80_1000]), 0x3f80_2000);
}

#[test]
fn immediates_take_the_type() {
    assert_eq!(float("mov.f32 %f0, 0f3FC00000;", &[]), 1.5f32.to_bits());
    assert_eq!(float("add.f32 %f0, %f1, 0.5;", &bits(&[1.0])), 1.5f32.to_bits());
    assert_eq!(float64("add.f64 %fd0, %fd1, 0d3FE0000000000000;", &[1.0]), 1.5);
    assert_eq!(float64("mul.f64 %fd0, %fd1, -2.5e-1;", &[2.0]), -0.5);
}

#[test]
fn half_comparisons() {
    // 9.7.4: setp of pairs has a predicate for each half; set gives 1.0 or all ones.
    let (a, b) = (0x4000_3c00, 0x3c00_3c00);
    let body =
        "setp.gt.f16x2 %p1|%p2, %r1, %r2; selp.u32 %r3, 1, 0, %p1; selp.u32 %r4, 2, 0, %p2; or.b32 %r0, %r3, %r4;";
    assert_eq!(words(body, &[a, b]), 2);
    assert_eq!(words("set.eq.f16x2.f16x2 %r0, %r1, %r2;", &[a, b]), 0x0000_3c00);
    assert_eq!(words("set.ge.u32.f16x2 %r0, %r1, %r2;", &[0x4000_7e00, b]), 0xffff_0000);
    let scalar = "mov.b32 {%h1, %h2}, %r1; setp.lt.f16 %p1, %h1, %h2; selp.u32 %r0, 1, 0, %p1;";
    assert_eq!((words(scalar, &[0x3c00_8000]), words(scalar, &[0x7e00_8000])), (1, 0));
}
