//! From a handler type to a function pointer compiled for this machine.

use super::Block;
use crate::engine::code::{Exec, Inst, Step};

/// The behaviour of one instruction form. `run` must be `#[inline(always)]`, so that it is compiled with the vector
/// features of the function it ends up in.
pub trait Handler {
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step;
}

/// The function for `H`: the AVX2 and FMA build where the machine has them.
pub fn exec<H: Handler>() -> Exec {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
    {
        return x86::wide::<H>;
    }
    plain::<H>
}

fn plain<H: Handler>(block: &mut Block, inst: &Inst, mask: u32) -> Step {
    H::run(block, inst, mask)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Block, Handler, Inst, Step};

    #[target_feature(enable = "avx2,fma,bmi2,lzcnt,popcnt")]
    pub fn wide<H: Handler>(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        H::run(block, inst, mask)
    }
}
