//! The functions that the driver provides to device code: `vprintf`, `__assertfail`, `malloc`, `free` and
//! `cudaGraphSetConditional`. The handle of the last one is the address of the condition's value.

use super::lanes::set_lanes;
use super::memory::space;
use super::printf;
use super::{Block, Handler};
use crate::engine::code::{Inst, Step};

/// The functions, whose number is in `mods`. `imm` is the call site, which has the positions of the arguments in local
/// memory.
pub mod function {
    pub const PRINTF: u32 = 0;
    pub const ASSERT: u32 = 1;
    pub const MALLOC: u32 = 2;
    pub const FREE: u32 = 3;
    pub const SET_CONDITION: u32 = 4;
}

/// Returns the number of a function by name, or `None` if the driver does not provide it.
pub fn provided(name: &str) -> Option<u32> {
    match name {
        "vprintf" => Some(function::PRINTF),
        "__assertfail" => Some(function::ASSERT),
        "malloc" => Some(function::MALLOC),
        "free" => Some(function::FREE),
        "cudaGraphSetConditional" => Some(function::SET_CONDITION),
        _ => None,
    }
}

/// The maximum bytes of a string. Longer strings are truncated.
const MAX_STRING: u64 = 4096;

impl Block<'_> {
    /// Reads a NUL-terminated string at a generic address.
    pub fn string(&mut self, address: u64, lane: usize) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        for offset in 0..MAX_STRING {
            let host = self.locate_one(space::GENERIC, address.checked_add(offset)?, 1, lane).ok()?;
            match host.read::<u8>() {
                0 => break,
                byte => text.push(byte),
            }
        }
        Some(text)
    }

    /// Reads bytes at a generic address.
    pub fn bytes(&mut self, address: u64, bytes: &mut [u8], lane: usize) -> Option<()> {
        for (offset, byte) in bytes.iter_mut().enumerate() {
            let host = self.locate_one(space::GENERIC, address.checked_add(offset as u64)?, 1, lane).ok()?;
            *byte = host.read();
        }
        Some(())
    }

    /// Returns an argument of the call from a lane's local memory.
    fn argument(&mut self, inst: &Inst, index: usize, lane: usize) -> u64 {
        let site = &self.launch.code.calls[inst.imm as usize];
        let Some(&(offset, size)) = site.args.get(index) else { return 0 };
        let (start, size) = ((self.warp.group.frame.local + offset) as usize, size.min(8) as usize);
        let mut bytes = [0; 8];
        if let Some(place) = self.warp.local.lane(lane).get(start..start + size) {
            bytes[..size].copy_from_slice(place);
        }
        u64::from_le_bytes(bytes)
    }

    fn give_back(&mut self, inst: &Inst, value: u64, lane: usize) {
        let site = &self.launch.code.calls[inst.imm as usize];
        let Some(&(offset, size)) = site.returns.first() else { return };
        let (start, size) = ((self.warp.group.frame.local + offset) as usize, size.min(8) as usize);
        if let Some(place) = self.warp.local.lane(lane).get_mut(start..start + size) {
            place.copy_from_slice(&value.to_le_bytes()[..size]);
        }
    }

    fn assertion(&mut self, inst: &Inst, lane: usize) -> Step {
        let [what, file, function] = [0, 1, 3].map(|index| {
            let address = self.argument(inst, index, lane);
            String::from_utf8_lossy(&self.string(address, lane).unwrap_or_default()).into_owned()
        });
        let line = self.argument(inst, 2, lane) as u32;
        let ([bx, by, bz], [tx, ty, tz]) = (self.ctaid, self.thread(lane));
        let text = format!(
            "{file}:{line}: {function}: block: [{bx},{by},{bz}], thread: [{tx},{ty},{tz}] Assertion `{what}` failed.\n"
        );
        self.launch.out.error(text.as_bytes());
        self.fail(710, lane, format!("assertion `{what}` failed at {file}:{line}"))
    }
}

pub struct Syscall;

impl Handler for Syscall {
    #[inline(always)]
    fn run(block: &mut Block, inst: &Inst, mask: u32) -> Step {
        syscall(block, inst, mask)
    }
}

fn syscall(block: &mut Block, inst: &Inst, mask: u32) -> Step {
    for lane in set_lanes(mask) {
        match inst.mods {
            function::ASSERT => return block.assertion(inst, lane),
            function::PRINTF => {
                let (format, arguments) = (block.argument(inst, 0, lane), block.argument(inst, 1, lane));
                let Some((text, count)) = printf::format(block, format, arguments, lane) else {
                    return block.fail(700, lane, "printf of an illegal address".to_owned());
                };
                block.launch.out.write(&text);
                block.give_back(inst, count.into(), lane);
            }
            function::MALLOC => {
                let bytes = block.argument(inst, 0, lane);
                let address = block.launch.heap.allocate(block.launch.memory, bytes);
                block.give_back(inst, address, lane);
            }
            function::SET_CONDITION => {
                let (handle, value) = (block.argument(inst, 0, lane), block.argument(inst, 1, lane));
                match block.locate_one(space::GLOBAL, handle, 4, lane) {
                    Ok(host) => host.write(value as u32),
                    Err(_) => return block.fail(700, lane, format!("0x{handle:x} is no condition of a graph")),
                }
            }
            _ => {
                let address = block.argument(inst, 0, lane);
                if address != 0 && !block.launch.heap.release(address) {
                    return block.fail(719, lane, format!("free of 0x{address:x}"));
                }
            }
        }
    }
    Step::Next
}
