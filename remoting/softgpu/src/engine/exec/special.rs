//! Special registers (ISA 10), and addresses that depend on the frame or the launch.

use super::affine::Affine;
use super::lanes::LANES;
use super::{Block, Handler};
use crate::engine::code::{Inst, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Special {
    TidX,
    TidY,
    TidZ,
    NTidX,
    NTidY,
    NTidZ,
    CtaX,
    CtaY,
    CtaZ,
    NCtaX,
    NCtaY,
    NCtaZ,
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    MaskEq,
    MaskLe,
    MaskLt,
    MaskGe,
    MaskGt,
    Clock,
    ClockHi,
    GlobalTimer,
    GlobalTimerHi,
    DynamicShared,
    TotalShared,
    EnvReg1,
    EnvReg2,
    Zero,
    One,
}

const ALL: [Special; 33] = [
    Special::TidX,
    Special::TidY,
    Special::TidZ,
    Special::NTidX,
    Special::NTidY,
    Special::NTidZ,
    Special::CtaX,
    Special::CtaY,
    Special::CtaZ,
    Special::NCtaX,
    Special::NCtaY,
    Special::NCtaZ,
    Special::LaneId,
    Special::WarpId,
    Special::NWarpId,
    Special::SmId,
    Special::NSmId,
    Special::GridId,
    Special::MaskEq,
    Special::MaskLe,
    Special::MaskLt,
    Special::MaskGe,
    Special::MaskGt,
    Special::Clock,
    Special::ClockHi,
    Special::GlobalTimer,
    Special::GlobalTimerHi,
    Special::DynamicShared,
    Special::TotalShared,
    Special::EnvReg1,
    Special::EnvReg2,
    Special::Zero,
    Special::One,
];

impl Special {
    pub fn parse(name: &str, part: &str) -> Option<Special> {
        use Special::*;
        let axis = |x, y, z| match part {
            "x" => Some(x),
            "y" => Some(y),
            "z" => Some(z),
            _ => None,
        };
        match name {
            "%tid" => axis(TidX, TidY, TidZ),
            "%ntid" => axis(NTidX, NTidY, NTidZ),
            "%ctaid" => axis(CtaX, CtaY, CtaZ),
            "%nctaid" => axis(NCtaX, NCtaY, NCtaZ),
            // A cluster has one block, so the index of the cluster is that of the block.
            "%clusterid" => axis(CtaX, CtaY, CtaZ),
            "%nclusterid" => axis(NCtaX, NCtaY, NCtaZ),
            "%cluster_ctaid" => axis(Zero, Zero, Zero),
            "%cluster_nctaid" => axis(One, One, One),
            _ if !part.is_empty() => None,
            "%laneid" => Some(LaneId),
            "%warpid" => Some(WarpId),
            "%nwarpid" => Some(NWarpId),
            "%smid" => Some(SmId),
            "%nsmid" => Some(NSmId),
            "%gridid" => Some(GridId),
            "%lanemask_eq" => Some(MaskEq),
            "%lanemask_le" => Some(MaskLe),
            "%lanemask_lt" => Some(MaskLt),
            "%lanemask_ge" => Some(MaskGe),
            "%lanemask_gt" => Some(MaskGt),
            "%clock" | "%clock64" => Some(Clock),
            "%clock_hi" => Some(ClockHi),
            "%globaltimer" | "%globaltimer_lo" => Some(GlobalTimer),
            "%globaltimer_hi" => Some(GlobalTimerHi),
            "%dynamic_smem_size" => Some(DynamicShared),
            "%total_smem_size" | "%aggr_smem_size" => Some(TotalShared),
            "%cluster_ctarank" | "%is_explicit_cluster" => Some(Zero),
            "%cluster_nctarank" => Some(One),
            "%envreg1" => Some(EnvReg1),
            "%envreg2" => Some(EnvReg2),
            _ if name.starts_with("%pm") || name.starts_with("%envreg") => Some(Zero),
            _ => None,
        }
    }
}

fn value(block: &Block, special: Special, lane: usize) -> u64 {
    use Special::*;
    let launch = block.launch;
    let me = 1u64 << lane;
    match special {
        TidX => block.thread(lane)[0].into(),
        TidY => block.thread(lane)[1].into(),
        TidZ => block.thread(lane)[2].into(),
        NTidX => launch.block[0].into(),
        NTidY => launch.block[1].into(),
        NTidZ => launch.block[2].into(),
        CtaX => block.running_block()[0].into(),
        CtaY => block.running_block()[1].into(),
        CtaZ => block.running_block()[2].into(),
        NCtaX => launch.grid[0].into(),
        NCtaY => launch.grid[1].into(),
        NCtaZ => launch.grid[2].into(),
        LaneId => lane as u64,
        WarpId => (block.warp.id % block.block_warps).into(),
        NWarpId => block.block_warps.into(),
        GridId => launch.id,
        MaskEq => me,
        MaskLt => me - 1,
        MaskLe => 2 * me - 1,
        MaskGe => u64::from(u32::MAX) & !(me - 1),
        MaskGt => u64::from(u32::MAX) & !(2 * me - 1),
        // One tick is a nanosecond.
        Clock => launch.start.elapsed().as_nanos() as u64,
        ClockHi => launch.start.elapsed().as_nanos() as u64 >> 32,
        GlobalTimer => unix_nanos(),
        GlobalTimerHi => unix_nanos() >> 32,
        DynamicShared => launch.dynamic_shared.into(),
        TotalShared => (launch.static_shared + launch.dynamic_shared).into(),
        // The halves of the address of the grid's barrier, where the header cooperative_groups looks for it. It is 0 if
        // there is no barrier.
        EnvReg1 => launch.workspace >> 32,
        EnvReg2 => launch.workspace & u64::from(u32::MAX),
        SmId | Zero => 0,
        NSmId | One => 1,
    }
}

fn unix_nanos() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |elapsed| elapsed.as_nanos() as u64)
}

/// The handler that reads the special register `mods` into `d`. The result has 64 bits if `imm` is not 0.
pub struct ReadSpecial;

impl Handler for ReadSpecial {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let special = ALL[inst.mods as usize];
        let values: [u64; LANES] = match special {
            Special::TidX if block.launch.block[0].is_multiple_of(LANES as u32) => {
                let first = u64::from(block.thread(0)[0]);
                std::array::from_fn(|lane| first + lane as u64)
            }
            Special::TidX | Special::TidY | Special::TidZ => std::array::from_fn(|lane| value(block, special, lane)),
            Special::LaneId
            | Special::MaskEq
            | Special::MaskLe
            | Special::MaskLt
            | Special::MaskGe
            | Special::MaskGt => std::array::from_fn(|lane| value(block, special, lane)),
            _ => [value(block, special, 0); LANES],
        };
        store(block, inst, &values, mask);
        Step::Next
    }

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        use Special::*;
        let special = ALL[inst.mods as usize];
        let row_of_threads = block.launch.block[1] == 1 && block.launch.block[2] == 1;
        let affine = match special {
            TidX if row_of_threads => Affine { base: 0, step: 1, stride: 0 },
            CtaX if block.team > 1 => Affine { base: block.ctaid[0].into(), step: 0, stride: 1 },
            CtaX => Affine::uniform(block.ctaid[0].into()),
            CtaY => Affine::uniform(block.ctaid[1].into()),
            CtaZ => Affine::uniform(block.ctaid[2].into()),
            TidY | TidZ if row_of_threads => Affine::uniform(0),
            TidX | TidY | TidZ | LaneId | WarpId | MaskEq | MaskLe | MaskLt | MaskGe | MaskGt => {
                return block.each_warp(inst);
            }
            _ => Affine::uniform(value(block, special, 0)),
        };
        store_affine(block, inst, affine)
    }
}

fn store_affine(block: &mut Block, inst: &Inst, value: Affine) -> Step {
    if inst.imm != 0 {
        block.set_affine::<u64>(inst.d, value);
    } else {
        block.set_affine::<u32>(inst.d, value);
    }
    Step::Next
}

fn store(block: &mut Block, inst: &Inst, values: &[u64; LANES], mask: u32) {
    if inst.imm != 0 {
        block.set(inst.d, values, mask);
    } else {
        block.set(inst.d, &values.map(|value| value as u32), mask);
    }
}

/// The handler that computes the address of a local variable: the frame's local memory plus `mods`. The result has 64
/// bits if `imm` is not 0.
pub struct LocalAddress;

impl Handler for LocalAddress {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let address = u64::from(block.warp.group.frame.local + inst.mods);
        store(block, inst, &[address; LANES], mask);
        Step::Next
    }

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        let address = u64::from(block.lockstep.frame.local + inst.mods);
        store_affine(block, inst, Affine::uniform(address))
    }
}

/// The handler that computes the address of dynamic shared memory. The result has 64 bits if `imm` is not 0.
pub struct DynamicSharedAddress;

impl Handler for DynamicSharedAddress {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let address = block.launch.dynamic_start;
        store(block, inst, &[address.into(); LANES], mask);
        Step::Next
    }

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        let address = block.launch.dynamic_start;
        store_affine(block, inst, Affine::uniform(address.into()))
    }
}
