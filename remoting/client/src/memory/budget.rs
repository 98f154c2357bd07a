//! The limits on the number of bytes of the program's memory that may have mirrors. All of that memory is compared
//! before each command.

use super::host::HostKind;
use crate::Code;
use crate::devices;
use crate::devices::context::Live;
use crate::program::log;
use driverapi::rules::{Rule, kept};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Once, OnceLock};

const MIB: usize = 1 << 20;
/// The number of compared bytes above which a warning is logged.
const COSTLY: usize = 64 * MIB;

pub struct Budget {
    /// The environment variable that sets the limit, in MiB. 0 allows no mirrors.
    pub setting: &'static str,
    /// Returns the limit in MiB that an appliance offers.
    offered: fn() -> Option<usize>,
    /// The limit in MiB that always applies if nothing is set. It needs no query of the share's free memory.
    least: usize,
    set: OnceLock<Option<usize>>,
    /// The number of bytes that have mirrors.
    used: AtomicUsize,
}

static PAGE_LOCKED: Budget = Budget::new("REMOTEGPU_PINNED_MIRROR_MIB", || None, 64);
static MANAGED: Budget = Budget::new("REMOTEGPU_MANAGED_MIB", offered, 256);

/// Returns the largest value, in MiB, that an appliance of this program offers.
fn offered() -> Option<usize> {
    let devices = devices::all().unwrap_or_default();
    devices.iter().filter_map(|device| device.managed_mib()).max().map(|mib| mib as usize)
}

/// Returns the budget that memory of this kind counts against.
pub fn of(kind: HostKind) -> &'static Budget {
    match kind {
        HostKind::Allocated | HostKind::Registered | HostKind::Created => &PAGE_LOCKED,
        HostKind::Managed | HostKind::Variable => &MANAGED,
    }
}

/// Records how many bytes of each kind of memory have mirrors now. Logs a warning if many of them are compared before
/// each command.
pub fn note(mirrored: impl Iterator<Item = (HostKind, usize, bool)> + Clone) {
    let bytes = |budget: &Budget, counts: fn(bool) -> bool| {
        let own = mirrored.clone().filter(|(kind, _, compared)| std::ptr::eq(of(*kind), budget) && counts(*compared));
        own.map(|(_, size, _)| size).sum::<usize>()
    };
    for budget in [&PAGE_LOCKED, &MANAGED] {
        budget.used.store(bytes(budget, |_| true), SeqCst);
    }
    let compared = bytes(&PAGE_LOCKED, |compared| compared);
    if compared > COSTLY {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| {
            log::error(&format!(
                "kernels use {} MiB of page-locked memory in place, all of which is compared before each command and \
                 looked through after each wait: slow, but right. Large data belongs into device memory \
                 (docs/page-locked-memory.md)",
                compared / MIB
            ));
        });
    }
}

impl Budget {
    const fn new(setting: &'static str, offered: fn() -> Option<usize>, least: usize) -> Budget {
        Budget { setting, offered, least, set: OnceLock::new(), used: AtomicUsize::new(0) }
    }

    fn set(&self) -> Option<usize> {
        *self.set.get_or_init(|| match std::env::var(self.setting) {
            Ok(value) => value.trim().parse().map(Some).unwrap_or_else(|_| {
                log::error(&format!("{}={value} is no number of MiB; it is as if it were not set", self.setting));
                (self.offered)()
            }),
            Err(_) => (self.offered)(),
        })
    }

    /// Returns whether no memory may have a mirror.
    pub fn is_off(&self) -> bool {
        self.set() == Some(0)
    }

    /// Returns how many bytes may have mirrors when `more` bytes are added: the limit that is set, or else half of the
    /// share's free memory. Queries the share only if the default limit does not suffice.
    ///
    /// # Errors
    /// The session's sticky error.
    pub fn most(&self, live: &Live, more: usize) -> Result<usize, Code> {
        if let Some(mib) = self.set() {
            return Ok(mib.saturating_mul(MIB));
        }
        let (used, least) = (self.used.load(SeqCst), self.least * MIB);
        if used.saturating_add(more) <= least {
            return Ok(least);
        }
        let (free, _) = live.device.memory.info(live)?;
        Ok(least.max((free as usize).saturating_add(used) / 2))
    }

    /// Returns whether `more` further bytes may have a mirror.
    pub fn allows(&self, most: usize, more: usize) -> bool {
        self.used.load(SeqCst).saturating_add(more) <= most || !kept(Rule::MirrorBudget)
    }

    /// Returns a description of the limit for messages.
    pub fn limit(&self, most: usize) -> String {
        let (setting, mib) = (self.setting, most / MIB);
        match self.set() {
            Some(_) => format!("{setting}={mib}"),
            None => format!("{mib} MiB, which is what {setting} would set: half of what the share has free"),
        }
    }
}
