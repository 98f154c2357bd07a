//! How much memory of the program may have mirrors. All of it is compared before each launch and fetched after each wait.

use super::host::HostKind;
use crate::log;
use std::sync::OnceLock;

pub struct Budget {
    /// The environment's variable that sets it, in MiB; 0 allows none.
    pub setting: &'static str,
    default_mib: usize,
    mib: OnceLock<usize>,
}

static PAGE_LOCKED: Budget = Budget { setting: "REMOTEGPU_PINNED_MIRROR_MIB", default_mib: 64, mib: OnceLock::new() };
static MANAGED: Budget = Budget { setting: "REMOTEGPU_MANAGED_MIB", default_mib: 256, mib: OnceLock::new() };

/// The one budget that memory of a kind counts against.
pub fn of(kind: HostKind) -> &'static Budget {
    match kind {
        HostKind::Allocated | HostKind::Registered => &PAGE_LOCKED,
        HostKind::Managed | HostKind::Variable => &MANAGED,
    }
}

impl Budget {
    pub fn mib(&self) -> usize {
        *self.mib.get_or_init(|| match std::env::var(self.setting) {
            Ok(value) => value.trim().parse().unwrap_or_else(|_| {
                let Budget { setting, default_mib, .. } = self;
                log::error(&format!("{setting}={value} is no number of MiB; it stays {default_mib}"));
                *default_mib
            }),
            Err(_) => self.default_mib,
        })
    }

    pub fn bytes(&self) -> usize {
        self.mib().saturating_mul(1 << 20)
    }
}
