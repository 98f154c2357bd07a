//! Handlers that report their memory accesses to an observer.

use std::marker::PhantomData;

use super::address::space;
use super::lanes::set_lanes;
use super::{Block, Handler};
use crate::engine::code::{Inst, SHARED_WINDOW, Step};
use crate::engine::watch::Access;

/// An accessed range of memory: `bytes` bytes from `address` on.
pub struct Touch {
    pub access: Access,
    pub address: u64,
    pub bytes: u64,
    /// Whether a strong access itself acquires or releases, without a fence.
    pub ordered: bool,
}

/// The handler `H`, which also reports its accesses.
pub struct Watched<H>(PhantomData<H>);

impl<H: Handler> Handler for Watched<H> {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        let Some(watch) = block.launch.watch else { return H::run(block, inst, mask) };
        let mut touches = Vec::new();
        H::touches(block, inst, mask, &mut touches);
        for Touch { access, address, bytes, ordered } in &touches {
            watch.touch(*access, *address, *bytes);
            if *access == Access::StrongWrite {
                watch.release(*address, *ordered);
            }
        }
        let step = H::run(block, inst, mask);
        if H::FENCES {
            watch.fence();
        }
        for Touch { access, address, ordered, .. } in touches {
            if access.is_strong() {
                watch.acquire(address, ordered);
            }
        }
        step
    }

    fn run_block(block: &mut Block, inst: &Inst) -> Step {
        block.each_warp(inst)
    }
}

impl Block<'_> {
    /// Lists the global memory that lanes access at an instruction's addresses. Adjacent accesses are joined, except
    /// strong ones.
    pub fn touch_lanes(&self, inst: &Inst, bytes: usize, mask: u32, access: Access, touches: &mut Vec<Touch>) {
        if !matches!(inst.mods & space::MASK, space::GLOBAL | space::GENERIC) {
            return;
        }
        let ordered = inst.mods & space::ORDERED != 0;
        let addresses = self.addresses(inst);
        touch_each(&addresses, bytes as u64, mask, access, ordered, touches);
    }
}

/// Lists accesses as [`Block::touch_lanes`] does, for addresses in the generic space.
pub fn touch_each(addresses: &[u64], bytes: u64, mask: u32, access: Access, ordered: bool, touches: &mut Vec<Touch>) {
    for lane in set_lanes(mask) {
        let address = addresses[lane];
        if address >= SHARED_WINDOW {
            continue;
        }
        if let Some(last) = touches.last_mut().filter(|last| last.access == access) {
            if address == last.address && bytes == last.bytes {
                continue;
            }
            if !access.is_strong() && address == last.address + last.bytes {
                last.bytes += bytes;
                continue;
            }
        }
        touches.push(Touch { access, address, bytes, ordered });
    }
}
