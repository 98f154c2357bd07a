//! Distributes the GPUs of a request over several appliances. Pure functions.

use remotegpu_client::connect::{LeaseWish, Site, SiteGpu};

/// Returns the number of GPUs to take from each appliance: evenly spread, and more from appliances with more free GPUs.
/// `None` if the request does not fit now.
pub fn spread(sites: &[Site], wish: &LeaseWish) -> Option<Vec<u32>> {
    let fitting: Vec<u32> = sites
        .iter()
        .map(|site| if site.draining { 0 } else { count(site.gpus.iter().filter(|gpu| fits(wish, gpu))) })
        .collect();
    if fitting.iter().sum::<u32>() < wish.count {
        return None;
    }
    let mut counts = vec![0; sites.len()];
    for _ in 0..wish.count {
        let open = (0..sites.len()).filter(|&each| fitting[each] > counts[each]);
        let chosen = open.min_by_key(|&each| (counts[each], std::cmp::Reverse(fitting[each] - counts[each])))?;
        counts[chosen] += 1;
    }
    Some(counts)
}

/// Whether the request would fit if no GPU were leased.
pub fn possible(sites: &[Site], wish: &LeaseWish) -> bool {
    let gpus = sites.iter().flat_map(|site| &site.gpus);
    count(gpus.filter(|gpu| gpu.healthy && (1..=gpu.shareable_bytes).contains(&bytes(wish, gpu.shareable_bytes))))
        >= wish.count
}

/// Returns the requested bytes of a GPU that has `shareable` bytes to share.
pub fn bytes(wish: &LeaseWish, shareable: u64) -> u64 {
    match wish.memory_bytes {
        0 => (u128::from(shareable) * u128::from(wish.milli) / 1000).try_into().unwrap_or(u64::MAX),
        memory => memory,
    }
}

fn fits(wish: &LeaseWish, gpu: &SiteGpu) -> bool {
    let free = gpu.shareable_bytes.saturating_sub(gpu.leased_bytes);
    gpu.healthy && (1..=free).contains(&bytes(wish, gpu.shareable_bytes))
}

fn count(gpus: impl Iterator) -> u32 {
    gpus.count().try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn site(free: &[u64]) -> Site {
        let gpu = |&free| SiteGpu { healthy: true, shareable_bytes: 8 * GIB, leased_bytes: (8 - free) * GIB };
        Site { gpus: free.iter().map(gpu).collect(), ..Site::default() }
    }

    fn halves(count: u32) -> LeaseWish {
        LeaseWish { count, milli: 500, ..LeaseWish::default() }
    }

    #[test]
    fn gpus_are_spread_evenly_and_more_where_more_is_free() {
        assert_eq!(spread(&[site(&[8, 8]), site(&[8, 8])], &halves(2)), Some(vec![1, 1]));
        assert_eq!(spread(&[site(&[8]), site(&[8, 8, 8])], &halves(3)), Some(vec![1, 2]));
        assert_eq!(spread(&[site(&[3]), site(&[8, 8])], &halves(2)), Some(vec![0, 2]));
    }

    #[test]
    fn what_does_not_fit_is_not_taken() {
        assert_eq!(spread(&[site(&[8]), site(&[3])], &halves(2)), None);
        let draining = Site { draining: true, ..site(&[8]) };
        assert_eq!(spread(&[draining, site(&[8])], &halves(2)), None);
        let ill = Site { gpus: vec![SiteGpu { healthy: false, ..site(&[8]).gpus[0] }], ..Site::default() };
        assert_eq!(spread(&[ill.clone(), site(&[8])], &halves(2)), None);
        assert!(!possible(&[ill, site(&[8])], &halves(2)));
    }

    #[test]
    fn possible_looks_at_what_is_leased_as_if_it_were_free() {
        assert!(possible(&[site(&[0, 0])], &halves(2)));
        assert!(!possible(&[site(&[0, 0])], &halves(3)));
        assert!(!possible(&[site(&[8])], &LeaseWish { count: 1, memory_bytes: 9 * GIB, ..LeaseWish::default() }));
    }

    /// Each result has the requested number of GPUs and fits, for all combinations of free memory.
    #[test]
    fn a_spread_is_as_asked() {
        for seed in 0..4096_u64 {
            let digits: Vec<u64> = (0..6).map(|place| (seed >> (2 * place)) & 3).collect();
            let sites = [
                site(&digits[..2].iter().map(|d| d * 2).collect::<Vec<_>>()),
                site(&digits[2..].iter().map(|d| d * 2).collect::<Vec<_>>()),
            ];
            let room: Vec<u32> =
                sites.iter().map(|site| count(site.gpus.iter().filter(|gpu| gpu.leased_bytes <= 4 * GIB))).collect();
            for wanted in 1..=6 {
                match spread(&sites, &halves(wanted)) {
                    Some(counts) => {
                        assert_eq!(counts.iter().sum::<u32>(), wanted);
                        assert!(counts.iter().zip(&room).all(|(count, room)| count <= room));
                    }
                    None => assert!(room.iter().sum::<u32>() < wanted),
                }
            }
        }
    }
}
