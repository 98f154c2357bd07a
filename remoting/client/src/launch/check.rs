//! The checks with which a driver refuses a launch at the call, in the driver's order. They are pure functions of
//! values that were read when the kernel was loaded.

use crate::Code;
use crate::devices::LaunchLimits;
use crate::module::LaunchRules;
use driverapi::attributes::{CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_COOPERATIVE};
use driverapi::constants::FIRST_WITH_CLUSTERS;
use driverapi::errors::*;
use driverapi::registers;
use protocol::{LaunchAttribute, LaunchShape};

/// The number of blocks of a cluster that every GPU with clusters supports (CUDA C++ Programming Guide, "Thread Block
/// Clusters").
const PORTABLE_CLUSTER: u32 = 8;

/// The requested launch.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub cluster: Option<[u32; 3]>,
    pub cooperative: bool,
}

/// A query that only the driver can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    LargestCluster { grid: [u32; 3], block: [u32; 3], shared: u32 },
    BlocksPerMultiprocessor { threads: u32, shared: u32 },
}

impl Asked {
    /// Reads the request from a launch shape. If two attributes have the same id, the last one counts.
    pub fn new(shape: &LaunchShape) -> Asked {
        let LaunchShape { grid, block, shared, ref attributes } = *shape;
        let (mut cluster, mut cooperative) = (None, false);
        for LaunchAttribute { id, value } in attributes {
            match *id {
                CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                    cluster = Some([value[0] as u32, (value[0] >> 32) as u32, value[1] as u32]);
                }
                CU_LAUNCH_ATTRIBUTE_COOPERATIVE => cooperative = value[0] as u32 != 0,
                _ => {}
            }
        }
        Asked { grid, block, shared, cluster, cooperative }
    }
}

fn product(extent: [u32; 3]) -> u64 {
    extent.iter().fold(1, |all, n| u64::saturating_mul(all, (*n).into()))
}

/// Checks a launch. `ask` sends a query to the driver, and returns `None` if there is no answer. The driver then checks
/// the launch itself when it gets the launch.
///
/// # Errors
/// The code that the driver would return.
pub fn check(
    asked: &Asked,
    kernel: &LaunchRules,
    device: &LaunchLimits,
    ask: impl Fn(Question) -> Option<u32>,
) -> Result<(), Code> {
    let within = |size: [u32; 3], most: [u32; 3]| size.iter().zip(most).all(|(n, most)| (1..=most).contains(n));
    let threads = product(asked.block);
    if !within(asked.grid, device.grid) || !within(asked.block, device.block) || threads > device.threads.into() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if kernel.block.is_some_and(|required| required != asked.block) || asked.shared > kernel.dynamic_shared {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if threads > kernel.threads.into() {
        return Err(registers::refusal(threads, kernel.registers));
    }
    if let Some(cluster) = asked.cluster.or(kernel.cluster) {
        if kernel.cluster.is_some_and(|required| required != cluster) {
            return Err(CUDA_ERROR_INVALID_CLUSTER_SIZE);
        }
        check_cluster(asked, cluster, kernel, device, &ask)?;
    }
    if asked.cooperative { check_cooperative(asked, device, &ask) } else { Ok(()) }
}

/// Checks the cluster of a launch. CUDA documents error 912 for every misuse of clusters.
fn check_cluster(
    asked: &Asked,
    cluster: [u32; 3],
    kernel: &LaunchRules,
    device: &LaunchLimits,
    ask: &impl Fn(Question) -> Option<u32>,
) -> Result<(), Code> {
    let blocks = product(cluster);
    if blocks == 1 {
        return Ok(());
    }
    if !device.has_clusters {
        // The software GPU executes PTX for later GPUs, and knows whether the kernel can run without clusters.
        return if kernel.architecture < FIRST_WITH_CLUSTERS { Err(CUDA_ERROR_NOT_SUPPORTED) } else { Ok(()) };
    }
    let kernel_takes = kernel.largest_cluster.is_none_or(|most| blocks <= most.into());
    let divides = blocks > 0 && asked.grid.iter().zip(cluster).all(|(n, part)| n.is_multiple_of(part));
    if !kernel_takes || !divides || blocks > PORTABLE_CLUSTER.into() && !kernel.any_cluster_size {
        return Err(CUDA_ERROR_INVALID_CLUSTER_SIZE);
    }
    if blocks <= PORTABLE_CLUSTER.into() {
        return Ok(());
    }
    // The query is for a grid of one cluster, so it is the same for every number of clusters.
    let question = Question::LargestCluster { grid: cluster, block: asked.block, shared: asked.shared };
    let device_takes = ask(question).is_none_or(|most| blocks <= most.into());
    if device_takes { Ok(()) } else { Err(CUDA_ERROR_INVALID_CLUSTER_SIZE) }
}

fn check_cooperative(asked: &Asked, device: &LaunchLimits, ask: &impl Fn(Question) -> Option<u32>) -> Result<(), Code> {
    if !device.is_cooperative {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let threads = asked.block.iter().product();
    let each = ask(Question::BlocksPerMultiprocessor { threads, shared: asked.shared });
    let fits = |each: u32| product(asked.grid) <= u64::from(each) * u64::from(device.multiprocessors);
    if each.is_none_or(fits) { Ok(()) } else { Err(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const DEVICE: LaunchLimits = LaunchLimits {
        grid: [i32::MAX as u32, 65535, 65535],
        block: [1024, 1024, 64],
        threads: 1024,
        multiprocessors: 132,
        has_clusters: true,
        is_cooperative: true,
    };
    const KERNEL: LaunchRules = LaunchRules {
        threads: 256,
        registers: 32,
        dynamic_shared: 48 << 10,
        block: None,
        cluster: None,
        any_cluster_size: false,
        largest_cluster: None,
        architecture: 80,
    };
    const ASKED: Asked = Asked { grid: [16, 1, 1], block: [32, 1, 1], shared: 0, cluster: None, cooperative: false };
    const WRONG_CLUSTER: Result<(), Code> = Err(CUDA_ERROR_INVALID_CLUSTER_SIZE);

    /// Returns the result of `check` for a launch that needs no query.
    fn verdict(asked: Asked, kernel: LaunchRules) -> Result<(), Code> {
        check(&asked, &kernel, &DEVICE, |question| panic!("asks {question:?}"))
    }

    fn clustered(blocks: u32, cluster: [u32; 3], kernel: LaunchRules) -> Result<(), Code> {
        verdict(Asked { grid: [blocks, 1, 1], cluster: Some(cluster), ..ASKED }, kernel)
    }

    #[test]
    fn shapes_stay_within_device_and_kernel() {
        assert_eq!(verdict(ASKED, KERNEL), Ok(()));
        for (grid, block) in [
            ([0, 1, 1], [32, 1, 1]),
            ([1, 65536, 1], [32, 1, 1]),
            ([1, 1, 1], [32, 0, 1]),
            ([1, 1, 1], [1, 1, 65]),
            ([1, 1, 1], [1024, 2, 1]),
            ([1, 1, 1], [u32::MAX; 3]),
        ] {
            assert_eq!(
                verdict(Asked { grid, block, ..ASKED }, KERNEL),
                Err(CUDA_ERROR_INVALID_VALUE),
                "{grid:?} {block:?}"
            );
        }
        let large = Asked { block: [512, 1, 1], ..ASKED };
        assert_eq!(verdict(large, KERNEL), Err(CUDA_ERROR_INVALID_VALUE), "launch bounds");
        let with = |registers| LaunchRules { registers, ..KERNEL };
        assert_eq!(verdict(large, with(128)), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(verdict(large, with(129)), Err(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
        for asked in [Asked { cooperative: true, ..large }, Asked { cluster: Some([2, 1, 1]), ..large }] {
            assert_eq!(verdict(asked, KERNEL), Err(CUDA_ERROR_INVALID_VALUE), "{asked:?}");
        }
        let shared = Asked { shared: 1 + (48 << 10), ..ASKED };
        assert_eq!(verdict(shared, KERNEL), Err(CUDA_ERROR_INVALID_VALUE));
        // Both values are wrong. The driver checks shared memory first.
        assert_eq!(verdict(Asked { shared: shared.shared, ..large }, KERNEL), Err(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn a_required_block_is_meant_exactly() {
        let kernel = LaunchRules { block: Some([64, 2, 1]), threads: 128, ..KERNEL };
        assert_eq!(verdict(Asked { block: [64, 2, 1], ..ASKED }, kernel), Ok(()));
        assert_eq!(verdict(Asked { block: [128, 1, 1], ..ASKED }, kernel), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(verdict(Asked { block: [256, 1, 1], ..ASKED }, kernel), Err(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn clusters_divide_the_grid_and_are_as_large_as_the_kernel_allows() {
        assert_eq!(clustered(16, [8, 1, 1], KERNEL), Ok(()));
        assert_eq!(clustered(12, [8, 1, 1], KERNEL), WRONG_CLUSTER);
        assert_eq!(clustered(16, [0, 1, 1], KERNEL), WRONG_CLUSTER);
        assert_eq!(clustered(16, [1, 2, 1], KERNEL), WRONG_CLUSTER);
        assert_eq!(clustered(16, [16, 1, 1], KERNEL), WRONG_CLUSTER);
        let at_most_4 = LaunchRules { largest_cluster: Some(4), ..KERNEL };
        assert_eq!(clustered(16, [8, 1, 1], at_most_4), WRONG_CLUSTER);
        assert_eq!(clustered(16, [4, 1, 1], at_most_4), Ok(()));
        let of_2 = LaunchRules { cluster: Some([2, 1, 1]), ..KERNEL };
        assert_eq!(verdict(ASKED, of_2), Ok(()));
        assert_eq!(verdict(Asked { grid: [15, 1, 1], ..ASKED }, of_2), WRONG_CLUSTER);
        assert_eq!(clustered(16, [4, 1, 1], of_2), WRONG_CLUSTER);
        assert_eq!(clustered(16, [2, 1, 1], of_2), Ok(()));
    }

    #[test]
    fn a_device_without_clusters_takes_those_of_one_block() {
        let older = LaunchLimits { has_clusters: false, ..DEVICE };
        let of = |cluster| check(&Asked { cluster: Some(cluster), ..ASKED }, &KERNEL, &older, |_| None);
        assert_eq!(of([1, 1, 1]), Ok(()));
        assert_eq!(of([2, 1, 1]), Err(CUDA_ERROR_NOT_SUPPORTED));
        let later = LaunchRules { architecture: 90, ..KERNEL };
        assert_eq!(check(&Asked { cluster: Some([2, 1, 1]), ..ASKED }, &later, &older, |_| None), Ok(()));
    }

    #[test]
    fn only_clusters_that_not_every_gpu_takes_are_asked_about() {
        let kernel = LaunchRules { any_cluster_size: true, ..KERNEL };
        assert_eq!(clustered(16, [8, 1, 1], kernel), Ok(()));
        let asked = |blocks, answer| {
            let question = Cell::new(None);
            let asked = Asked { grid: [blocks * 3, 1, 1], cluster: Some([blocks, 1, 1]), ..ASKED };
            let verdict = check(&asked, &kernel, &DEVICE, |it| {
                question.set(Some(it));
                answer
            });
            assert_eq!(
                question.get(),
                Some(Question::LargestCluster { grid: [blocks, 1, 1], block: [32, 1, 1], shared: 0 })
            );
            verdict
        };
        assert_eq!(asked(16, Some(16)), Ok(()));
        assert_eq!(asked(32, Some(16)), WRONG_CLUSTER);
        assert_eq!(asked(32, None), Ok(()), "the driver decides");
    }

    #[test]
    fn a_cooperative_launch_must_fit_the_device_at_once() {
        let verdict = |blocks, device| {
            let asked = Asked { grid: [blocks, 1, 1], cooperative: true, ..ASKED };
            check(&asked, &KERNEL, device, |question| {
                assert_eq!(question, Question::BlocksPerMultiprocessor { threads: 32, shared: 0 });
                Some(8)
            })
        };
        assert_eq!(verdict(8 * 132, &DEVICE), Ok(()));
        assert_eq!(verdict(8 * 132 + 1, &DEVICE), Err(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE));
        assert_eq!(verdict(1, &LaunchLimits { is_cooperative: false, ..DEVICE }), Err(CUDA_ERROR_NOT_SUPPORTED));
    }

    #[test]
    fn attributes_become_part_of_what_is_asked() {
        let attribute = |id, words: [u64; 2]| {
            let mut value = [0; 8];
            value[..2].copy_from_slice(&words);
            LaunchAttribute { id, value }
        };
        let asked = |attributes| Asked::new(&LaunchShape { attributes, ..LaunchShape::default() });
        let given = vec![
            attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, [4 << 32 | 2, u64::MAX << 32 | 3]),
            attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, [u64::MAX << 32, 0]),
        ];
        let both = asked(given);
        assert_eq!((both.cluster, both.cooperative), (Some([2, 4, 3]), false));
        let cooperative = attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, [1, 0]);
        assert!(asked(vec![cooperative]).cooperative);
    }
}
