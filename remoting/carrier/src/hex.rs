//! Conversion of ids and tickets from and to hexadecimal text.

/// Parses exactly `2 * N` hexadecimal digits, or returns `None`.
pub fn from_hex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let digits = digits.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = (high * 16 + low) as u8;
    }
    Some(bytes)
}

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_whole_or_not_at_all() {
        assert_eq!(from_hex("00ff7A"), Some([0, 255, 0x7a]));
        assert_eq!(to_hex(&[0, 255, 0x7a]), "00ff7a");
        for wrong in ["", "00ff7", "00ff7a0", "00ff7g", "+0ff7a", "00ff7é"] {
            assert_eq!(from_hex::<3>(wrong), None, "{wrong}");
        }
    }
}
