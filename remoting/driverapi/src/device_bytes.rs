//! The device memory that an image needs when it is loaded: its variables, constants and code. The driver's own
//! overhead, such as whole pages, is unknown.

use crate::cubin;
use crate::fatbin::{Entry, Kind};
use crate::image::{Image, ImageError, parse};
use crate::ptx_variables;
use std::collections::BTreeMap;

/// Returns the sum for all images of a module, in bytes.
pub fn device_bytes(images: &[&[u8]]) -> u64 {
    images.iter().map(|image| of_image(image)).fold(0, u64::saturating_add)
}

/// Returns the bytes of one image. PTX counts with the length of its text, because the size of its code is unknown
/// before compilation. An image that cannot be parsed counts with its length; the driver will refuse it.
fn of_image(image: &[u8]) -> u64 {
    let bytes = match parse(image) {
        Ok(Image::Ptx(text)) => Ok(of_ptx(text)),
        Ok(Image::Cubin(bytes)) => cubin::loaded_bytes(bytes),
        Ok(Image::Fatbin(entries)) => of_fatbin(&entries),
        Ok(Image::Archive(_)) => Ok(image.len() as u64),
        Err(error) => Err(error),
    };
    bytes.unwrap_or(image.len() as u64)
}

fn of_ptx(text: &[u8]) -> u64 {
    ptx_variables::bytes(&String::from_utf8_lossy(text)).saturating_add(text.len() as u64)
}

/// Returns the bytes of the largest alternative. The driver uses the machine code of one architecture, or one of the
/// PTX texts.
fn of_fatbin(entries: &[Entry]) -> Result<u64, ImageError> {
    let mut machine_code: BTreeMap<_, u64> = BTreeMap::new();
    let mut most = 0;
    for entry in entries {
        match entry.kind {
            Kind::Ptx => most = most.max(of_ptx(&entry.data()?)),
            _ => {
                let of_architecture = machine_code.entry(entry.arch).or_default();
                *of_architecture = of_architecture.saturating_add(cubin::loaded_bytes(&entry.data()?)?);
            }
        }
    }
    Ok(machine_code.into_values().fold(most, u64::max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fatbin::entries;

    #[test]
    fn a_fat_binary_takes_what_its_largest_part_takes() {
        let packed = include_bytes!("../tests/data/kernels.fatbin");
        let parts: Vec<_> = entries(packed).unwrap().iter().map(|entry| entry.data().unwrap().into_owned()).collect();
        let most = parts.iter().map(|part| of_image(part)).max().unwrap();
        assert!(of_image(packed) >= most && most > 0);
    }

    #[test]
    fn machine_code_takes_its_variables_and_its_code() {
        let packed = include_bytes!("../tests/data/kernels.fatbin");
        for entry in entries(packed).unwrap().iter().filter(|entry| entry.kind == Kind::Elf) {
            let image = entry.data().unwrap();
            let read = cubin::read(&image).unwrap();
            let variables: u64 = read.variables.iter().map(|variable| variable.size).sum();
            let bytes = of_image(&image);
            assert!(variables < bytes && bytes < variables + image.len() as u64, "{variables} {bytes}");
        }
    }

    #[test]
    fn what_cannot_be_read_counts_as_its_length() {
        for image in [&b""[..], b"\x7fELF and no more", b"!<arch>\nand more"] {
            assert_eq!(of_image(image), image.len() as u64);
        }
        assert_eq!(of_image(b".version 8.0\n.global .b8 a[100];\0\0"), 100 + 32);
    }
}
