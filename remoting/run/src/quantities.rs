//! Parses the quantities of a share that a user gives, with the same rules as `remotegpu.api.quantities`.

use remotegpu_client::connect::LeaseWish;

use crate::exits::{Failure, USAGE};

const POSSIBLE_FRACTIONS: &str =
    "a fraction is 0.001 to 1 of one GPU in steps of 0.001, as 0.25, or a whole number of GPUs, as 2";
const POSSIBLE_MEMORY: &str = "memory is a positive number of bytes with an optional unit: 512MiB, 4GiB, 4G, 4e9";
const MOST_BYTES: u128 = 1 << 62;
const MOST_GPUS: u128 = 1024;

/// Parses a number of GPUs and the thousandths of each: "0.25" is a quarter of one GPU, "2" is two whole GPUs.
pub fn fraction(text: &str) -> Result<(u32, u32), Failure> {
    let wrong = |why: &str| Failure::new(USAGE, format!("{text} {why}; {POSSIBLE_FRACTIONS}"));
    let plain = text.trim();
    if plain.starts_with('-') {
        return Err(wrong("is not more than nothing"));
    }
    let Some(number) = Decimal::parse(plain.strip_prefix('+').unwrap_or(plain)) else {
        return Err(Failure::new(USAGE, format!("'{text}' is not a number; {POSSIBLE_FRACTIONS}")));
    };
    match number.times(1000) {
        Scaled::Whole(0) => Err(wrong("is not more than nothing")),
        Scaled::Whole(milli) if milli > MOST_GPUS * 1000 => Err(wrong("is more GPUs than any pool has")),
        Scaled::Whole(milli) if milli < 1000 => Ok((1, milli as u32)),
        Scaled::Whole(milli) if milli % 1000 == 0 => Ok(((milli / 1000) as u32, 1000)),
        Scaled::Between(milli) if milli < 1000 => Err(wrong("has more than three decimals")),
        Scaled::Whole(_) | Scaled::Between(_) => Err(wrong("is neither part of one GPU nor a number of whole ones")),
        Scaled::TooMuch => Err(wrong("is more GPUs than any pool has")),
    }
}

/// Parses a part of each GPU's time, in thousandths.
pub fn part_of_time(text: &str) -> Result<u32, Failure> {
    match fraction(text)? {
        (1, milli) => Ok(milli),
        _ => {
            let message =
                format!("{text} of a GPU's time is more than there is; it is 0.001 to 1 of each GPU, as 0.25");
            Err(Failure::new(USAGE, message))
        }
    }
}

/// Parses a size in bytes, for example "4GiB". As in Kubernetes, Ki is 1024 and k, or K, is 1000.
pub fn memory(text: &str) -> Result<u64, Failure> {
    let wrong = |why: &str| Failure::new(USAGE, format!("'{text}' is not an amount of memory{why}; {POSSIBLE_MEMORY}"));
    let plain = text.trim();
    // The `e` of an exponent is not a unit.
    let end = plain.find(|c: char| c.is_ascii_alphabetic() && c != 'e' && c != 'E').unwrap_or(plain.len());
    let (number, unit) = (plain[..end].trim_end(), &plain[end..]);
    let factor = factor(unit).ok_or_else(|| wrong(""))?;
    let number = Decimal::parse(number).ok_or_else(|| wrong(""))?;
    match number.times(factor) {
        Scaled::Whole(bytes) | Scaled::Between(bytes) if (1..=MOST_BYTES).contains(&bytes) => Ok(bytes as u64),
        _ => Err(wrong(" that a GPU can have")),
    }
}

/// Describes a request in words: "0.25 of a GPU", "4.0 GiB of each of 2 GPUs".
pub fn in_words(wish: &LeaseWish) -> String {
    let each = if wish.memory_bytes == 0 { part(wish.milli) } else { size(wish.memory_bytes) };
    let gpus = if wish.count == 1 { "a GPU".into() } else { format!("each of {} GPUs", wish.count) };
    format!("{each} of {gpus}")
}

/// Formats thousandths as a decimal: 250 is "0.25".
fn part(milli: u32) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a number of bytes with a unit: "2.0 GiB".
fn size(bytes: u64) -> String {
    let (mut value, mut units) = (bytes as f64, ["B", "KiB", "MiB", "GiB", "TiB"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    while value >= 1024.0 {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

fn factor(unit: &str) -> Option<u128> {
    let prefix = unit.strip_suffix('B').unwrap_or(unit);
    let (letter, base) = match prefix.strip_suffix('i') {
        Some(letter) => (letter, 1024_u128),
        None => (prefix, 1000),
    };
    let power = match (letter, base) {
        ("", 1000) => 0,
        ("k" | "K", _) => 1,
        ("M", _) => 2,
        ("G", _) => 3,
        ("T", _) => 4,
        _ => return None,
    };
    Some(base.pow(power))
}

/// An exact decimal number: `digits` times ten to the power of `exponent`.
struct Decimal {
    digits: u128,
    exponent: i32,
}

/// The product of a decimal and a whole number: exact (`Whole`), rounded down (`Between`), or too large.
enum Scaled {
    Whole(u128),
    Between(u128),
    TooMuch,
}

impl Decimal {
    /// Parses a number without a sign: "4", "0.25", ".5", "4e9", "1e-9".
    fn parse(text: &str) -> Option<Decimal> {
        let (number, exponent) = match text.split_once(['e', 'E']) {
            Some((number, exponent)) => (number, exponent.parse::<i16>().ok()?),
            None => (text, 0),
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{whole}{part}");
        if digits.is_empty() || digits.len() > 24 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Decimal { digits: digits.parse().ok()?, exponent: i32::from(exponent) - part.len() as i32 })
    }

    fn times(&self, factor: u128) -> Scaled {
        if self.digits == 0 {
            return Scaled::Whole(0);
        }
        let (power, product) = (10_u128.checked_pow(self.exponent.unsigned_abs()), self.digits.checked_mul(factor));
        match (self.exponent < 0, power, product) {
            (true, None, _) => Scaled::Between(0),
            (true, Some(power), Some(product)) if product % power == 0 => Scaled::Whole(product / power),
            (true, Some(power), Some(product)) => Scaled::Between(product / power),
            (false, Some(power), Some(product)) => product.checked_mul(power).map_or(Scaled::TooMuch, Scaled::Whole),
            _ => Scaled::TooMuch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_exact() {
        for (text, expected) in [("0.25", (1, 250)), (".5", (1, 500)), ("1", (1, 1000)), ("2", (2, 1000))] {
            assert_eq!(fraction(text), Ok(expected));
        }
        assert_eq!((fraction("1e-3"), fraction("1.000")), (Ok((1, 1)), Ok((1, 1000))));
        for text in ["0", "-1", "1.5", "abc", "nan", "1e-9", "", "0.0001", "1025", "1e300", "."] {
            assert!(fraction(text).unwrap_err().message.contains("0.25"), "{text}");
        }
    }

    #[test]
    fn wishes_have_words() {
        let quarter = LeaseWish { count: 1, milli: 250, ..LeaseWish::default() };
        let memory = LeaseWish { count: 2, memory_bytes: 3 << 29, ..LeaseWish::default() };
        assert_eq!(in_words(&quarter), "0.25 of a GPU");
        assert_eq!(in_words(&LeaseWish { milli: 1000, ..quarter }), "1 of a GPU");
        assert_eq!(in_words(&memory), "1.5 GiB of each of 2 GPUs");
    }

    #[test]
    fn memory_has_units() {
        for (text, expected) in [("4GiB", 4 << 30), ("4G", 4_000_000_000), ("4e9", 4_000_000_000), ("1.5Ki", 1536)] {
            assert_eq!(memory(text), Ok(expected));
        }
        assert_eq!((memory("512 MiB"), memory("7B")), (Ok(512 << 20), Ok(7)));
        for text in ["lots", "-5", "0", "4iB", "4X", "1e30", ""] {
            assert!(memory(text).is_err(), "{text}");
        }
    }
}
