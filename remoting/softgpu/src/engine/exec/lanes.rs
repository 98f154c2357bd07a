//! Registers as arrays with a value for each of a warp's 32 lanes.

pub const LANES: usize = 32;
pub const ALL: u32 = u32::MAX;

/// A register slot with one 32-bit value for each lane. A 64-bit register consists of two consecutive slots.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub [u32; LANES]);

impl Default for Slot {
    fn default() -> Self {
        Slot([0; LANES])
    }
}

mod sealed {
    pub trait Plain {}
}

/// A type in which a register can be read. A 16-bit value is in a 32-bit lane whose upper half is undefined.
pub trait Lane: Copy + Default + sealed::Plain + 'static {
    const SLOTS: usize;
    fn from_bits(bits: u64) -> Self;
    fn to_bits(self) -> u64;

    #[inline(always)]
    fn view(slots: &[Slot]) -> &[Self; LANES] {
        assert!(slots.len() >= Self::SLOTS);
        // SAFETY: `Self` is a 32- or 64-bit number, so every bit pattern is valid and `SLOTS` slots hold 32 of them;
        // slots are aligned to 64 bytes.
        unsafe { &*slots.as_ptr().cast() }
    }

    #[inline(always)]
    fn view_mut(slots: &mut [Slot]) -> &mut [Self; LANES] {
        assert!(slots.len() >= Self::SLOTS);
        // SAFETY: as in `view`; the borrow is exclusive.
        unsafe { &mut *slots.as_mut_ptr().cast() }
    }
}

macro_rules! lanes {
    ($($ty:ty => $slots:expr, $from:expr, $to:expr;)*) => {$(
        impl sealed::Plain for $ty {}
        impl Lane for $ty {
            const SLOTS: usize = $slots;
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                $from(bits)
            }
            #[inline(always)]
            fn to_bits(self) -> u64 {
                $to(self)
            }
        }
    )*};
}

lanes! {
    u32 => 1, |bits| bits as u32, u64::from;
    i32 => 1, |bits| bits as i32, |value| value as u32 as u64;
    f32 => 1, |bits| f32::from_bits(bits as u32), |value: f32| value.to_bits().into();
    u64 => 2, |bits| bits, |value| value;
    i64 => 2, |bits| bits as i64, |value| value as u64;
    f64 => 2, f64::from_bits, f64::to_bits;
}

/// Returns a constant with its value in all lanes: one slot, or two slots for 64 bits, low half first.
pub fn spread(bits: u64, double: bool) -> Vec<Slot> {
    if double {
        let mut slots = vec![Slot::default(); 2];
        *u64::view_mut(&mut slots) = [bits; LANES];
        slots
    } else {
        vec![Slot([bits as u32; LANES])]
    }
}

/// Replaces the lanes of `old` that are in the mask by those of `new`.
#[inline(always)]
pub fn blend<T: Lane>(old: &mut [T; LANES], new: &[T; LANES], mask: u32) {
    if mask == ALL {
        *old = *new;
    } else {
        for lane in 0..LANES {
            old[lane] = if mask >> lane & 1 == 1 { new[lane] } else { old[lane] };
        }
    }
}

/// Returns the mask of the lanes for which `test` is true.
#[inline(always)]
pub fn pack(mut test: impl FnMut(usize) -> bool) -> u32 {
    let mut bits = [0u32; LANES];
    for (lane, bit) in bits.iter_mut().enumerate() {
        *bit = u32::from(test(lane)) << lane;
    }
    bits.iter().fold(0, |all, bit| all | bit)
}

/// Returns the lanes in a mask, in ascending order.
pub fn set_lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros() as usize;
        rest &= rest.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}
