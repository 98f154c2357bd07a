//! The limits that a function's attributes set for a launch. They are read when the kernel is loaded and updated when
//! an attribute is set. Every launch reads them, so they need no lock.

use driverapi::attributes::*;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A copy of the limits at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaunchRules {
    pub threads: u32,
    /// The number of registers of a thread.
    pub registers: u32,
    pub dynamic_shared: u32,
    /// The block size that `.reqntid` requires.
    pub block: Option<[u32; 3]>,
    /// The number of blocks of a cluster, by axis.
    pub cluster: Option<[u32; 3]>,
    /// Whether the kernel allows cluster sizes that not every GPU with clusters supports.
    pub any_cluster_size: bool,
    /// The maximum number of blocks of a cluster, if the kernel sets one.
    pub largest_cluster: Option<u32>,
    /// The compute capability of the kernel's PTX; 90 stands for 9.0.
    pub architecture: u32,
}

#[derive(Default)]
pub struct Limits {
    /// The values of the attributes in [`KEPT`], in that order. A value is 0 if the function does not have the
    /// attribute. The program may change CUDA's own attributes.
    values: [AtomicU32; KEPT.len()],
}

const KEPT: [CUfunction_attribute; 12] = [
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
    LAUNCH_REQUIRED_BLOCK_WIDTH,
    LAUNCH_REQUIRED_BLOCK_HEIGHT,
    LAUNCH_REQUIRED_BLOCK_DEPTH,
    LAUNCH_LARGEST_CLUSTER,
    CU_FUNC_ATTRIBUTE_PTX_VERSION,
    CU_FUNC_ATTRIBUTE_NUM_REGS,
];

impl Limits {
    pub fn note(&self, attribute: u32, value: i32) {
        if let Some(place) = KEPT.iter().position(|kept| *kept == attribute) {
            self.values[place].store(u32::try_from(value).unwrap_or(0), Relaxed);
        }
    }

    pub fn now(&self) -> LaunchRules {
        let value = |place: usize| self.values[place].load(Relaxed);
        let given = |first: usize| Some([0, 1, 2].map(|axis| value(first + axis))).filter(|extent| *extent != [0; 3]);
        LaunchRules {
            threads: value(0),
            dynamic_shared: value(1),
            any_cluster_size: value(2) != 0,
            // If a kernel requires only one axis, the others are 1.
            cluster: given(3).map(|extent| extent.map(|n| n.max(1))),
            block: given(6),
            largest_cluster: Some(value(9)).filter(|blocks| *blocks != 0),
            architecture: value(10),
            registers: value(11),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_what_attributes_say_last() {
        let limits = Limits::default();
        let read = [
            (CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 512),
            (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 48 << 10),
            (CU_FUNC_ATTRIBUTE_NUM_REGS, 17),
            (CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 0),
            (LAUNCH_REQUIRED_BLOCK_WIDTH, 64),
            (LAUNCH_REQUIRED_BLOCK_HEIGHT, 2),
            (LAUNCH_REQUIRED_BLOCK_DEPTH, 1),
        ];
        read.into_iter().for_each(|(attribute, value)| limits.note(attribute, value));
        let loaded = limits.now();
        assert_eq!((loaded.threads, loaded.registers, loaded.dynamic_shared), (512, 17, 48 << 10));
        assert_eq!((loaded.block, loaded.cluster, loaded.largest_cluster), (Some([64, 2, 1]), None, None));
        assert!(!loaded.any_cluster_size);
        limits.note(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 96 << 10);
        limits.note(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 2);
        limits.note(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
        let set = limits.now();
        assert_eq!((set.dynamic_shared, set.cluster, set.any_cluster_size), (96 << 10, Some([2, 1, 1]), true));
    }
}
