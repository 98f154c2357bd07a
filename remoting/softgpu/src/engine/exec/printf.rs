//! Device `printf`. The arguments are in a buffer, each aligned to its size, and floats are stored as doubles.

use super::Block;

/// The maximum bytes of output of one call. Longer output is truncated.
const MAX_OUTPUT: usize = 64 << 10;
const MAX_WIDTH: usize = 4096;

/// A conversion specification, such as `%-08.3lf`.
#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    zero: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
    long: bool,
}

/// Formats the text of a call. Returns the text and the number of arguments, or `None` if an address is not valid.
pub fn format(block: &mut Block, format: u64, arguments: u64, lane: usize) -> Option<(Vec<u8>, u32)> {
    let format = block.string(format, lane)?;
    let mut out = Vec::new();
    let (mut at, mut next, mut count) = (0, arguments, 0);
    while at < format.len() && out.len() < MAX_OUTPUT {
        let byte = format[at];
        at += 1;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        if format.get(at) == Some(&b'%') {
            out.push(b'%');
            at += 1;
            continue;
        }
        let mut take = |block: &mut Block, size: u64| {
            next = next.checked_next_multiple_of(size)?;
            let mut bytes = [0; 8];
            block.bytes(next, &mut bytes[..size as usize], lane)?;
            next += size;
            count += 1;
            Some(u64::from_le_bytes(bytes))
        };
        let (spec, conversion, end) = parse(&format, at, |block| take(block, 4), block)?;
        at = end;
        let size = if spec.long { 8 } else { 4 };
        match conversion {
            b'd' | b'i' => {
                let bits = take(block, size)?;
                let value = if spec.long { bits as i64 } else { (bits as i32).into() };
                out.extend(integer(&spec, value.unsigned_abs().to_string(), value < 0, ""));
            }
            b'u' => {
                let text = take(block, size)?.to_string();
                out.extend(integer(&Spec { plus: false, space: false, ..spec }, text, false, ""));
            }
            b'x' | b'X' | b'o' => {
                let bits = take(block, size)?;
                let (text, prefix) = match conversion {
                    b'x' => (format!("{bits:x}"), "0x"),
                    b'X' => (format!("{bits:X}"), "0X"),
                    _ => (format!("{bits:o}"), "0"),
                };
                let prefix = if spec.alternate && bits != 0 { prefix } else { "" };
                out.extend(integer(&Spec { plus: false, space: false, ..spec }, text, false, prefix));
            }
            b'p' => {
                let text = format!("0x{:x}", take(block, 8)?);
                out.extend(pad(&spec, text.into_bytes()));
            }
            b'c' => {
                let byte = take(block, 4)? as u8;
                out.extend(pad(&spec, vec![byte]));
            }
            b's' => {
                let address = take(block, 8)?;
                let mut text = if address == 0 { b"(null)".to_vec() } else { block.string(address, lane)? };
                text.truncate(spec.precision.unwrap_or(usize::MAX));
                out.extend(pad(&spec, text));
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                let value = f64::from_bits(take(block, 8)?);
                out.extend(float(&spec, value, conversion));
            }
            other => out.extend([b'%', other]),
        }
    }
    Some((out, count))
}

/// Parses flags, width, precision and length. `star` reads the argument for a `*`.
fn parse(
    format: &[u8],
    mut at: usize,
    mut star: impl FnMut(&mut Block) -> Option<u64>,
    block: &mut Block,
) -> Option<(Spec, u8, usize)> {
    let mut spec = Spec::default();
    loop {
        match format.get(at) {
            Some(b'-') => spec.left = true,
            Some(b'+') => spec.plus = true,
            Some(b' ') => spec.space = true,
            Some(b'0') => spec.zero = true,
            Some(b'#') => spec.alternate = true,
            _ => break,
        }
        at += 1;
    }
    let mut number = |at: &mut usize, block: &mut Block| {
        if format.get(*at) == Some(&b'*') {
            *at += 1;
            return Some((star(block)? as i32).clamp(-(MAX_WIDTH as i32), MAX_WIDTH as i32));
        }
        let mut value = 0;
        while let Some(digit @ b'0'..=b'9') = format.get(*at) {
            value = (value * 10 + i32::from(digit - b'0')).min(MAX_WIDTH as i32);
            *at += 1;
        }
        Some(value)
    };
    let width = number(&mut at, block)?;
    spec.left |= width < 0;
    spec.width = width.unsigned_abs() as usize;
    if format.get(at) == Some(&b'.') {
        at += 1;
        spec.precision = usize::try_from(number(&mut at, block)?).ok();
    }
    while let Some(length @ (b'l' | b'h' | b'z' | b'j' | b't' | b'q' | b'L')) = format.get(at) {
        spec.long |= matches!(length, b'l' | b'z' | b'j' | b't' | b'q');
        at += 1;
    }
    let conversion = format.get(at).copied().unwrap_or(b'%');
    Some((spec, conversion, at + 1))
}

fn pad(spec: &Spec, mut text: Vec<u8>) -> Vec<u8> {
    let missing = spec.width.saturating_sub(text.len());
    if spec.left {
        text.extend(std::iter::repeat_n(b' ', missing));
        text
    } else {
        let mut padded = vec![b' '; missing];
        padded.extend(text);
        padded
    }
}

/// Adds the sign, the prefix and the padding to digits.
fn number(spec: &Spec, digits: String, negative: bool, prefix: &str, zeros: bool) -> Vec<u8> {
    let sign = match (negative, spec.plus, spec.space) {
        (true, _, _) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    };
    let used = sign.len() + prefix.len() + digits.len();
    let fill = if zeros && !spec.left { spec.width.saturating_sub(used) } else { 0 };
    pad(spec, format!("{sign}{prefix}{}{digits}", "0".repeat(fill)).into_bytes())
}

fn integer(spec: &Spec, mut digits: String, negative: bool, prefix: &str) -> Vec<u8> {
    if let Some(precision) = spec.precision {
        digits = format!("{}{digits}", "0".repeat(precision.saturating_sub(digits.len())));
    }
    number(spec, digits, negative, prefix, spec.zero && spec.precision.is_none())
}

fn exponential(magnitude: f64, precision: usize) -> String {
    let text = format!("{magnitude:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

fn general(magnitude: f64, precision: usize, keep_zeros: bool) -> String {
    let precision = precision.max(1);
    let scientific = exponential(magnitude, precision - 1);
    let exponent: i32 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |text: &str| {
        if keep_zeros || !text.contains('.') {
            return text.to_owned();
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if exponent < -4 || exponent >= precision as i32 {
        let (mantissa, rest) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        return format!("{}e{rest}", trim(mantissa));
    }
    let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
    trim(&format!("{magnitude:.decimals$}"))
}

fn float(spec: &Spec, value: f64, conversion: u8) -> Vec<u8> {
    let magnitude = value.abs();
    let precision = spec.precision.unwrap_or(6);
    let digits = if value.is_nan() {
        "nan".to_owned()
    } else if value.is_infinite() {
        "inf".to_owned()
    } else {
        match conversion.to_ascii_lowercase() {
            b'f' => format!("{magnitude:.precision$}"),
            b'e' => exponential(magnitude, precision),
            b'g' => general(magnitude, precision, spec.alternate),
            _ => hexadecimal(magnitude),
        }
    };
    let digits = if conversion.is_ascii_uppercase() { digits.to_uppercase() } else { digits };
    number(spec, digits, value.is_sign_negative(), "", spec.zero && value.is_finite())
}

fn hexadecimal(magnitude: f64) -> String {
    let bits = magnitude.to_bits();
    let (exponent, fraction) = ((bits >> 52) as i64, bits & ((1 << 52) - 1));
    let (lead, exponent) = match (exponent, fraction) {
        (0, 0) => (0, 0),
        (0, _) => (0, -1022),
        _ => (1, exponent - 1023),
    };
    let digits = format!("{fraction:013x}");
    let digits = digits.trim_end_matches('0');
    let point = if digits.is_empty() { "" } else { "." };
    format!("0x{lead}{point}{digits}p{exponent:+}")
}
