//! The trait of instruction handlers, and their function pointers compiled for this machine.

use super::Block;
use super::watched::{Touch, Watched};
use crate::engine::code::{Exec, Inst, Step};
use crate::engine::watch;

/// The behaviour of an instruction form. `run` must be `#[inline(always)]`, so that it is compiled with the vector
/// features of its caller.
pub trait Handler {
    /// Whether the instruction accesses global memory or orders such accesses, so that an observer must see it.
    const WATCHED: bool = false;
    const FENCES: bool = false;

    /// Lists the memory that `run` would access.
    fn touches(_block: &Block, _inst: &Inst, _mask: u32, _touches: &mut Vec<Touch>) {}

    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step;

    /// Executes the instruction for all lanes of all warps of a block in lockstep, as far as this is possible without
    /// looking at lanes.
    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        block.run_rows(inst)
    }

    /// Executes the rest of the work of `run_block`. It must be inlined like `run`.
    #[inline(always)]
    fn run_rows(block: &mut Block, inst: &Inst) -> Step {
        block.each_warp(inst)
    }
}

/// Returns the functions of `H` that use the widest vectors of this machine.
pub fn exec<H: Handler>() -> Exec {
    if H::WATCHED && watch::is_on() { build::<Watched<H>>() } else { build::<H>() }
}

fn build<H: Handler>() -> Exec {
    #[cfg(target_arch = "x86_64")]
    match *x86::WIDTH {
        x86::Width::Bits512 => {
            return Exec { warp: x86::bits_512::<H>, block: H::run_block, rows: x86::rows_bits_512::<H> };
        }
        x86::Width::Bits256 => {
            return Exec { warp: x86::bits_256::<H>, block: H::run_block, rows: x86::rows_bits_256::<H> };
        }
        x86::Width::Baseline => {}
    }
    Exec { warp: baseline::<H>, block: H::run_block, rows: rows_baseline::<H> }
}

fn baseline<H: Handler>(block: &mut Block, inst: &Inst, mask: u32) -> Step {
    H::run(block, inst, mask)
}

fn rows_baseline<H: Handler>(block: &mut Block, inst: &Inst) -> Step {
    H::run_rows(block, inst)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::sync::LazyLock;

    use super::{Block, Handler};
    use crate::engine::code::{Inst, Step};

    pub enum Width {
        Bits512,
        Bits256,
        Baseline,
    }

    pub static WIDTH: LazyLock<Width> = LazyLock::new(|| {
        let bits_256 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt");
        let bits_512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        match (bits_256, bits_512) {
            (true, true) => Width::Bits512,
            (true, false) => Width::Bits256,
            _ => Width::Baseline,
        }
    });

    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi2,lzcnt,popcnt")]
    pub fn bits_512<H: Handler>(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        H::run(block, inst, mask)
    }

    #[target_feature(enable = "avx2,fma,bmi2,lzcnt,popcnt")]
    pub fn bits_256<H: Handler>(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        H::run(block, inst, mask)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi2,lzcnt,popcnt")]
    pub fn rows_bits_512<H: Handler>(block: &mut Block, inst: &Inst) -> Step {
        H::run_rows(block, inst)
    }

    #[target_feature(enable = "avx2,fma,bmi2,lzcnt,popcnt")]
    pub fn rows_bits_256<H: Handler>(block: &mut Block, inst: &Inst) -> Step {
        H::run_rows(block, inst)
    }
}
