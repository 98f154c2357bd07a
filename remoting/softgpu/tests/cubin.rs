//! The description of kernels and variables in machine code, compared with the PTX of the same source. `kernels.fatbin`
//! was made from `kernels.cu` by nvcc and fatbinary 13.5: machine code for four architectures and PTX for two, all
//! compressed.

use driverapi::cubin::{self, Cubin};
use driverapi::fatbin::{Entry, Kind, Suffix};
use driverapi::image::{self, Image};
use softgpu::engine::{Kernel, Program};
use std::collections::BTreeMap;

const KERNELS: &[u8] = include_bytes!("../../driverapi/tests/data/kernels.fatbin");
const OF_ARCHITECTURE_90: [&str; 3] = ["clustered", "up_to_four", "required"];

fn entries(kind: Kind) -> Vec<Entry<'static>> {
    let Ok(Image::Fatbin(entries)) = image::parse(KERNELS) else { panic!("not a fat binary") };
    entries.into_iter().filter(|entry| entry.kind == kind).collect()
}

fn bytes(entry: &Entry) -> Vec<u8> {
    entry.data().unwrap().into_owned()
}

/// Returns each cubin and the program of the newest PTX that is not newer than the cubin.
fn pairs() -> Vec<(Cubin, Program)> {
    let ptx = entries(Kind::Ptx);
    let of = |entry: &Entry| {
        let text = ptx.iter().filter(|ptx| ptx.arch <= entry.arch).max_by_key(|ptx| ptx.arch).unwrap();
        let text = String::from_utf8(bytes(text)).unwrap();
        (cubin::read(&bytes(entry)).unwrap(), Program::compile(&[&text]).unwrap())
    };
    entries(Kind::Elf).iter().map(of).collect()
}

/// The facts that a launch needs: offsets and sizes of parameters, their total, shared memory, a required block.
type Signature = (Vec<(u32, u32)>, u32, u32, Option<[u32; 3]>);

fn signatures(kernels: &[Kernel]) -> BTreeMap<&str, Signature> {
    let params = |k: &Kernel| k.params.iter().map(|p| (p.offset, p.size)).collect();
    kernels.iter().map(|k| (k.name.as_str(), (params(k), k.param_bytes, k.static_shared, k.reqntid))).collect()
}

#[test]
fn the_file_holds_what_this_test_is_about() {
    let found: Vec<_> = entries(Kind::Elf).iter().map(|entry| (entry.arch, entry.suffix)).collect();
    assert_eq!(found.len(), 4);
    for architecture in [(80, Suffix::None), (90, Suffix::None), (90, Suffix::Architecture), (100, Suffix::None)] {
        assert!(found.contains(&architecture), "{architecture:?} is not among {found:?}");
    }
}

#[test]
fn machine_code_and_ptx_tell_the_same_of_kernels() {
    for (cubin, program) in pairs() {
        let described = Program::describe(std::slice::from_ref(&cubin));
        assert!(program.kernels().len() >= 8);
        assert_eq!(signatures(described.kernels()), signatures(program.kernels()), "sm_{}", cubin.architecture);
        for (found, expected) in described
            .kernels()
            .iter()
            .map(|k| (k, program.kernels().iter().find(|other| other.name == k.name).unwrap()))
        {
            assert!(found.max_threads <= expected.max_threads, "{}", found.name);
            assert!((8..=255).contains(&found.registers), "{}: {} registers", found.name, found.registers);
        }
    }
}

#[test]
fn machine_code_and_ptx_tell_the_same_of_variables() {
    for (cubin, program) in pairs() {
        let described = Program::describe(std::slice::from_ref(&cubin));
        for name in ["weights", "counter", "sums"] {
            let of = |program: &Program| program.globals().iter().find(|g| g.name == name).map(|g| (g.size, g.space));
            assert_eq!(of(&described), of(&program), "{name} of sm_{}", cubin.architecture);
        }
        let contents = |name: &str| &cubin.variables.iter().find(|v| v.name == name).unwrap().contents;
        assert_eq!(contents("weights")[..12], [1f32, 2., 3.].map(f32::to_le_bytes).concat());
        assert_eq!(contents("counter")[..], 7i32.to_le_bytes());
        assert!(contents("sums").iter().all(|&byte| byte == 0));
    }
}

#[test]
fn bounds_clusters_and_local_memory_are_as_the_source_says() {
    for (cubin, _) in pairs() {
        let kernel = |name: &str| cubin.kernels.iter().find(|k| k.name == name);
        let bounded = kernel("bounded").unwrap();
        assert_eq!((bounded.max_block, bounded.static_shared), (Some([192, 1, 1]), 400));
        assert_eq!(kernel("local_array").unwrap().local_bytes, 1200);
        assert_eq!(kernel("nothing").unwrap().required_cluster, None);
        if cubin.architecture < 90 {
            assert!(OF_ARCHITECTURE_90.iter().all(|name| kernel(name).is_none()));
            continue;
        }
        assert_eq!(kernel("clustered").unwrap().required_cluster, Some([2, 1, 1]));
        assert_eq!(kernel("up_to_four").unwrap().max_cluster, Some(4));
        assert_eq!(kernel("required").unwrap().required_block, Some([128, 1, 1]));
    }
}

/// Corrupts every byte that holds a location, one after the other: an error or another description, never a panic.
#[test]
fn damaged_machine_code_is_refused_or_read_without_harm() {
    let whole = bytes(&entries(Kind::Elf)[1]);
    let mut refused = 0;
    for at in (0..64).chain(whole.len() / 2..whole.len()) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        refused += usize::from(cubin::read(&damaged).is_err());
    }
    assert!(refused > 100, "{refused}");
    for length in 0..whole.len() {
        let cut = cubin::read(&whole[..length]);
        assert!(length > whole.len() / 2 || cut.is_err());
    }
}
