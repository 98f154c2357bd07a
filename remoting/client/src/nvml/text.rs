//! NVML's text forms of values that are numbers in CUDA.

use std::ffi::c_char;

/// Returns "GPU-" and the UUID in its usual form.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex = carrier::to_hex(bytes);
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Returns a PCI address in the form "00000000:0B:00.0".
pub fn bus_id([domain, bus, device]: [u32; 3]) -> String {
    format!("{domain:08X}:{bus:02X}:{device:02X}.0")
}

/// Returns a PCI address in the form "0000:0B:00.0", which NVML used before version 3.
pub fn legacy_bus_id([domain, bus, device]: [u32; 3]) -> String {
    format!("{domain:04X}:{bus:02X}:{device:02X}.0")
}

/// Parses the PCI domain, bus and device from any of the usual forms. The domain may be missing.
pub fn parse_bus_id(text: &str) -> Option<[u32; 3]> {
    let (place, function) = text.split_once('.').unwrap_or((text, "0"));
    if function != "0" {
        return None;
    }
    let mut parts = place.rsplit(':').map(|part| u32::from_str_radix(part, 16).ok());
    let (device, bus) = (parts.next()??, parts.next()??);
    let domain = parts.next().unwrap_or(Some(0))?;
    parts.next().is_none().then_some([domain, bus, device])
}

/// Returns a text as an array of fixed size. A long text is cut so that the array ends with a NUL.
pub fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, byte) in field.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *to = byte as c_char;
    }
    field
}

/// Returns the `NVML_DEVICE_ARCH_*` value of a compute capability.
pub fn architecture(major: i32, minor: i32) -> u32 {
    match (major, minor) {
        (3, _) => 2,
        (5, _) => 3,
        (6, _) => 4,
        (7, 0..=4) => 5,
        (7, _) => 6,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10.., _) => 10,
        _ => u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_the_form_that_cuda_visible_devices_takes() {
        let bytes = [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(uuid(&bytes), "GPU-12345678-9abc-def0-0102-030405060708");
    }

    #[test]
    fn bus_ids_are_written_in_both_forms_and_read_in_all() {
        let place = [0x1, 0xb, 0x1f];
        assert_eq!(bus_id(place), "00000001:0B:1F.0");
        assert_eq!(legacy_bus_id(place), "0001:0B:1F.0");
        for text in ["00000001:0B:1F.0", "0001:0b:1f.0", "1:b:1f"] {
            assert_eq!(parse_bus_id(text), Some(place), "{text}");
        }
        assert_eq!(parse_bus_id("0b:00.0"), Some([0, 0xb, 0]));
        for text in ["", "0", "x:0:0.0", "0:0:0.1", "1:2:3:4.0", "::"] {
            assert_eq!(parse_bus_id(text), None, "{text}");
        }
    }

    #[test]
    fn a_text_that_is_too_long_for_its_field_still_ends() {
        assert_eq!(field::<4>("ab"), [b'a' as c_char, b'b' as c_char, 0, 0]);
        assert_eq!(field::<4>("abcdef"), [b'a' as c_char, b'b' as c_char, b'c' as c_char, 0]);
    }

    #[test]
    fn architectures_are_those_of_the_header() {
        let known = [(3, 5), (5, 2), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)];
        let names = known.map(|(major, minor)| architecture(major, minor));
        assert_eq!(names, [2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 10]);
        assert_eq!(architecture(0, 0), u32::MAX);
    }
}
