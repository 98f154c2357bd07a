//! The devices that the program sees: the devices of all shares, limited and ordered by `CUDA_VISIBLE_DEVICES`. Also
//! records which of them may access each other's memory.

use super::context::Context;
use super::memory::DeviceMemory;
use crate::Code;
use crate::connect::{self, ConnectError, DeviceInfo, ErrorKind, Hello, Patience, SessionTicket, Share};
use crate::locks::{Ordered, Rank};
use crate::program::{log, process, stats, sys};
use crate::session::{Opening, Reason, Reconnect, Retry, Session, lock, wanted_stripes};
use driverapi::attributes::*;
use driverapi::errors::*;
use driverapi::settings;
use protocol::PeerAccess;
use std::sync::{Arc, Mutex, OnceLock};

/// One appliance of the lease, and its session, which begins with the first context.
pub struct Appliance {
    share: Share,
    hello: Hello,
    session: Ordered<Option<Arc<Session>>>,
}

/// The limits for launches on a device, and the kinds of launches that it supports.
#[derive(Clone, Copy, Debug)]
pub struct LaunchLimits {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub threads: u32,
    pub multiprocessors: u32,
    pub has_clusters: bool,
    pub is_cooperative: bool,
}

pub struct Device {
    /// The index by which the program names the device.
    pub ordinal: i32,
    /// The index by which the worker names the device.
    pub index: u32,
    pub info: DeviceInfo,
    pub appliance: Arc<Appliance>,
    pub memory: DeviceMemory,
    pub primary: Arc<Context>,
    launch_limits: LaunchLimits,
}

/// A reason why a device may access this process's memory on another device of the same appliance: a context, a pool, a
/// mapping or an import. The worker allows access per pair of devices, so one reason gives access to all this memory.
pub struct Access {
    session: Arc<Session>,
    device: &'static Device,
    /// Dropped without withdrawing the access, because kernels may still run when a context ends.
    reason: Reason,
}

struct Platform {
    devices: Vec<Device>,
    driver_version: i32,
}

/// Returns the platform, and finds it at the first call. If no device was found, a later call searches again, but
/// without waiting.
fn platform() -> Result<&'static Platform, Code> {
    static PLATFORM: OnceLock<Platform> = OnceLock::new();
    static ASKED: Mutex<bool> = Mutex::new(false);
    if let Some(platform) = PLATFORM.get() {
        return Ok(platform);
    }
    let mut asked = lock(&ASKED);
    if let Some(platform) = PLATFORM.get() {
        return Ok(platform);
    }
    let patience = if std::mem::replace(&mut *asked, true) { Patience::Once } else { Patience::First };
    let appliances = find_appliances(patience).map_err(|error| report(&error))?;
    Ok(PLATFORM.get_or_init(|| Platform::new(appliances)))
}

/// Logs a notice that memory checks exist only on the native software GPU, and that the program runs without them.
fn tell_of_a_check() {
    if let Some(check) = std::env::var_os("REMOTEGPU_CHECK").filter(|check| !check.is_empty() && check != "0") {
        log::error(&format!(
            "REMOTEGPU_CHECK={} checks nothing on a share, only natively: use `remotegpu run --native -- COMMAND`",
            check.to_string_lossy()
        ));
    }
}

fn find_appliances(patience: Patience) -> Result<Vec<Appliance>, ConnectError> {
    tell_of_a_check();
    let greet = |share: Share| {
        stats::round_trip();
        let hello = connect::hello(&share, patience)?;
        Ok(Appliance { share, hello, session: Ordered::new(Rank::Appliance, None) })
    };
    let find = || connect::shares()?.into_iter().map(greet).collect();
    sys::aside("remotegpu-find", find).map_err(connect::no_thread)?
}

/// Logs the error and returns its code, which is never 0.
fn report(error: &ConnectError) -> Code {
    log::error_unless_repeated(&error.message);
    match error.kind {
        ErrorKind::Version => CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        ErrorKind::Refused | ErrorKind::Tls => CUDA_ERROR_NOT_PERMITTED,
        ErrorKind::Busy => CUDA_ERROR_DEVICE_UNAVAILABLE,
        _ => CUDA_ERROR_NO_DEVICE,
    }
}

impl Platform {
    fn new(appliances: Vec<Appliance>) -> Self {
        let driver_version = appliances.iter().map(|a| a.hello.driver_version).min().unwrap_or(0);
        let mut all = Vec::new();
        for appliance in appliances.into_iter().map(Arc::new) {
            let infos = appliance.hello.devices.clone();
            all.extend(infos.into_iter().zip(0..).map(|(info, index)| (Arc::clone(&appliance), index, info)));
        }
        let order = std::env::var(settings::DEVICE_ORDER).ok();
        settings::put_in_order(order.as_deref(), &mut all, |(_, _, info)| info.pci);
        let uuids: Vec<_> = all.iter().map(|(_, _, info)| uuid_text(&info.uuid)).collect();
        let chosen = match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(list) => visible(&list, &uuids),
            Err(_) => (0..all.len()).collect(),
        };
        let make = |(ordinal, place): (i32, usize)| {
            let (appliance, index, info) = all[place].clone();
            let launch_limits = launch_limits(&info);
            let tells_bounds = info.attributes.get(&(CHECKS_BOUNDS as i32)) == Some(&1);
            let memory = DeviceMemory::new(index, info.memory_bytes, tells_bounds);
            Device { ordinal, index, info, appliance, memory, primary: Context::primary(ordinal), launch_limits }
        };
        let devices = (0..).zip(chosen).map(make).collect();
        Platform { devices, driver_version }
    }
}

/// Returns the indices of the devices that a `CUDA_VISIBLE_DEVICES` list names. The list ends at its first invalid
/// entry. No device is returned twice.
fn visible(list: &str, uuids: &[String]) -> Vec<usize> {
    let find = |entry: &str| match entry.parse::<usize>() {
        Ok(index) => Some(index).filter(|index| *index < uuids.len()),
        Err(_) if entry.starts_with("GPU-") && entry.len() > 4 => {
            let matches: Vec<_> = (0..uuids.len()).filter(|i| uuids[*i].starts_with(&entry.to_lowercase())).collect();
            matches.first().copied().filter(|_| matches.len() == 1)
        }
        Err(_) => None,
    };
    let chosen: Vec<_> = list.split(',').map_while(|entry| find(entry.trim())).collect();
    let twice = chosen.iter().enumerate().any(|(i, device)| chosen[..i].contains(device));
    if twice { Vec::new() } else { chosen }
}

/// Returns the text "gpu-…" in lower case, for comparison with the user's list.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]).to_lowercase()
}

/// Connects to the appliances and finds the devices, at the first call.
///
/// # Errors
/// `CUDA_ERROR_NO_DEVICE`, or a code that says why there is no device.
pub fn initialise() -> Result<(), Code> {
    if platform()?.devices.is_empty() {
        return Err(CUDA_ERROR_NO_DEVICE);
    }
    process::set_initialised();
    Ok(())
}

/// Returns the version of CUDA that the driver supports.
///
/// # Errors
/// Those of [`initialise`].
pub fn driver_version() -> Result<i32, Code> {
    Ok(platform()?.driver_version)
}

/// Returns all devices that the program sees.
///
/// # Errors
/// `CUDA_ERROR_NOT_INITIALIZED`.
pub fn all() -> Result<&'static [Device], Code> {
    process::check_initialised()?;
    Ok(&platform()?.devices)
}

/// Returns the device with this ordinal.
///
/// # Errors
/// `CUDA_ERROR_INVALID_DEVICE`.
pub fn get(ordinal: i32) -> Result<&'static Device, Code> {
    let index = usize::try_from(ordinal).map_err(|_| CUDA_ERROR_INVALID_DEVICE);
    all()?.get(index?).ok_or(CUDA_ERROR_INVALID_DEVICE)
}

/// Returns the number of bytes of the device with this UUID that this process was granted and has not allocated.
pub fn unused_memory(uuid: &[u8; 16]) -> u64 {
    let devices = all().unwrap_or_default();
    devices.iter().find(|device| device.info.uuid == *uuid).map_or(0, |device| device.memory.unused_if_free())
}

impl Device {
    /// Returns the appliance's default limit of managed memory in MiB, or `None` if it has no such limit.
    pub fn managed_mib(&self) -> Option<u32> {
        self.appliance.hello.managed_mib
    }

    /// Returns the session of this device's appliance. The first call attaches the device.
    ///
    /// # Errors
    /// The reason why there is no session.
    pub fn session(&self) -> Result<Arc<Session>, Code> {
        let mut current = self.appliance.session.lock();
        if let Some(session) = &*current {
            return session.check().map(|()| Arc::clone(session));
        }
        let attached = sys::aside("remotegpu-attach", || attach(&self.appliance));
        let session = attached.map_err(|error| report(&connect::no_thread(error)))??;
        *current = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Returns the value of an attribute, or 0 if the appliance does not report it.
    pub fn attribute(&self, attribute: u32) -> i32 {
        i32::try_from(attribute).ok().and_then(|key| self.info.attributes.get(&key)).copied().unwrap_or(0)
    }

    pub fn launch_limits(&self) -> &LaunchLimits {
        &self.launch_limits
    }

    /// Returns the value of an attribute of two devices, or 0 if they cannot access each other's memory.
    pub fn peer_attribute(&self, peer: &Device, attribute: u32) -> i32 {
        let together = Arc::ptr_eq(&self.appliance, &peer.appliance);
        if together { self.info.peer_attribute(peer.index, attribute) } else { 0 }
    }

    pub fn can_reach(&self, peer: &Device) -> bool {
        self.peer_attribute(peer, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED) != 0
    }
}

impl Access {
    /// Gives `device` access to the memory of `peer`, until all reasons for it have ended.
    ///
    /// # Errors
    /// `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED`, or the reason why there is no session.
    pub fn new(device: &'static Device, peer: &'static Device) -> Result<Access, Code> {
        if !device.can_reach(peer) {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let session = device.session()?;
        let (device_index, peer) = (device.index, peer.index);
        let allow = || session.post(0, &PeerAccess { device: device_index, peer, allowed: true }).map(drop);
        let reason = session.reached.add((device_index, peer), allow)?;
        Ok(Access { session, device, reason })
    }

    /// Returns the device that may access the other device's memory.
    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// Ends this reason. If it was the only one, waits for the device's work and withdraws the access.
    ///
    /// # Errors
    /// The code of failed work.
    pub fn end(self) -> Result<(), Code> {
        if let Ok(live) = self.device.primary.live()
            && !live.is_idle()
        {
            live.synchronise()?;
        }
        let Access { session, reason, .. } = self;
        let withdraw = |(device, peer)| session.post(0, &PeerAccess { device, peer, allowed: false }).map(drop);
        session.reached.end(reason, withdraw)
    }
}

/// Translates an error for functions that take devices. CUDA uses another code in functions that take contexts.
pub fn unreachable_device(code: Code) -> Code {
    if code == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED { CUDA_ERROR_INVALID_DEVICE } else { code }
}

fn launch_limits(info: &DeviceInfo) -> LaunchLimits {
    let get = |attribute: u32| info.attributes.get(&(attribute as i32)).map_or(0, |value| *value as u32);
    LaunchLimits {
        grid: [
            CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
            CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
            CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
        ]
        .map(get),
        block: [
            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
        ]
        .map(get),
        threads: get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        multiprocessors: get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        has_clusters: get(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0,
        is_cooperative: get(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) != 0,
    }
}

fn attach(appliance: &Appliance) -> Result<Arc<Session>, Code> {
    let (share, hello) = (&appliance.share, &appliance.hello);
    stats::round_trip();
    let ticket = connect::open_session(share, hello).map_err(|error| report(&error))?;
    let opening = Opening::new(ticket.wire);
    let socket = connect::open_data(share, hello, &ticket, opening.frame()).map_err(|error| report(&error))?;
    let reconnect = (!ticket.grace.is_zero()).then(|| reconnect(appliance, ticket.clone()));
    let session = Session::start(socket, &share.endpoint, opening, reconnect).map_err(|line| {
        log::error(&line);
        CUDA_ERROR_DEVICE_UNAVAILABLE
    })?;
    let (here, memory) = (share.clone(), ticket.clone());
    session.share_memory_by(move || connect::open_memory(&here, &memory));
    if share.claim.is_some() {
        session.show_end();
    }
    let (share, hello) = (share.clone(), hello.clone());
    session.stripe_by(wanted_stripes(), move |number| connect::open_stripe(&share, &hello, &ticket, number));
    Ok(session)
}

fn reconnect(appliance: &Appliance, ticket: SessionTicket) -> Reconnect {
    let (share, hello, grace) = (appliance.share.clone(), appliance.hello.clone(), ticket.grace);
    let connect = move |epoch, received| {
        connect::reopen_data(&share, &hello, &ticket, epoch, received).map_err(|error| match error.kind {
            ErrorKind::Gone => Retry::Never(error.message),
            _ => Retry::Later(error.message),
        })
    };
    Reconnect { grace, connect: Box::new(connect) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_as_cuda_reads_the_list() {
        let uuids = [uuid_text(&[0x11; 16]), uuid_text(&[0x12; 16]), uuid_text(&[0x2f; 16])].map(|u| u.to_lowercase());
        let see = |list| visible(list, &uuids);
        assert_eq!(see("0,2"), [0, 2]);
        assert_eq!(see(" 1 , 0"), [1, 0]);
        assert_eq!(see(""), [0; 0]);
        assert_eq!(see("-1"), [0; 0]);
        assert_eq!(see("1,7,0"), [1], "what follows an invalid entry is not seen");
        assert_eq!(see("0,0"), [0; 0]);
        assert_eq!(see("gpu"), [0; 0]);
    }
}
