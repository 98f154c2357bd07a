//! Reaching the appliances: their control service, and the data connection of a session.
//!
//! Every operation here takes at most [`TIMEOUT`], with these exceptions: [`dial::POLICY_DELAY`] more in a pod that the
//! network does not let in yet; for a call of the control service, the time that an appliance takes to restart; for the
//! first call of a pod's program, what [`first`] says. Every failure is one line that names the cause, the endpoint and
//! the next step. The control service is used through short-lived connections, on a thread of this library without
//! signals: the calling thread may run an async runtime of its own.

pub mod address;
mod control;
mod data;
mod descriptors;
mod dial;
mod error;
mod first;
mod handed;
mod lease;
mod local;
mod offload;
mod pod;
mod shares;
mod thread;
mod tls;

use std::collections::HashMap;
use std::time::Duration;

use driverapi::nvml_links::PcieLink;

pub use control::{device_state, open_session};
pub use data::{Carrier, open_data, open_data_over, open_memory, open_stripe, reopen_data};
pub use descriptors::open_fds;
pub use error::{ConnectError, ErrorKind};
pub use first::{Patience, hello, offload_hello};
pub use handed::Asking;
pub use lease::{Access, Event, Lease, LeaseWish, Site, SiteGpu, open_lease, site};
pub use offload::{Environment, Wish, close_offload_session, open_offload_session};
pub use pod::Claim;
pub use shares::{Ca, Share, shares};
pub use thread::no_thread;

/// The limit for one call, including connecting and TLS.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A lease that has moved this often since the search began is not searched for any more.
const MOST_MOVES: u32 = 8;

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
