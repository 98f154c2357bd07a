//! Reads and writes of one element for each lane of a warp. Contiguous elements are accessed together.

use super::Block;
use super::address::{AddressRows, Addresses};
use super::host::Host;
use super::lanes::{LANES, Lane};
use super::memory::Element;
use crate::engine::code::Inst;

/// Half of a warp's lanes. Blocks are often 16 threads wide, and 16 words fill a vector register.
const HALF: usize = LANES / 2;

/// Whether the address of lane i is the address of lane 0 plus i times `bytes`.
#[inline(always)]
fn in_a_row(hosts: &[Host], bytes: usize) -> bool {
    let mut differ = 0;
    for (lane, host) in hosts.iter().enumerate() {
        differ |= host.address() ^ hosts[0].address().wrapping_add((lane * bytes) as u64);
    }
    differ == 0
}

/// Reads one element for each lane.
#[inline(always)]
pub fn gather<E: Element>(hosts: &[Host; LANES], values: &mut [E::Register; LANES]) {
    for (values, hosts) in values.chunks_exact_mut(HALF).zip(hosts.chunks_exact(HALF)) {
        if in_a_row(hosts, 0) {
            values.fill(E::widen(hosts[0].read()));
        } else if in_a_row(hosts, size_of::<E::Memory>()) {
            widen_row::<E, HALF>(hosts[0], values);
        } else {
            for lane in 0..HALF {
                values[lane] = E::widen(hosts[lane].read());
            }
        }
    }
}

#[inline(always)]
pub fn widen_row<E: Element, const N: usize>(host: Host, values: &mut [E::Register]) {
    let row = host.read_row::<E::Memory, N>();
    for (value, &element) in values.iter_mut().zip(&row) {
        *value = E::widen(element);
    }
}

#[inline(always)]
pub fn narrow_row<E: Element, const N: usize>(host: Host, values: &[E::Register]) {
    let mut row = [E::Memory::default(); N];
    for (element, &value) in row.iter_mut().zip(values) {
        *element = E::narrow(value);
    }
    host.write_row(&row);
}

/// Writes one element for each lane, in the order of the lanes.
#[inline(always)]
pub fn scatter<E: Element>(hosts: &[Host; LANES], values: &[E::Register; LANES]) {
    for (values, hosts) in values.chunks_exact(HALF).zip(hosts.chunks_exact(HALF)) {
        if in_a_row(hosts, size_of::<E::Memory>()) {
            narrow_row::<E, HALF>(hosts[0], values);
        } else {
            for lane in 0..HALF {
                hosts[lane].write(E::narrow(values[lane]));
            }
        }
    }
}

/// Loads a row of a block in lockstep. This works only if in each half the addresses are equal or contiguous, as in
/// tiles of 16 columns. It does not compute an address for each lane.
#[inline(always)]
pub fn load_halves<E: Element>(block: &mut Block, inst: &Inst, rows: AddressRows, warp: usize) -> bool {
    let size = size_of::<E::Memory>();
    let (low, high) = match rows {
        AddressRows::Narrow(rows) => {
            let (low, high) = halves(block.registers.get(rows, warp), size);
            (block.locate_half::<u32>(inst, low, size), block.locate_half::<u32>(inst, high, size))
        }
        AddressRows::Wide(rows) => {
            let (low, high) = halves(block.registers.get(rows, warp), size);
            (block.locate_half::<u64>(inst, low, size), block.locate_half::<u64>(inst, high, size))
        }
    };
    let (Some(low), Some(high)) = (low, high) else { return false };
    let d = block.target_rows::<E::Register>(inst.d);
    for (values, (host, same)) in block.registers.get_mut(d, warp).chunks_exact_mut(HALF).zip([low, high]) {
        if same {
            values.fill(E::widen(host.read()));
        } else {
            widen_row::<E, HALF>(host, values);
        }
    }
    true
}

/// The address of a half's first lane, and the number of bytes between lanes (0 or `size`). It is `None` for other
/// addresses.
type Half = Option<(u64, usize)>;

#[inline(always)]
fn halves<T: Lane + PartialEq>(row: &[T; LANES], size: usize) -> (Half, Half) {
    let grows_by = |half: &[T], step: usize| {
        let mut all = true;
        for (lane, value) in half.iter().enumerate() {
            all &= *value == T::from_bits(half[0].to_bits().wrapping_add((lane * step) as u64));
        }
        all
    };
    let half = |half: &[T]| {
        let step = if grows_by(half, 0) { Some(0) } else { Some(size).filter(|&size| grows_by(half, size)) };
        step.map(|step| (half[0].to_bits(), step))
    };
    (half(&row[..HALF]), half(&row[HALF..]))
}

impl Block<'_> {
    /// Returns the host address of a half's first lane, and whether all lanes of the half have this address.
    #[inline(always)]
    fn locate_half<T: Lane>(&mut self, inst: &Inst, half: Half, size: usize) -> Option<(Host, bool)> {
        let (first, step) = half?;
        let address = T::from_bits(first.wrapping_add(inst.imm as u64)).to_bits();
        let host = self.locate_stretch(inst, address, (size + (HALF - 1) * step) as u64, size as u64)?;
        Some((host, step == 0))
    }
}

/// Returns the addresses of element `index` of vectors. The vectors' addresses have already been checked.
#[inline(always)]
pub fn elements(base: u64, addresses: &Addresses, index: usize, size: usize) -> [Host; LANES] {
    let mut hosts = [Host::checked(0); LANES];
    for lane in 0..LANES {
        hosts[lane] = Host::checked(base + addresses[lane]).plus(index * size);
    }
    hosts
}
