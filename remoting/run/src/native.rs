//! Software GPUs in the command's process: their profile and their memory size.

use remotegpu_client::connect::LeaseWish;

use crate::exits::{Failure, USAGE};
use crate::placement::bytes;
use crate::quantities::memory;

/// The values of `REMOTEGPU_SOFTGPU_PROFILE`. `remotegpu.api.modes` lists the same values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Profile {
    #[default]
    Normal,
    Hostile,
    Slow,
    NullH100,
}

const ALL: [Profile; 4] = [Profile::Normal, Profile::Hostile, Profile::Slow, Profile::NullH100];

impl Profile {
    pub fn name(self) -> &'static str {
        match self {
            Profile::Normal => "normal",
            Profile::Hostile => "hostile",
            Profile::Slow => "slow",
            Profile::NullH100 => "null-h100",
        }
    }

    pub fn named(name: &str) -> Option<Profile> {
        ALL.into_iter().find(|profile| profile.name() == name)
    }

    pub fn read(name: &str) -> Result<Profile, Failure> {
        Profile::named(name).ok_or_else(|| {
            let names = ALL.map(Profile::name).join(", ");
            Failure::new(USAGE, format!("--profile {name} is none of {names}; see `remotegpu-run --help`"))
        })
    }

    /// Whether the GPU runs no kernels. Such a GPU accepts machine code, and all its results are meaningless.
    pub fn is_null(self) -> bool {
        self == Profile::NullH100
    }

    /// Returns the memory of each GPU, the default of `REMOTEGPU_SOFTGPU_MEMORY`.
    fn memory_bytes(self) -> u64 {
        if self.is_null() { 80 << 30 } else { 8 << 30 }
    }
}

/// Returns the memory of each GPU in bytes: the share's part of `given` (`REMOTEGPU_SOFTGPU_MEMORY`) or of the
/// profile's memory. The whole is at least the memory that `wish` requests.
pub fn memory_of(wish: &LeaseWish, profile: Profile, given: Option<&str>) -> Result<u64, Failure> {
    let whole = given
        .map_or(Ok(profile.memory_bytes()), memory)
        .map_err(|Failure { code, message }| Failure::new(code, format!("REMOTEGPU_SOFTGPU_MEMORY: {message}")))?;
    Ok(bytes(wish, whole.max(wish.memory_bytes)))
}
