//! The answers of an appliance: its devices and environments, the ticket of a session, and the state of a device.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use carrier::proto;
use driverapi::nvml_links::PcieLink;
use serde::Serialize;

/// An appliance's answer before a session exists. The request takes nothing from the share.
#[derive(Debug, Clone, PartialEq)]
pub struct Hello {
    /// The version in CUDA's numeric form: 13040 is 13.4.
    pub driver_version: i32,
    /// The version in NVML's form, such as "580.65.06".
    pub driver_release: String,
    pub data_port: u16,
    pub tls: bool,
    /// The default limit of managed memory for a program, in MiB.
    pub managed_mib: Option<u32>,
    /// The devices of the lease, in the share's order.
    pub devices: Vec<DeviceInfo>,
    /// The Python environments for offload. Empty if the appliance does not offer offload.
    pub environments: Vec<Environment>,
}

/// A GPU of a lease.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceInfo {
    pub name: String,
    /// The share's own UUID. Two shares of one GPU have different ones.
    pub uuid: [u8; 16],
    pub memory_bytes: u64,
    /// The PCI domain, bus and device.
    pub pci: [u32; 3],
    /// The value of each `CUdevice_attribute` that the device reports.
    pub attributes: HashMap<i32, i32>,
    /// The UUID of the physical GPU, for display.
    pub gpu_uuid: String,
    /// For each other device of the lease whose memory this one can access, by index: the values by
    /// `CUdevice_P2PAttribute`.
    pub peers: HashMap<u32, HashMap<i32, i32>>,
}

impl DeviceInfo {
    /// Returns a P2P attribute of this device and the device with index `place` in the lease. Returns 0 if this device
    /// cannot access its memory.
    pub fn peer_attribute(&self, place: u32, attribute: u32) -> i32 {
        let peer = self.peers.get(&place);
        peer.and_then(|attributes| attributes.get(&i32::try_from(attribute).ok()?)).copied().unwrap_or(0)
    }
}

/// A secret for opening a session's data connection. It is valid for the first connection within 10 s. Later
/// connections use it to prove that they belong to this session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTicket {
    pub session_id: [u8; 16],
    pub ticket: [u8; 32],
    pub data_port: u16,
    /// The path of the Unix socket for clients on the appliance's machine, or empty.
    pub data_socket: String,
    /// The time for which the session survives without a connection.
    pub grace: Duration,
    /// The protocol version of the session.
    pub wire: u32,
}

impl SessionTicket {
    /// Returns the session's id in hexadecimal, as the control service uses it.
    #[must_use]
    pub fn id(&self) -> String {
        self.session_id.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The changing values of a device of the lease. A value is `None` if the device does not report it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceState {
    /// The present size of the share.
    pub memory_bytes: u64,
    pub memory_used_bytes: u64,
    pub gpu_utilization_percent: Option<u32>,
    pub memory_utilization_percent: Option<u32>,
    pub temperature_celsius: Option<u32>,
    pub power_milliwatt: Option<u32>,
    pub power_limit_milliwatt: Option<u32>,
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    /// The PCIe link of the GPU in the appliance's machine.
    pub pcie: Option<PcieLink>,
    /// The processes of this lease. Other processes are not listed.
    pub processes: Vec<Process>,
}

impl DeviceState {
    /// Counts `unused` bytes as free, which the appliance counts as used: process `pid` was granted them, and has not
    /// allocated them.
    pub fn leave_out_unused(&mut self, pid: u32, unused: u64) {
        self.memory_used_bytes = self.memory_used_bytes.saturating_sub(unused);
        // Processes of two containers may have the same number.
        let mut own = self.processes.iter_mut().filter(|process| process.pid == pid);
        if let (Some(process), None) = (own.next(), own.next()) {
            process.memory_bytes = process.memory_bytes.saturating_sub(unused);
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub memory_bytes: u64,
}

/// A Python environment of an appliance, with an accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Environment {
    pub name: String,
    /// "cuda", "rocm", "xpu" or "cpu".
    pub backend: String,
    /// The version of Python, such as "3.12.4".
    pub python: String,
    /// The version of each installed distribution, such as "torch" -> "2.15.0".
    pub packages: BTreeMap<String, String>,
    pub devices: Vec<String>,
}

impl From<proto::Environment> for Environment {
    fn from(said: proto::Environment) -> Self {
        let proto::Environment { name, backend, python, packages, devices } = said;
        Environment { name, backend, python, packages: packages.into_iter().collect(), devices }
    }
}
