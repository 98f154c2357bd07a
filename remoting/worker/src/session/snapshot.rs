//! The description of the devices, which a client gets before it has a session.

use crate::driver::Driver;
use driverapi::attributes::{
    CHECKS_BOUNDS, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
    CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
    CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, LIBRARY_CAPABILITY_MAJOR, LIBRARY_CAPABILITY_MINOR, PTX_ONLY,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// The number of `CUdevice_attribute`s.
const ATTRIBUTES: u32 = 162;

/// The attributes that only the software GPU has. Every driver is asked for them.
const SOFTWARE: [u32; 4] = [PTX_ONLY, CHECKS_BOUNDS, LIBRARY_CAPABILITY_MAJOR, LIBRARY_CAPABILITY_MINOR];

/// The attributes of a pair of devices. Access to arrays of another device is not supported, so that attribute is 0.
const PEER_ATTRIBUTES: [u32; 3] = [
    CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK,
    CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
    CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
];

/// The attributes of features that are not supported. They are reported as 0, so that programs use other ways. The
/// functions of these features return 801.
const ABSENT: [u32; 51] = [
    17, // a limit on a kernel's run time: the appliance's screen does not concern the program
    86, 88, 89, 91, 100, 101,
    147, // concurrent access to managed and pageable memory, host atomics, registered pointers
    92, 93, 94, 148, // memory operations in streams: their first version, and reductions
    96,  // cooperative launches on several GPUs
    98, 110, 116, 117, 118, 119, 124, 146, 152, 161, // GPUDirect and DMA buffers
    104, 105, 128, 143, // sharing between processes by other means than descriptors
    84, 85, 132, 133, // other GPUs, multicast, MPS
    107, 112, 114, 121, // compression, sparse arrays, external semaphores, deferred mapping
    136, 137, // hardware decompression
    149, 157, // locality domains, which are divided as green contexts are
    135, 138, 151, 159, // graphics
    130, 142, 144, // pools of host memory
    153, 154, 155, 156, 158, // endpoints
];

#[derive(Debug, Serialize)]
pub struct Snapshot {
    driver_version: i32,
    wire: u32,
    table_hash: u64,
    /// Whether Landlock separates workers even if they have the same uid.
    landlock: bool,
    devices: Vec<Device>,
}

#[derive(Debug, Serialize)]
struct Device {
    name: String,
    uuid: String,
    memory_bytes: u64,
    pci: [i32; 3],
    attributes: BTreeMap<u32, i32>,
    /// Access to the memory of other GPUs, by their ordinal: each `CUdevice_P2PAttribute` and its value.
    peers: BTreeMap<i32, BTreeMap<u32, i32>>,
}

/// Returns the value of an attribute that clients see.
pub fn filtered(attribute: u32, value: i32) -> i32 {
    match attribute {
        // The workers of a lease implement this feature themselves (`shared_events`).
        CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED => 1,
        // Host memory is that of the client, on the program's machine.
        CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => 1,
        CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID => 0,
        _ if ABSENT.contains(&attribute) => 0,
        _ => value,
    }
}

/// Queries the driver and returns the description of all devices.
///
/// # Errors
/// The driver's error, a `CUresult`.
pub fn take(driver: &Driver) -> crate::driver::Result<Snapshot> {
    let devices = (0..driver.device_count()?).map(|ordinal| device(driver, driver.device(ordinal)?));
    Ok(Snapshot {
        driver_version: driver.version()?,
        wire: protocol::WIRE_VERSION,
        table_hash: protocol::TABLE_HASH,
        landlock: crate::guard::sandbox::has_landlock(),
        devices: devices.collect::<crate::driver::Result<_>>()?,
    })
}

fn device(driver: &Driver, device: i32) -> crate::driver::Result<Device> {
    let read = |attribute| Some((attribute, filtered(attribute, driver.device_attribute(attribute, device).ok()?)));
    let attributes: BTreeMap<u32, i32> = (1..ATTRIBUTES).chain(SOFTWARE).filter_map(read).collect();
    let pci = [50, 33, 34].map(|attribute| attributes.get(&attribute).copied().unwrap_or(0));
    Ok(Device {
        name: driver.device_name(device)?,
        uuid: driver.device_uuid(device)?.iter().map(|byte| format!("{byte:02x}")).collect(),
        memory_bytes: driver.device_memory(device)? as u64,
        pci,
        attributes,
        peers: peers(driver, device)?,
    })
}

fn peers(driver: &Driver, device: i32) -> crate::driver::Result<BTreeMap<i32, BTreeMap<u32, i32>>> {
    let mut peers = BTreeMap::new();
    for place in 0..driver.device_count()? {
        let other = driver.device(place)?;
        if other != device && driver.device_reaches(device, other)? {
            let value = |attribute| Some((attribute, driver.device_peer_attribute(attribute, device, other).ok()?));
            peers.insert(place, PEER_ATTRIBUTES.into_iter().filter_map(value).collect());
        }
    }
    Ok(peers)
}
