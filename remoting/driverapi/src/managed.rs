//! Records a program's advice about managed memory (`cuMemAdvise`, `cuMemPrefetchAsync`), and answers its queries
//! (`cuMemRangeGetAttribute`). Advice never changes what a program reads, so recording it is enough.

use crate::constants::*;
use crate::errors::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE};
use crate::types::{CUdevice, CUmemLocation, CUresult};
use std::collections::BTreeSet;
use std::ops::Range;

const NOWHERE: CUmemLocation = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_INVALID, id: CU_DEVICE_INVALID };

/// Returns a device as a location, for functions that take a device.
#[must_use]
pub fn location_of(device: CUdevice) -> CUmemLocation {
    let type_ = if device == CU_DEVICE_CPU { CU_MEM_LOCATION_TYPE_HOST } else { CU_MEM_LOCATION_TYPE_DEVICE };
    CUmemLocation { type_, id: if device == CU_DEVICE_CPU { 0 } else { device } }
}

/// Checks a location of managed memory. `devices` is the number of devices.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for an unknown kind of location; `CUDA_ERROR_INVALID_DEVICE` for an unknown device.
pub fn check_location(location: &CUmemLocation, devices: usize) -> Result<(), CUresult> {
    match location.type_ {
        CU_MEM_LOCATION_TYPE_DEVICE if usize::try_from(location.id).is_ok_and(|id| id < devices) => Ok(()),
        CU_MEM_LOCATION_TYPE_DEVICE => Err(CUDA_ERROR_INVALID_DEVICE),
        CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(()),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Checks the location argument of advice. Some advice needs no location.
///
/// # Errors
/// The errors of [`check_location`].
pub fn check_advice(advice: CUmem_advise, location: &CUmemLocation, devices: usize) -> Result<(), CUresult> {
    match advice {
        CU_MEM_ADVISE_SET_READ_MOSTLY | CU_MEM_ADVISE_UNSET_READ_MOSTLY | CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => {
            Ok(())
        }
        _ => check_location(location, devices),
    }
}

/// Checks the flags of `cuMemAllocManaged`.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for unknown flags.
pub fn check_flags(flags: CUmemAttach_flags) -> Result<(), CUresult> {
    if matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST) { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Advice {
    read_mostly: bool,
    preferred: CUmemLocation,
    accessed_by: BTreeSet<CUdevice>,
    prefetched: CUmemLocation,
}

/// The advice for each part of one allocation.
#[derive(Clone, Debug)]
pub struct Advised(Vec<(Range<u64>, Advice)>);

impl Advised {
    /// Creates the record of an allocation, without advice.
    #[must_use]
    pub fn new(addresses: Range<u64>) -> Advised {
        let (preferred, prefetched) = (NOWHERE, NOWHERE);
        Advised(vec![(addresses, Advice { read_mostly: false, preferred, accessed_by: BTreeSet::new(), prefetched })])
    }

    /// Returns the addresses of the allocation.
    #[must_use]
    pub fn addresses(&self) -> Range<u64> {
        self.0.first().map_or(0, |(part, _)| part.start)..self.0.last().map_or(0, |(part, _)| part.end)
    }

    /// Returns the addresses of `count` bytes from `address`, which must lie in the allocation.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for 0 bytes, or for a range beyond the allocation's end.
    pub fn range(&self, address: u64, count: usize) -> Result<Range<u64>, CUresult> {
        let end = address.checked_add(count as u64).filter(|end| count > 0 && *end <= self.addresses().end);
        end.map(|end| address..end).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn change(&mut self, range: &Range<u64>, change: impl Fn(&mut Advice)) {
        let parts = std::mem::take(&mut self.0);
        for (part, advice) in parts {
            let (start, end) = (range.start.clamp(part.start, part.end), range.end.clamp(part.start, part.end));
            for piece in [part.start..start, start..end, end..part.end] {
                let mut advice = advice.clone();
                if piece.start >= range.start && piece.end <= range.end {
                    change(&mut advice);
                }
                match self.0.last_mut() {
                    _ if piece.is_empty() => {}
                    Some((last, same)) if *same == advice => last.end = piece.end,
                    _ => self.0.push((piece, advice)),
                }
            }
        }
    }

    /// Records advice for a range.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for advice that CUDA does not define.
    pub fn advise(
        &mut self,
        range: &Range<u64>,
        advice: CUmem_advise,
        location: CUmemLocation,
    ) -> Result<(), CUresult> {
        let device = if location.type_ == CU_MEM_LOCATION_TYPE_DEVICE { location.id } else { CU_DEVICE_CPU };
        match advice {
            CU_MEM_ADVISE_SET_READ_MOSTLY => self.change(range, |advice| advice.read_mostly = true),
            CU_MEM_ADVISE_UNSET_READ_MOSTLY => self.change(range, |advice| advice.read_mostly = false),
            CU_MEM_ADVISE_SET_PREFERRED_LOCATION => self.change(range, |advice| advice.preferred = location),
            CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => self.change(range, |advice| advice.preferred = NOWHERE),
            CU_MEM_ADVISE_SET_ACCESSED_BY => self.change(range, |advice| {
                advice.accessed_by.insert(device);
            }),
            CU_MEM_ADVISE_UNSET_ACCESSED_BY => self.change(range, |advice| {
                advice.accessed_by.remove(&device);
            }),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    pub fn prefetch(&mut self, range: &Range<u64>, to: CUmemLocation) {
        self.change(range, |advice| advice.prefetched = to);
    }

    /// Returns an attribute of a range as 4-byte words; `size` is their size in bytes. A value is valid for the range
    /// only if it is the same for all its parts.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a wrong size or an unknown attribute.
    pub fn attribute(
        &self,
        range: &Range<u64>,
        attribute: CUmem_range_attribute,
        size: usize,
    ) -> Result<Vec<i32>, CUresult> {
        let parts =
            || self.0.iter().filter(|(part, _)| part.start < range.end && range.start < part.end).map(|(_, a)| a);
        let everywhere = |place: fn(&Advice) -> CUmemLocation| {
            let mut places = parts().map(place);
            let first = places.next().unwrap_or(NOWHERE);
            if places.all(|other| other == first) { first } else { NOWHERE }
        };
        let preferred = || everywhere(|advice| advice.preferred);
        let prefetched = || everywhere(|advice| advice.prefetched);
        let word = match attribute {
            CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY if size > 0 && size.is_multiple_of(4) => {
                let mut devices = parts().map(|advice| advice.accessed_by.clone());
                let first = devices.next().unwrap_or_default();
                let common = devices.fold(first, |all, other| &all & &other);
                let filled = common.into_iter().chain(std::iter::repeat(CU_DEVICE_INVALID));
                return Ok(filled.take(size / 4).collect());
            }
            CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => parts().all(|advice| advice.read_mostly).into(),
            CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => device_of(preferred()),
            CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => device_of(prefetched()),
            CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE => preferred().type_ as i32,
            CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID => preferred().id,
            CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE => prefetched().type_ as i32,
            CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID => prefetched().id,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        if size == 4 { Ok(vec![word]) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
}

/// Returns the location of each of the `count` ranges of a batch. `locations[i]` is valid from range `firsts[i]` on.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if there are no ranges, or if `firsts` does not increase from 0.
pub fn spread(locations: &[CUmemLocation], firsts: &[usize], count: usize) -> Result<Vec<CUmemLocation>, CUresult> {
    let rises = firsts.is_sorted_by(|one, next| one < next);
    if count == 0 || firsts.first() != Some(&0) || !rises || firsts.last().is_some_and(|last| *last >= count) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let of = |range: usize| firsts.partition_point(|first| *first <= range) - 1;
    Ok((0..count).map(|range| locations[of(range)]).collect())
}

fn device_of(location: CUmemLocation) -> CUdevice {
    match location.type_ {
        CU_MEM_LOCATION_TYPE_DEVICE => location.id,
        CU_MEM_LOCATION_TYPE_INVALID => CU_DEVICE_INVALID,
        _ => CU_DEVICE_CPU,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_holds_for_a_range_if_it_holds_for_all_of_it() {
        let mut all = Advised::new(100..200);
        let whole = all.range(100, 100).unwrap();
        assert!(all.range(150, 51).is_err() && all.range(150, 0).is_err() && all.range(150, usize::MAX).is_err());
        let preferred = |all: &Advised, range: Range<u64>| {
            all.attribute(&range, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 4).unwrap()
        };
        assert_eq!(preferred(&all, whole.clone()), [CU_DEVICE_INVALID]);
        all.advise(&(120..150), CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location_of(1)).unwrap();
        assert_eq!(preferred(&all, 120..150), [1]);
        assert_eq!(preferred(&all, 119..150), [CU_DEVICE_INVALID]);
        all.advise(&whole, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location_of(CU_DEVICE_CPU)).unwrap();
        assert_eq!(preferred(&all, whole.clone()), [CU_DEVICE_CPU]);
        assert_eq!(all.0.len(), 1, "equal parts are one");
        assert_eq!(all.advise(&whole, 99, location_of(0)), Err(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn devices_that_access_all_of_a_range_are_listed_and_the_rest_is_filled() {
        let mut all = Advised::new(0..64);
        for (range, device) in [(0..64, 1), (0..64, CU_DEVICE_CPU), (0..32, 2)] {
            all.advise(&range, CU_MEM_ADVISE_SET_ACCESSED_BY, location_of(device)).unwrap();
        }
        let listed = |range, size| all.attribute(&range, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, size);
        assert_eq!(listed(0..64, 12), Ok(vec![CU_DEVICE_CPU, 1, CU_DEVICE_INVALID]));
        assert_eq!(listed(0..32, 12), Ok(vec![CU_DEVICE_CPU, 1, 2]));
        assert_eq!(listed(0..32, 6), Err(CUDA_ERROR_INVALID_VALUE));
    }
}
