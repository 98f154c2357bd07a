//! Launch rules that an image states for its kernels: `.reqntid` and `.maxclusterrank`. Some drivers do not report
//! these rules.
//!
//! Cubins and PTX are read as they are. Fat binaries are skipped, because they would have to be decompressed a second
//! time. If a rule is not found here, the driver still refuses the launch, but only when it executes the launch.

use driverapi::attributes::{
    LAUNCH_LARGEST_CLUSTER, LAUNCH_REQUIRED_BLOCK_DEPTH, LAUNCH_REQUIRED_BLOCK_HEIGHT, LAUNCH_REQUIRED_BLOCK_WIDTH,
};
use driverapi::cubin;
use driverapi::image::{Image, parse};
use protocol::KernelInfo;
use std::collections::HashMap;

/// Attributes of a function (`CUfunction_attribute`, and attributes of this project) with their values.
pub type Attributes = Vec<(u32, i32)>;

/// The launch rules of each kernel of an image, by the kernel's name.
#[derive(Default)]
pub struct ImageRules(HashMap<String, Attributes>);

impl ImageRules {
    pub fn of(image: &[u8]) -> ImageRules {
        match parse(image) {
            Ok(Image::Cubin(bytes)) => of_cubin(bytes),
            Ok(Image::Ptx(text)) => std::str::from_utf8(text).map_or_else(|_| ImageRules::default(), of_ptx),
            _ => ImageRules::default(),
        }
    }

    pub fn of_kernel(&self, name: &str) -> Attributes {
        self.0.get(name).cloned().unwrap_or_default()
    }

    fn note(&mut self, name: &str, block: Option<[u32; 3]>, cluster: Option<u32>) {
        const BLOCK: [u32; 3] =
            [LAUNCH_REQUIRED_BLOCK_WIDTH, LAUNCH_REQUIRED_BLOCK_HEIGHT, LAUNCH_REQUIRED_BLOCK_DEPTH];
        let block = block.into_iter().flat_map(|block| BLOCK.into_iter().zip(block));
        let rules = block.chain(cluster.map(|blocks| (LAUNCH_LARGEST_CLUSTER, blocks)));
        let rules: Attributes = rules.filter_map(|(rule, value)| Some((rule, value.try_into().ok()?))).collect();
        if !rules.is_empty() {
            self.0.insert(name.to_owned(), rules);
        }
    }
}

/// Adds to `kernel` the rules that the driver did not report.
pub fn complete(mut kernel: KernelInfo, rules: &[(u32, i32)]) -> KernelInfo {
    let missing = rules.iter().filter(|(rule, _)| kernel.attributes.iter().all(|(known, _)| known != rule));
    let missing: Attributes = missing.copied().collect();
    kernel.attributes.extend(missing);
    kernel
}

fn of_cubin(bytes: &[u8]) -> ImageRules {
    let mut rules = ImageRules::default();
    for kernel in cubin::read(bytes).map(|cubin| cubin.kernels).unwrap_or_default() {
        rules.note(&kernel.name, kernel.required_block, kernel.max_cluster);
    }
    rules
}

/// Parses the directives between a kernel's name and its body: `.entry NAME (PARAMETERS) .reqntid 128, 1, 1 {`.
fn of_ptx(text: &str) -> ImageRules {
    let mut rules = ImageRules::default();
    let text = without_comments(text);
    for entry in text.split(".entry").skip(1) {
        let head = entry.split(['{', ';']).next().unwrap_or_default();
        let name = head.split(|c: char| c.is_whitespace() || c == '(').find(|word| !word.is_empty());
        let block = numbers_after(head, ".reqntid").map(|given| [0, 1, 2].map(|axis| *given.get(axis).unwrap_or(&1)));
        let cluster = numbers_after(head, ".maxclusterrank").and_then(|given| given.first().copied());
        rules.note(name.unwrap_or_default(), block, cluster);
    }
    rules
}

/// Returns the arguments of a directive: at most three numbers. Returns `None` if the directive is missing or its
/// argument has another form.
fn numbers_after(head: &str, directive: &str) -> Option<Vec<u32>> {
    let (_, rest) = head.split_once(directive)?;
    let list = rest.split('.').next()?;
    let numbers: Vec<u32> = list.split(',').map(|number| number.trim().parse()).collect::<Result<_, _>>().ok()?;
    Some(numbers).filter(|numbers| numbers.len() <= 3)
}

fn without_comments(mut text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    while let Some((before, rest)) = text.split_once('/') {
        kept.push_str(before);
        let after = match rest.as_bytes().first() {
            Some(b'/') => rest.split_once('\n'),
            Some(b'*') => rest[1..].split_once("*/"),
            _ => Some(("", rest)),
        };
        kept.push(' ');
        text = after.map_or("", |(_, after)| after);
    }
    kept + text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(image: &[u8], name: &str) -> Attributes {
        ImageRules::of(image).of_kernel(name)
    }

    #[test]
    fn ptx_tells_what_it_requires() {
        let ptx = b".version 8.0
            .visible .entry all(.param .u64 a, .param .u32 b) .reqntid 64, 2, 1 .maxclusterrank 4 { ret; }
            // .entry plain() .reqntid 3 {
            .entry plain() /* .reqntid 5 */ { ret; }
            .weak .entry one(
                .param .u64 a // the first
            )
            .minnctapersm 2
            .reqntid 32
            { ret; }
            .entry odd() .reqntid 0x20 { ret; }
            .entry declared() .maxntid 7;";
        let block = |x, y, z| {
            vec![(LAUNCH_REQUIRED_BLOCK_WIDTH, x), (LAUNCH_REQUIRED_BLOCK_HEIGHT, y), (LAUNCH_REQUIRED_BLOCK_DEPTH, z)]
        };
        assert_eq!(rules(ptx, "all"), [block(64, 2, 1), vec![(LAUNCH_LARGEST_CLUSTER, 4)]].concat());
        assert_eq!(rules(ptx, "one"), block(32, 1, 1));
        for without in ["plain", "odd", "declared", "no such kernel"] {
            assert_eq!(rules(ptx, without), [], "{without}");
        }
    }

    #[test]
    fn machine_code_tells_what_it_requires() {
        let packed = include_bytes!("../../../driverapi/tests/data/kernels.fatbin");
        assert_eq!(rules(packed, "required"), [], "fat binaries are not unpacked");
        let entries = driverapi::fatbin::entries(packed).unwrap();
        let newer = entries.iter().filter(|entry| entry.kind == driverapi::fatbin::Kind::Elf && entry.arch >= 90);
        let cubins: Vec<_> = newer.map(|entry| entry.data().unwrap()).collect();
        assert!(!cubins.is_empty());
        for cubin in cubins {
            let required = rules(&cubin, "required");
            assert_eq!(required.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [128, 1, 1]);
            assert_eq!(rules(&cubin, "up_to_four"), [(LAUNCH_LARGEST_CLUSTER, 4)]);
            assert_eq!(rules(&cubin, "bounded"), []);
        }
    }

    #[test]
    fn what_the_driver_told_stays() {
        let told = vec![(LAUNCH_REQUIRED_BLOCK_WIDTH, 8)];
        let kernel = KernelInfo { params: Vec::new(), attributes: told };
        let known = complete(kernel, &rules(b".entry k() .reqntid 16, 2 { ret; }", "k")).attributes;
        let added = [(LAUNCH_REQUIRED_BLOCK_HEIGHT, 2), (LAUNCH_REQUIRED_BLOCK_DEPTH, 1)];
        assert_eq!(known, [&[(LAUNCH_REQUIRED_BLOCK_WIDTH, 8)], &added[..]].concat());
    }

    #[test]
    fn what_is_no_image_tells_nothing() {
        for image in [&b""[..], b"\x7fELF and no more", b".entry", b"/", b"/*", b".entry \xff"] {
            assert_eq!(rules(image, "k"), []);
        }
    }
}
