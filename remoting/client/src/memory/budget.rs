//! How much memory of the program may have mirrors. All of it is compared before each launch and fetched after each wait.

use super::host::HostKind;
use crate::{devices, log};
use std::sync::OnceLock;

pub struct Budget {
    /// The environment's variable that sets it, in MiB; 0 allows none.
    pub setting: &'static str,
    default_mib: fn() -> usize,
    mib: OnceLock<usize>,
}

static PAGE_LOCKED: Budget =
    Budget { setting: "REMOTEGPU_PINNED_MIRROR_MIB", default_mib: || 64, mib: OnceLock::new() };
static MANAGED: Budget = Budget { setting: "REMOTEGPU_MANAGED_MIB", default_mib: offered, mib: OnceLock::new() };

/// The most that an appliance of this program says, or 256.
fn offered() -> usize {
    let devices = devices::all().unwrap_or_default();
    let said = devices.iter().filter_map(|device| device.managed_mib()).max();
    said.map_or(256, |mib| mib as usize)
}

/// The one budget that memory of a kind counts against.
pub fn of(kind: HostKind) -> &'static Budget {
    match kind {
        HostKind::Allocated | HostKind::Registered | HostKind::Created => &PAGE_LOCKED,
        HostKind::Managed | HostKind::Variable => &MANAGED,
    }
}

impl Budget {
    pub fn mib(&self) -> usize {
        *self.mib.get_or_init(|| match std::env::var(self.setting) {
            Ok(value) => value.trim().parse().unwrap_or_else(|_| {
                let (setting, default) = (self.setting, (self.default_mib)());
                log::error(&format!("{setting}={value} is no number of MiB; it stays {default}"));
                default
            }),
            Err(_) => (self.default_mib)(),
        })
    }

    pub fn bytes(&self) -> usize {
        self.mib().saturating_mul(1 << 20)
    }
}
