//! The settings of the software GPU from the environment, which are read once, at the first call.

use crate::process::model::Model;
use driverapi::settings;
use driverapi::types::CUuuid;
use std::path::PathBuf;

/// The variable that names a file of rules for the values that a null GPU writes in place of kernels.
pub const RULES_ENV: &str = "REMOTEGPU_NULL_RULES";
/// The variable that names a file of one page, in which all processes of a run count how often each rule was applied.
pub const TALLY_ENV: &str = "REMOTEGPU_NULL_RULES_TALLY";

/// The address of a device on an imaginary PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciId {
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
}

/// The settings of the software GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub memory: u64,
    pub uuids: Vec<CUuuid>,
    pub pci: Vec<PciId>,
    /// The number of OS threads that run the blocks of one kernel. With 1, blocks run in a fixed order.
    pub threads: usize,
    pub driver_version: i32,
    pub profile: Profile,
    pub visible: Option<String>,
    /// The file that holds the devices' memory. New memory contains the data that its last owner left.
    pub physical: Option<PathBuf>,
    /// The value of `REMOTEGPU_CHECK`, which starts a checker.
    pub check: Option<String>,
    /// The path of a null GPU's rules. `tally` is the path of the file that counts their use.
    pub rules: Option<String>,
    pub tally: Option<String>,
}

/// The behaviour of the driver where CUDA leaves it open. `hostile` behaves like the worst driver that CUDA allows, to
/// find programs that rely on luck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The GPU model that devices report.
    pub model: &'static Model,
    /// Whether `cuMemAddressReserve` tries to return the requested address.
    pub honours_hints: bool,
    /// The number of operations in a stream's queue at which a caller blocks.
    pub queue_limit: usize,
    /// Whether `cuMemFree` waits for work that may use the memory.
    pub free_waits: bool,
    pub module_load_millis: u64,
    /// The bytes of device memory that a context itself uses.
    pub context_bytes: u64,
    /// Whether a fault is reported only by calls that synchronise.
    pub late_faults: bool,
    /// The time that each launch takes in its stream in addition to its computation, in microseconds.
    pub launch_micros: u64,
    /// The time that each fill waits in its stream before it starts, in microseconds.
    pub fill_micros: u64,
    /// Whether the loading of a kernel at its first use waits for all running work of its context, which CUDA allows.
    pub loading_waits: bool,
    /// Whether the addresses of modules' variables are random.
    pub shuffles: bool,
}

impl Profile {
    pub const NORMAL: Profile = Profile {
        model: &Model::SOFTWARE,
        honours_hints: true,
        queue_limit: usize::MAX,
        free_waits: true,
        module_load_millis: 0,
        context_bytes: 0,
        late_faults: false,
        launch_micros: 0,
        fill_micros: 0,
        loading_waits: false,
        shuffles: false,
    };
    pub const HOSTILE: Profile = Profile {
        model: &Model::SOFTWARE,
        honours_hints: false,
        queue_limit: 1024,
        free_waits: false,
        module_load_millis: 50,
        context_bytes: 64 << 20,
        late_faults: true,
        launch_micros: 0,
        fill_micros: 0,
        loading_waits: false,
        shuffles: false,
    };
    /// A profile whose queues fill quickly and stay full. It shows a program's dependence on the progress of a GPU in
    /// each run.
    pub const SLOW: Profile = Profile { queue_limit: 1024, launch_micros: 10, loading_waits: true, ..Profile::NORMAL };
    pub const SHUFFLED: Profile = Profile { shuffles: true, ..Profile::NORMAL };
    pub const NULL_H100: Profile = Profile { model: &Model::NULL_H100, ..Profile::NORMAL };

    fn named(name: Option<&str>) -> Profile {
        match name {
            Some("hostile") => Profile::HOSTILE,
            Some("slow") => Profile::SLOW,
            Some("shuffled") => Profile::SHUFFLED,
            Some("null-h100") => Profile::NULL_H100,
            _ => Profile::NORMAL,
        }
    }
}

const DEFAULT_DRIVER_VERSION: i32 = 13040;
const MAX_DEVICES: usize = 64;

impl Config {
    /// Reads the settings through `get`. An invalid value is ignored, as if the variable were not set.
    pub fn read(get: impl Fn(&str) -> Option<String>, cpus: usize) -> Config {
        let number = |name: &str| get(name).and_then(|v| v.trim().parse::<u64>().ok()).filter(|&n| n > 0);
        let list = |name: &str| -> Vec<String> {
            get(name).map(|v| v.split(',').map(|s| s.trim().to_owned()).collect()).unwrap_or_default()
        };
        let count = (number("REMOTEGPU_SOFTGPU_DEVICES").unwrap_or(1) as usize).min(MAX_DEVICES);
        let (uuids, addresses) = (list("REMOTEGPU_SOFTGPU_UUIDS"), list("REMOTEGPU_SOFTGPU_PCI_IDS"));
        let card = |i: usize| {
            let given = (uuids.get(i).and_then(|t| parse_uuid(t)), addresses.get(i).and_then(|t| parse_pci(t)));
            (given.0.unwrap_or_else(|| uuid(i)), given.1.unwrap_or_else(|| pci_id(i)))
        };
        let mut cards: Vec<(CUuuid, PciId)> = (0..count).map(card).collect();
        let order = get(settings::DEVICE_ORDER);
        settings::put_in_order(order.as_deref(), &mut cards, |(_, pci)| (pci.domain, pci.bus, pci.device));
        let (uuids, pci) = cards.into_iter().unzip();
        let mut profile = Profile::named(get("REMOTEGPU_SOFTGPU_PROFILE").as_deref());
        profile.launch_micros = number("REMOTEGPU_SOFTGPU_LAUNCH_MICROS").unwrap_or(profile.launch_micros);
        profile.fill_micros = number("REMOTEGPU_SOFTGPU_FILL_MICROS").unwrap_or(profile.fill_micros);
        let profile_is_null = profile.model.null;
        Config {
            memory: number("REMOTEGPU_SOFTGPU_MEMORY").unwrap_or(profile.model.memory),
            uuids,
            pci,
            threads: number("REMOTEGPU_SOFTGPU_THREADS").map_or(cpus, |n| n.min(1024) as usize),
            driver_version: number("REMOTEGPU_SOFTGPU_DRIVER_VERSION")
                .map_or(DEFAULT_DRIVER_VERSION, |n| i32::try_from(n).unwrap_or(DEFAULT_DRIVER_VERSION)),
            profile,
            visible: get("CUDA_VISIBLE_DEVICES"),
            physical: get("REMOTEGPU_SOFTGPU_PHYSICAL").map(PathBuf::from),
            check: get("REMOTEGPU_CHECK"),
            rules: get(RULES_ENV).filter(|file| profile_is_null && !file.is_empty()),
            tally: get(TALLY_ENV),
        }
    }

    /// Returns the ordinals of the devices in CUDA_VISIBLE_DEVICES, in the order of the variable.
    pub fn visible_devices(&self) -> Vec<usize> {
        match &self.visible {
            None => (0..self.uuids.len()).collect(),
            Some(list) => select(list, &self.uuids),
        }
    }
}

/// Selects devices by CUDA's rules. An entry is an index, a UUID or the beginning of a UUID. The list ends at the first
/// entry that matches no device. If an entry repeats a device, the result is empty.
fn select(list: &str, uuids: &[CUuuid]) -> Vec<usize> {
    let mut chosen = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let found = if entry.starts_with("GPU-") {
            let mut matching = (0..uuids.len()).filter(|&i| uuid_text(&uuids[i]).starts_with(entry));
            matching.next().filter(|_| matching.next().is_none())
        } else {
            entry.parse::<usize>().ok().filter(|&i| i < uuids.len())
        };
        match found {
            Some(i) if chosen.contains(&i) => return Vec::new(),
            Some(i) => chosen.push(i),
            None => break,
        }
    }
    chosen
}

/// Returns the default UUID of a device: the product's name in ASCII, and the ordinal at the end.
fn uuid(ordinal: usize) -> CUuuid {
    let mut bytes = *b"remotegpu-soft\0\0";
    bytes[14..].copy_from_slice(&(ordinal as u16).to_be_bytes());
    CUuuid { bytes }
}

fn pci_id(ordinal: usize) -> PciId {
    PciId { domain: 0, bus: 1 + ordinal as u32, device: 0 }
}

/// Returns a UUID in the format of NVML and nvidia-smi.
pub fn uuid_text(uuid: &CUuuid) -> String {
    let hex: String = uuid.bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn parse_uuid(text: &str) -> Option<CUuuid> {
    let hex: Vec<u8> = text.strip_prefix("GPU-").unwrap_or(text).bytes().filter(|&b| b != b'-').collect();
    if hex.len() != 32 {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, digits) in bytes.iter_mut().zip(hex.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(CUuuid { bytes })
}

/// Parses `domain:bus:device.function` with hexadecimal numbers. The domain and the function are optional.
pub fn parse_pci(text: &str) -> Option<PciId> {
    let text = text.split('.').next()?;
    let mut parts: Vec<u32> =
        text.split(':').map(|part| u32::from_str_radix(part, 16)).collect::<Result<_, _>>().ok()?;
    if parts.len() == 2 {
        parts.insert(0, 0);
    }
    match parts[..] {
        [domain, bus, device] => Some(PciId { domain, bus, device }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(vars: &[(&str, &str)]) -> Config {
        let vars: Vec<(String, String)> = vars.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Config::read(|name| vars.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()), 4)
    }

    #[test]
    fn defaults_are_one_device_of_8_gib() {
        let config = config(&[]);
        assert_eq!((config.memory, config.uuids.len(), config.threads), (8 << 30, 1, 4));
        assert_eq!(config.profile, Profile::NORMAL);
        assert_eq!(config.visible_devices(), [0]);
    }

    #[test]
    fn devices_are_counted_by_address_if_asked_for() {
        let addresses = ("REMOTEGPU_SOFTGPU_PCI_IDS", "0000:09:00.0,0000:03:00.0");
        let buses = |order| {
            let two = config(&[("REMOTEGPU_SOFTGPU_DEVICES", "2"), addresses, ("CUDA_DEVICE_ORDER", order)]);
            [two.pci[0].bus, two.pci[1].bus]
        };
        assert_eq!([buses("FASTEST_FIRST"), buses("PCI_BUS_ID")], [[9, 3], [3, 9]]);
    }

    #[test]
    fn visible_devices_follow_cudas_rules() {
        let chosen = |list: &str| {
            config(&[("REMOTEGPU_SOFTGPU_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", list)]).visible_devices()
        };
        assert_eq!(chosen("2,0"), [2, 0]);
        assert_eq!(chosen("1,7,0"), [1]);
        assert_eq!(chosen("abc"), Vec::<usize>::new());
        assert_eq!(chosen("-1"), Vec::<usize>::new());
        assert_eq!(chosen(""), Vec::<usize>::new());
        assert_eq!(chosen("0,0"), Vec::<usize>::new());
        assert_eq!(chosen(&uuid_text(&uuid(1))), [1]);
        assert_eq!(chosen("GPU-72"), Vec::<usize>::new());
    }

    #[test]
    fn uuids_and_pci_ids_can_be_given() {
        let text = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        let config = config(&[("REMOTEGPU_SOFTGPU_UUIDS", text), ("REMOTEGPU_SOFTGPU_PCI_IDS", "0002:0a:1f.0")]);
        assert_eq!(uuid_text(&config.uuids[0]), text);
        assert_eq!(config.pci[0], PciId { domain: 2, bus: 10, device: 31 });
    }
}
