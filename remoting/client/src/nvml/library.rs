//! The devices that NVML shows, from the first `nvmlInit` to the last `nvmlShutdown`.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use driverapi::attributes::{
    CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, CUdevice_attribute,
};
use driverapi::nvml::*;
use driverapi::nvml_links::Reach;
use driverapi::settings;

use super::guard::Code;
use super::memo::Memo;
use crate::connect::{self, ConnectError, DeviceInfo, DeviceState, ErrorKind, Hello, Patience, Share};
use crate::devices;
use crate::program::log;

/// The first device handle. A handle is this number plus the device's index. It is never used as a pointer, so a wrong
/// handle does no harm.
const FIRST_HANDLE: usize = 0x6e76_0001;

pub struct Library {
    pub devices: Vec<Device>,
    /// The version in CUDA's numeric form: 13040 is 13.4.
    pub driver_version: i32,
    pub driver_release: String,
}

pub struct Device {
    pub index: u32,
    pub info: DeviceInfo,
    /// The index of the device in its share.
    place: usize,
    appliance: Arc<Appliance>,
}

struct Appliance {
    share: Share,
    /// The UUIDs of its devices.
    uuids: Vec<[u8; 16]>,
    state: Memo<Vec<DeviceState>, Code>,
}

/// The number of `nvmlInit` calls without a matching `nvmlShutdown`, and the devices that the first one found.
struct Users {
    count: u32,
    library: Option<Arc<Library>>,
}

static USERS: Mutex<Users> = Mutex::new(Users { count: 0, library: None });

pub fn init() -> Result<(), Code> {
    let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
    if users.library.is_none() {
        users.library = Some(Arc::new(find().map_err(|error| report(&error))?));
    }
    users.count = users.count.saturating_add(1);
    Ok(())
}

pub fn shutdown() -> Result<(), Code> {
    let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
    users.count = users.count.checked_sub(1).ok_or(NVML_ERROR_UNINITIALIZED)?;
    Ok(())
}

/// Returns the devices.
///
/// # Errors
/// `NVML_ERROR_UNINITIALIZED` before `nvmlInit` and after the last `nvmlShutdown`.
pub fn current() -> Result<Arc<Library>, Code> {
    let users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
    users.library.clone().filter(|_| users.count > 0).ok_or(NVML_ERROR_UNINITIALIZED)
}

fn find() -> Result<Library, ConnectError> {
    let shares = connect::shares()?;
    let found: Result<Vec<_>, _> =
        shares.into_iter().map(|share| Ok((connect::hello(&share, Patience::Short)?, share))).collect();
    Ok(Library::new(found?))
}

/// Logs the error and returns its code, which is never success.
fn report(error: &ConnectError) -> Code {
    log::error(&error.message);
    match error.kind {
        ErrorKind::Version => NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        ErrorKind::Refused | ErrorKind::Tls => NVML_ERROR_NO_PERMISSION,
        ErrorKind::Timeout => NVML_ERROR_TIMEOUT,
        _ => NVML_ERROR_DRIVER_NOT_LOADED,
    }
}

impl Library {
    fn new(found: Vec<(Hello, Share)>) -> Self {
        let oldest = found.iter().min_by_key(|(hello, _)| hello.driver_version);
        let (driver_version, driver_release) =
            oldest.map(|(hello, _)| (hello.driver_version, hello.driver_release.clone())).unwrap_or_default();
        let mut devices = Vec::new();
        for (hello, share) in found {
            let uuids = hello.devices.iter().map(|info| info.uuid).collect();
            let appliance = Arc::new(Appliance { share, uuids, state: Memo::default() });
            for (place, info) in hello.devices.into_iter().enumerate() {
                devices.push(Device { index: 0, info, place, appliance: Arc::clone(&appliance) });
            }
        }
        let order = std::env::var(settings::DEVICE_ORDER).ok();
        settings::put_in_order(order.as_deref(), &mut devices, |device| device.info.pci);
        for (device, index) in devices.iter_mut().zip(0..) {
            device.index = index;
        }
        Library { devices, driver_version, driver_release }
    }

    /// Returns the device with this handle.
    ///
    /// # Errors
    /// `NVML_ERROR_INVALID_ARGUMENT` if there is none.
    pub fn device(&self, handle: nvmlDevice_t) -> Result<&Device, Code> {
        let index = handle.addr().checked_sub(FIRST_HANDLE);
        index.and_then(|index| self.devices.get(index)).ok_or(NVML_ERROR_INVALID_ARGUMENT)
    }

    /// Returns the handle of the first device for which `is_it` returns true.
    ///
    /// # Errors
    /// `NVML_ERROR_NOT_FOUND` if there is none.
    pub fn find(&self, is_it: impl Fn(&Device) -> bool) -> Result<nvmlDevice_t, Code> {
        self.devices.iter().find(|device| is_it(device)).map(Device::handle).ok_or(NVML_ERROR_NOT_FOUND)
    }

    /// Returns the name of a process of the lease.
    ///
    /// # Errors
    /// `NVML_ERROR_NOT_FOUND` if the lease has no process with this id.
    pub fn process_name(&self, pid: u32) -> Result<String, Code> {
        for device in &self.devices {
            if let Some(process) = device.state()?.processes.into_iter().find(|process| process.pid == pid) {
                return Ok(process.name);
            }
        }
        Err(NVML_ERROR_NOT_FOUND)
    }
}

impl Device {
    pub fn handle(&self) -> nvmlDevice_t {
        std::ptr::without_provenance_mut::<c_void>(FIRST_HANDLE + self.index as usize)
    }

    /// Returns the value of a `CUdevice_attribute`, or `None` if it is 0 or missing.
    pub fn attribute(&self, number: CUdevice_attribute) -> Option<i32> {
        self.info.attributes.get(&(number as i32)).copied().filter(|value| *value != 0)
    }

    /// Returns how this device can access another device's memory.
    pub fn reach(&self, other: &Device) -> Reach {
        if self.index == other.index {
            return Reach::OWN;
        }
        let together = Arc::ptr_eq(&self.appliance, &other.appliance);
        let has = |attribute| together && self.info.peer_attribute(other.place as u32, attribute) != 0;
        Reach {
            memory: has(CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED),
            atomics: has(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED),
        }
    }

    /// Returns the device's changing values, which are at most 100 ms old.
    ///
    /// # Errors
    /// `NVML_ERROR_GPU_IS_LOST` if the appliance cannot be reached.
    pub fn state(&self) -> Result<DeviceState, Code> {
        let Appliance { share, uuids, state } = &*self.appliance;
        let states = state.get(|| {
            // Memory that is granted meanwhile is not in the appliance's answer, or not unused any more.
            let before: Vec<u64> = uuids.iter().map(devices::unused_memory).collect();
            let mut states = connect::device_state(share).map_err(|error| {
                log::error(&error.message);
                NVML_ERROR_GPU_IS_LOST
            })?;
            for ((state, uuid), before) in states.iter_mut().zip(uuids).zip(before) {
                state.leave_out_unused(std::process::id(), before.min(devices::unused_memory(uuid)));
            }
            Ok(states)
        })?;
        states.get(self.place).cloned().ok_or(NVML_ERROR_GPU_IS_LOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(driver_version: i32, names: &[&str]) -> (Hello, Share) {
        let device = |name: &&str| DeviceInfo {
            name: (*name).to_owned(),
            uuid: [1; 16],
            memory_bytes: 1 << 30,
            pci: [0, 1, 0],
            attributes: [(75, 8), (76, 0)].into(),
            gpu_uuid: String::new(),
            peers: [].into(),
        };
        let devices = names.iter().map(device).collect();
        let driver_release = format!("{driver_version}.1");
        let share = Share {
            endpoint: "127.0.0.1:1".into(),
            lease_id: String::new(),
            lease_secret: String::new(),
            ca: None,
            server_name: None,
            asking: None,
            claim: None,
        };
        (
            Hello {
                driver_version,
                driver_release,
                data_port: 2,
                tls: false,
                managed_mib: None,
                devices,
                environments: Vec::new(),
            },
            share,
        )
    }

    #[test]
    fn devices_of_all_shares_are_numbered_in_order() {
        let library = Library::new(vec![hello(13040, &["a", "b"]), hello(12080, &["c"])]);
        let names: Vec<_> = library.devices.iter().map(|d| (d.index, d.info.name.as_str(), d.place)).collect();
        assert_eq!(names, [(0, "a", 0), (1, "b", 1), (2, "c", 0)]);
        assert_eq!(
            (library.driver_version, library.driver_release.as_str()),
            (12080, "12080.1"),
            "of the oldest driver"
        );
    }

    #[test]
    fn only_handles_that_were_given_out_are_taken() {
        let library = Library::new(vec![hello(13040, &["a", "b"])]);
        for device in &library.devices {
            assert_eq!(library.device(device.handle()).map(|d| d.index), Ok(device.index));
        }
        for wrong in [0, 1, FIRST_HANDLE - 1, FIRST_HANDLE + 2, usize::MAX] {
            let handle = std::ptr::without_provenance_mut(wrong);
            assert_eq!(library.device(handle).map(|d| d.index), Err(NVML_ERROR_INVALID_ARGUMENT));
        }
    }
}
