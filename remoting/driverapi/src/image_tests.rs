//! Tests of image parsing. nvcc and fatbinary 13.5 created the files in `tests/data` from `scale.cu`.

use super::*;
use crate::fatbin::{Executes, Kind, Suffix, for_device};

const STORED: &[u8] = include_bytes!("../tests/data/stored.fatbin");
const LZ4: &[u8] = include_bytes!("../tests/data/lz4.fatbin");
const ZSTD: &[u8] = include_bytes!("../tests/data/zstd.fatbin");
const GROUP_LZ4: &[u8] = include_bytes!("../tests/data/group_lz4.fatbin");
const GROUP_ZSTD: &[u8] = include_bytes!("../tests/data/group_zstd.fatbin");
const ALL: [&[u8]; 5] = [STORED, LZ4, ZSTD, GROUP_LZ4, GROUP_ZSTD];

fn entries(bytes: &[u8]) -> Vec<Entry<'_>> {
    match parse(bytes) {
        Ok(Image::Fatbin(entries)) => entries,
        other => panic!("not a fat binary: {other:?}"),
    }
}

fn summary(bytes: &[u8]) -> Vec<(Kind, u32, Suffix)> {
    entries(bytes).iter().map(|entry| (entry.kind, entry.arch, entry.suffix)).collect()
}

fn text(entry: &Entry) -> String {
    String::from_utf8(entry.data().unwrap().into_owned()).unwrap()
}

/// Decompresses all images that can be decompressed. The result does not matter.
fn read_everything(bytes: &[u8]) {
    if let Ok(Image::Fatbin(entries)) = parse(bytes) {
        let _ = entries.iter().filter_map(|entry| entry.data().ok()).map(|data| data.len()).sum::<usize>();
    }
}

#[test]
fn entries_of_every_form() {
    use Suffix::{Architecture, Family, None};
    assert_eq!(summary(STORED), [(Kind::Ptx, 80, None)]);
    assert_eq!(summary(LZ4), [(Kind::Ptx, 80, None), (Kind::Ptx, 90, Architecture), (Kind::Ptx, 120, Family)]);
    assert_eq!(summary(ZSTD), [(Kind::Ptx, 80, None), (Kind::Elf, 90, None)]);
    assert_eq!(summary(GROUP_LZ4), [(Kind::Ptx, 80, None), (Kind::Ptx, 90, Architecture)]);
    assert_eq!(summary(GROUP_ZSTD), [(Kind::Elf, 90, None), (Kind::Ptx, 80, None), (Kind::Ptx, 90, Architecture)]);
}

#[test]
fn ptx_is_the_same_however_it_was_packed() {
    let plain = text(&entries(STORED)[0]);
    assert!(plain.contains(".target sm_80\n") && plain.trim_end().ends_with('}'));
    assert_eq!(entries(STORED)[0].version, (9, 5));
    for (bytes, index) in [(LZ4, 0), (ZSTD, 0), (GROUP_LZ4, 0), (GROUP_ZSTD, 1)] {
        assert_eq!(text(&entries(bytes)[index]), plain);
    }
    let specific = text(&entries(LZ4)[1]);
    assert!(specific.contains(".target sm_90a\n"));
    assert_eq!(text(&entries(GROUP_LZ4)[1]), specific);
    assert_eq!(text(&entries(GROUP_ZSTD)[2]), specific);
}

#[test]
fn machine_code_is_a_cubin_of_its_own() {
    let all = entries(ZSTD);
    let code = all[1].data().unwrap();
    assert!(matches!(parse(&code), Ok(Image::Cubin(_))));
    // SAFETY: the slice is a complete cubin.
    assert_eq!(unsafe { image_length(code.as_ptr().cast()) }, Ok(code.len()));
    let grouped = entries(GROUP_ZSTD);
    assert_eq!(grouped[0].data().unwrap(), code);
}

#[test]
fn only_what_a_driver_would_use_is_kept() {
    use Executes::{MachineCode, PtxOnly};
    let kept = |bytes, capability, executes| {
        let trimmed = for_device(bytes, capability, executes).unwrap();
        trimmed.map(|trimmed| entries(&trimmed).iter().map(|entry| (entry.kind, entry.arch)).collect::<Vec<_>>())
    };
    assert_eq!(kept(ZSTD, 90, MachineCode), Some(vec![(Kind::Elf, 90)]));
    assert_eq!(kept(ZSTD, 90, PtxOnly), Some(vec![(Kind::Ptx, 80)]));
    // Without fitting machine code the driver compiles the PTX. If that does not fit either, the driver reports the
    // error.
    for capability in [75, 86, 100] {
        assert_eq!(kept(ZSTD, capability, MachineCode), Some(vec![(Kind::Ptx, 80)]));
    }
    for executes in [MachineCode, PtxOnly] {
        assert_eq!(kept(LZ4, 90, executes), None, "it is all PTX");
    }
    assert_eq!(kept(GROUP_ZSTD, 90, MachineCode), Some(vec![(Kind::Elf, 90)]));
    let group = vec![(Kind::Ptx, 80), (Kind::Ptx, 90)];
    assert_eq!(kept(GROUP_ZSTD, 100, MachineCode), Some(group), "a group is compressed as one");
}

#[test]
fn what_is_kept_is_the_same_image() {
    let trimmed = for_device(ZSTD, 90, Executes::MachineCode).unwrap().unwrap();
    assert!(trimmed.len() < ZSTD.len());
    assert_eq!(entries(&trimmed)[0].data(), entries(ZSTD)[1].data());
    // SAFETY: the vector is a complete container.
    assert_eq!(unsafe { image_length(trimmed.as_ptr().cast()) }, Ok(trimmed.len()));
    assert_eq!(for_device(b"this is no container", 90, Executes::PtxOnly), Err(ImageError::NotAnImage));
}

#[test]
fn pointers_are_followed_to_whole_images() {
    let linked = [LZ4.as_ptr().cast::<c_void>(), std::ptr::null()];
    let mut wrapper =
        Wrapper { magic: WRAPPER_MAGIC, version: 2, container: ZSTD.as_ptr().cast(), linked: linked.as_ptr() };
    // SAFETY: all pointers point to images.
    unsafe {
        assert_eq!(images((&raw const wrapper).cast()), Ok(vec![ZSTD, LZ4]));
        wrapper.version = 1;
        assert_eq!(images((&raw const wrapper).cast()), Ok(vec![ZSTD]));
        for bytes in ALL {
            assert_eq!(images(bytes.as_ptr().cast()), Ok(vec![bytes]));
        }
        assert_eq!(images(c"// x\n.version 9.0".as_ptr().cast()), Ok(vec![&b"// x\n.version 9.0\0"[..]]));
        assert_eq!(images(c"\n".as_ptr().cast()), Ok(vec![&b"\n\0"[..]]));
        assert_eq!(images(c"".as_ptr().cast()), Err(ImageError::NotAnImage));
        assert_eq!(images(c"hello".as_ptr().cast()), Err(ImageError::NotAnImage));
        assert_eq!(images(std::ptr::null()), Err(ImageError::NotAnImage));
    }
}

#[test]
fn other_forms() {
    assert!(matches!(parse(b".version 9.0\n\0\0"), Ok(Image::Ptx(b".version 9.0\n"))));
    assert!(matches!(parse(b"!<arch>\n"), Ok(Image::Archive(_))));
    assert_eq!(parse(b"\x7fELF").unwrap_err(), ImageError::NotAnImage);
    assert_eq!(parse(b"BC\xc0\xde").unwrap_err(), ImageError::NotAnImage);
    assert_eq!(parse(b"").unwrap_err(), ImageError::Truncated);
}

#[test]
fn every_truncation_is_refused() {
    for bytes in ALL {
        for length in 4..bytes.len() {
            assert!(parse(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
        }
    }
}

#[test]
fn damaged_files_do_no_harm() {
    for bytes in ALL {
        for index in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff, bytes[index] ^ 1, bytes[index] ^ 0x40] {
                let mut damaged = bytes.to_vec();
                damaged[index] = value;
                read_everything(&damaged);
            }
        }
    }
}

#[test]
fn sizes_are_not_believed() {
    let entry = 16;
    for (field, error) in [(8, ImageError::TooLarge), (56, ImageError::TooLarge)] {
        let mut damaged = LZ4.to_vec();
        damaged[entry + field..entry + field + 8].copy_from_slice(&(u64::MAX / 2).to_le_bytes());
        assert_eq!(parse(&damaged).unwrap_err(), error);
    }
    for (bytes, size) in [(LZ4, 1 << 29), (LZ4, 100), (ZSTD, 1 << 29), (ZSTD, 100)] {
        let mut damaged = bytes.to_vec();
        damaged[entry + 56..entry + 64].copy_from_slice(&u64::to_le_bytes(size));
        assert_eq!(entries(&damaged)[0].data().unwrap_err(), ImageError::Corrupt);
    }
}
