//! Calls of an appliance's control service.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

use carrier::proto::control_client::ControlClient;
use carrier::proto::{
    CloseSessionRequest, Device, DeviceStateRequest, HelloReply, HelloRequest, Neighbour, OpenSessionReply,
    OpenSessionRequest, Versions,
};
use carrier::{MOVED_METADATA, from_hex};
use driverapi::nvml_links::PcieLink;
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::answers::{DeviceInfo, DeviceState, Hello, Process, SessionTicket};
use super::dial::{Answer, Target};
use super::error::{ConnectError, ErrorKind, with_causes};
use super::limits::{MOST_MOVES, TIMEOUT};
use super::share::Share;
use super::shares::{followed, note_moved};
use super::thread;
use crate::program::{identity, log};

/// Asks an appliance for its version and the lease's devices. `ours` are the versions of the program. If the appliance
/// does not answer, retries for `patience`.
pub fn greet(share: &Share, ours: Versions, patience: Duration) -> Result<Hello, ConnectError> {
    let request = HelloRequest {
        versions: Some(ours.clone()),
        lease_id: share.lease_id.clone(),
        lease_secret: share.lease_secret.clone(),
    };
    let reply = call_for(patience, share, async move |mut control| control.hello(request).await)?;
    check_versions(&share.endpoint, &reply, &ours)?;
    let devices = reply.devices.into_iter().map(device).collect::<Option<Vec<_>>>();
    let data_port = u16::try_from(reply.data_port).ok().filter(|port| *port != 0);
    let (Some(devices), Some(data_port)) = (devices, data_port) else { return Err(malformed(share)) };
    Ok(Hello {
        driver_version: reply.driver_version,
        driver_release: reply.driver_release,
        data_port,
        tls: reply.tls,
        managed_mib: reply.managed_mib,
        devices,
        environments: reply.environments.into_iter().map(Into::into).collect(),
    })
}

/// Starts this process's worker on the appliance.
///
/// # Errors
/// If the lease has ended, or the appliance does not accept a session.
pub fn open_session(share: &Share, hello: &Hello) -> Result<SessionTicket, ConnectError> {
    let request = OpenSessionRequest {
        versions: Some(versions()),
        lease_id: share.lease_id.clone(),
        lease_secret: share.lease_secret.clone(),
        pid: std::process::id(),
        process_name: identity::name(),
        offload: None,
        process: identity::identity().unwrap_or_default(),
    };
    let mut told = false;
    loop {
        let request = request.clone();
        let reply = call(share, async move |mut control| control.open_session(request).await)?;
        if reply.suspended.is_empty() {
            let ticket = ticket(share, hello, &reply)?;
            tell_of_ends(share, &reply.neighbours);
            return Ok(ticket);
        }
        // The appliance waits a second before it sends this answer.
        if !std::mem::replace(&mut told, true) {
            let (peer, reason) = (&share.endpoint, &reply.suspended);
            log::error(&format!("the share on appliance {peer} is suspended ({reason}); CUDA calls wait for it"));
        }
    }
}

/// The maximum time for reporting ended processes. A ticket is valid for only ten seconds.
const AT_MOST: Duration = Duration::from_secs(2);

/// Reports processes of the lease that have ended. The kernel of this machine may know of some that the appliance
/// cannot see. Stops at the first failure, because a broken network would use up the time for which the ticket is
/// valid.
fn tell_of_ends(share: &Share, neighbours: &[Neighbour]) {
    let begun = Instant::now();
    let ended = neighbours.iter().filter(|one| identity::has_ended(one.pid, &one.process));
    for session_id in ended.map(|one| one.session_id.clone()) {
        let request = CloseSessionRequest { session_id, lease_secret: share.lease_secret.clone(), client_ended: true };
        let told = call(share, async move |mut control| control.close_session(request).await);
        if told.is_err() || begun.elapsed() > AT_MOST {
            return;
        }
    }
}

/// Returns the present state of the lease's devices.
///
/// # Errors
/// If the lease has ended, or the appliance cannot be reached.
pub fn device_state(share: &Share) -> Result<Vec<DeviceState>, ConnectError> {
    let (lease_id, lease_secret) = (share.lease_id.clone(), share.lease_secret.clone());
    let request = DeviceStateRequest { lease_id, lease_secret };
    let reply = call(share, async move |mut control| control.device_state(request).await)?;
    Ok(reply.devices.into_iter().map(state).collect())
}

/// A bearer token that identifies the pod. `None` if the lease's secret identifies the caller.
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    fn of(share: &Share) -> Result<Bearer, ConnectError> {
        let Some(claim) = &share.claim else { return Ok(Bearer(None)) };
        let value = format!("Bearer {}", claim.bearer()?).parse().map_err(|_| {
            let message = format!("{} holds no token; create the pod again", claim.token.display());
            ConnectError::new(ErrorKind::Settings, message)
        })?;
        Ok(Bearer(Some(value)))
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = self.0.take() {
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }
}

/// The time for which calls are retried. An appliance that restarts answers again within this time.
pub const STARTS_ANEW: Duration = Duration::from_secs(5);
pub const PAUSE: Duration = Duration::from_millis(100);

/// Calls the control service of the appliance that has the share's lease now. If it does not answer, retries for
/// [`STARTS_ANEW`].
pub fn call<T: Send + 'static, F>(
    share: &Share,
    method: impl FnOnce(ControlClient<InterceptedService<Channel, Bearer>>) -> F + Clone + Send + 'static,
) -> Result<T, ConnectError>
where
    F: Future<Output = Result<Response<T>, Status>> + Send,
{
    call_for(STARTS_ANEW, share, method)
}

fn call_for<T: Send + 'static, F>(
    patience: Duration,
    share: &Share,
    method: impl FnOnce(ControlClient<InterceptedService<Channel, Bearer>>) -> F + Clone + Send + 'static,
) -> Result<T, ConnectError>
where
    F: Future<Output = Result<Response<T>, Status>> + Send,
{
    let (begun, mut moves) = (Instant::now(), 1);
    loop {
        match call_at(&followed(share).0, method.clone()) {
            Err(error) if error.kind == ErrorKind::Moved && moves < MOST_MOVES => moves += 1,
            // The appliance may be down while its gateway accepts the connection and closes it.
            Err(error) if is_away(&error) && begun.elapsed() < patience => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}

fn is_away(error: &ConnectError) -> bool {
    matches!(error.kind, ErrorKind::Unreachable | ErrorKind::NotAnAppliance | ErrorKind::Timeout)
}

fn call_at<T: Send + 'static, F>(
    share: &Share,
    method: impl FnOnce(ControlClient<InterceptedService<Channel, Bearer>>) -> F + Send + 'static,
) -> Result<T, ConnectError>
where
    F: Future<Output = Result<Response<T>, Status>> + Send,
{
    let target = Target::new(share, None)?;
    let bearer = Bearer::of(share)?;
    thread::run(async move || {
        let exchange = async {
            let (channel, answer) = target.channel().await?;
            let reply = method(ControlClient::with_interceptor(channel, bearer)).await;
            match reply {
                Ok(reply) => Ok(reply.into_inner()),
                Err(status) => Err(explain(&target, &answer, &status).await),
            }
        };
        let limit = target.limit(TIMEOUT);
        timeout(limit, exchange).await.unwrap_or_else(|_| Err(target.too_slow(limit)))
    })
}

/// Converts a failed call to an error that the user understands.
pub async fn explain(target: &Target, answer: &Answer, status: &Status) -> ConnectError {
    if let Some(told) = status.metadata().get(MOVED_METADATA)
        && note_moved(&target.place, told.as_bytes(), true).is_some()
    {
        return ConnectError::new(ErrorKind::Moved, format!("the lease is no longer at {}", target.peer()));
    }
    // tonic creates a status with a source for a broken connection. All others come from the appliance.
    if status.source().is_some() {
        return target.no_grpc(answer, &with_causes(status)).await;
    }
    let (peer, said) = (target.peer(), status.message());
    let (kind, message) = match status.code() {
        Code::Unauthenticated | Code::PermissionDenied | Code::NotFound => {
            (ErrorKind::Refused, format!("{peer} refuses this process: {said}; {}", target.lease_ended()))
        }
        Code::Unimplemented => (
            ErrorKind::NotAnAppliance,
            format!("{peer} speaks gRPC but has no such remotegpu service; correct the port (control, not data)"),
        ),
        Code::FailedPrecondition => (ErrorKind::Version, format!("{peer} and this client do not fit: {said}")),
        Code::ResourceExhausted | Code::Unavailable => {
            (ErrorKind::Busy, format!("{peer} has no room for this process: {said}; try again later"))
        }
        code => (ErrorKind::Appliance, format!("{peer} failed ({code}): {said}; see the appliance's log")),
    };
    ConnectError::new(kind, message)
}

/// Returns this client's versions. A program without CUDA calls sends a table hash of 0, which every appliance accepts.
pub fn versions() -> Versions {
    Versions {
        wire: protocol::WIRE_VERSION,
        oldest: protocol::OLDEST_WIRE,
        table_hash: protocol::TABLE_HASH,
        program: concat!("remotegpu ", env!("CARGO_PKG_VERSION")).to_owned(),
    }
}

pub fn check_versions(peer: &str, reply: &HelloReply, ours: &Versions) -> Result<(), ConnectError> {
    let theirs = reply.versions.clone().unwrap_or_default();
    let why = if !reply.refusal.is_empty() {
        reply.refusal.clone()
    } else if fits(ours, &theirs) {
        return Ok(());
    } else {
        let what = match theirs.wire.cmp(&ours.wire) {
            Ordering::Less => "upgrade the appliance",
            Ordering::Equal => "install the same build on both",
            Ordering::Greater => "upgrade the client",
        };
        format!("it is {}, this client is {}: {what}", name(&theirs), name(ours))
    };
    Err(ConnectError::new(ErrorKind::Version, format!("{peer} and this client do not fit: {why}")))
}

/// Returns whether both sides support a common version. If their newest versions are equal, their tables must be equal,
/// too.
fn fits(a: &Versions, b: &Versions) -> bool {
    let same = a.wire != b.wire || a.table_hash == b.table_hash || a.table_hash == 0 || b.table_hash == 0;
    same && a.wire.min(b.wire) >= oldest(a).max(oldest(b))
}

fn oldest(versions: &Versions) -> u32 {
    if versions.oldest == 0 { versions.wire } else { versions.oldest }
}

fn name(versions: &Versions) -> String {
    let (program, oldest, wire) = (&versions.program, oldest(versions), versions.wire);
    format!("{program} (wire {oldest} to {wire}, table {:016x})", versions.table_hash)
}

pub fn malformed(share: &Share) -> ConnectError {
    let message = format!("{} sent an answer that makes no sense; see the appliance's log", share.endpoint);
    ConnectError::new(ErrorKind::Appliance, message)
}

fn device(device: Device) -> Option<DeviceInfo> {
    Some(DeviceInfo {
        name: device.name,
        uuid: device.uuid.as_slice().try_into().ok()?,
        memory_bytes: device.memory_bytes,
        pci: [device.pci_domain, device.pci_bus, device.pci_device],
        attributes: device.attributes.into_iter().collect::<HashMap<_, _>>(),
        gpu_uuid: device.gpu_uuid,
        peers: device.peers.into_iter().map(|peer| (peer.device, peer.attributes.into_iter().collect())).collect(),
    })
}

pub fn ticket(share: &Share, hello: &Hello, reply: &OpenSessionReply) -> Result<SessionTicket, ConnectError> {
    if !reply.refusal.is_empty() {
        let message = format!("{} takes no session: {}", share.endpoint, reply.refusal);
        return Err(ConnectError::new(ErrorKind::Busy, message));
    }
    let parts = (from_hex(&reply.session_id), from_hex(&reply.ticket), u16::try_from(reply.data_port));
    let (Some(session_id), Some(ticket), Ok(port)) = parts else { return Err(malformed(share)) };
    let data_port = if port == 0 { hello.data_port } else { port };
    let grace = Duration::from_secs(reply.grace_seconds.into());
    let data_socket = reply.data_socket.clone();
    Ok(SessionTicket { session_id, ticket, data_port, data_socket, grace, wire: reply.wire })
}

fn state(state: carrier::proto::DeviceState) -> DeviceState {
    let process = |process: carrier::proto::Process| Process {
        pid: process.pid,
        name: process.name,
        memory_bytes: process.memory_bytes,
    };
    let pcie = || {
        Some(PcieLink {
            generation: state.pcie_generation?,
            width: state.pcie_width?,
            max_generation: state.pcie_max_generation?,
            max_width: state.pcie_max_width?,
        })
    };
    DeviceState {
        pcie: pcie(),
        memory_bytes: state.memory_bytes,
        memory_used_bytes: state.memory_used_bytes,
        gpu_utilization_percent: state.gpu_utilization_percent,
        memory_utilization_percent: state.memory_utilization_percent,
        temperature_celsius: state.temperature_celsius,
        power_milliwatt: state.power_milliwatt,
        power_limit_milliwatt: state.power_limit_milliwatt,
        sm_clock_mhz: state.sm_clock_mhz,
        memory_clock_mhz: state.memory_clock_mhz,
        processes: state.processes.into_iter().map(process).collect(),
    }
}
