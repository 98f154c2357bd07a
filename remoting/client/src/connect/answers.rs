//! The answers of an appliance: its devices and environments, the ticket of a session, and the state of a device.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use carrier::proto;
use driverapi::nvml_links::PcieLink;
use serde::Serialize;

/// An appliance's answer before a session exists. Asking takes nothing from the share.
#[derive(Debug, Clone, PartialEq)]
pub struct Hello {
    /// CUDA's form: 13040 is 13.4.
    pub driver_version: i32,
    /// NVML's form: "580.65.06".
    pub driver_release: String,
    pub data_port: u16,
    pub tls: bool,
    /// The managed memory that a program may have if it sets nothing itself, in MiB.
    pub managed_mib: Option<u32>,
    /// The devices of the lease, in the share's order.
    pub devices: Vec<DeviceInfo>,
    /// The Python environments for offload; none on an appliance without.
    pub environments: Vec<Environment>,
}

/// A GPU as the holder of a lease sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceInfo {
    pub name: String,
    /// The share's own UUID; distinct for two shares of one GPU.
    pub uuid: [u8; 16],
    pub memory_bytes: u64,
    /// Domain, bus, device.
    pub pci: [u32; 3],
    /// `CUdevice_attribute` and its value.
    pub attributes: HashMap<i32, i32>,
    /// The UUID of the physical GPU, for people.
    pub gpu_uuid: String,
    /// The devices of the lease whose memory this one reaches, by their places: `CUdevice_P2PAttribute` and its value.
    pub peers: HashMap<u32, HashMap<i32, i32>>,
}

impl DeviceInfo {
    /// Returns a P2P attribute of this device and another one of the lease; 0 if this one does not reach its memory.
    pub fn peer_attribute(&self, place: u32, attribute: u32) -> i32 {
        let peer = self.peers.get(&place);
        peer.and_then(|attributes| attributes.get(&i32::try_from(attribute).ok()?)).copied().unwrap_or(0)
    }
}

/// A ticket that is valid for one data connection within 10 s, and proves that another connection is this session's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTicket {
    pub session_id: [u8; 16],
    pub ticket: [u8; 32],
    pub data_port: u16,
    /// The Unix socket for a client on the appliance's machine; empty: none.
    pub data_socket: String,
    /// How long the session lives without a connection.
    pub grace: Duration,
    /// The version of the wire that the session speaks.
    pub wire: u32,
}

impl SessionTicket {
    /// The session's id in hexadecimal, as the control service names it.
    #[must_use]
    pub fn id(&self) -> String {
        self.session_id.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The changing values of a device of the lease. `None`: the device does not report the value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceState {
    /// The share's size now.
    pub memory_bytes: u64,
    pub memory_used_bytes: u64,
    pub gpu_utilization_percent: Option<u32>,
    pub memory_utilization_percent: Option<u32>,
    pub temperature_celsius: Option<u32>,
    pub power_milliwatt: Option<u32>,
    pub power_limit_milliwatt: Option<u32>,
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    /// The PCIe link of the GPU in its machine.
    pub pcie: Option<PcieLink>,
    /// The processes of this lease only.
    pub processes: Vec<Process>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub memory_bytes: u64,
}

/// A Python of an appliance, with an accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Environment {
    pub name: String,
    /// "cuda", "rocm", "xpu" or "cpu".
    pub backend: String,
    /// "3.12.4".
    pub python: String,
    /// The versions by distribution: "torch" -> "2.15.0".
    pub packages: BTreeMap<String, String>,
    pub devices: Vec<String>,
}

impl From<proto::Environment> for Environment {
    fn from(said: proto::Environment) -> Self {
        let proto::Environment { name, backend, python, packages, devices } = said;
        Environment { name, backend, python, packages: packages.into_iter().collect(), devices }
    }
}
