//! Leases for launchers that start programs on a share: request a lease, keep it alive, close it.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use carrier::from_hex;
use carrier::proto::control_client::ControlClient;
use carrier::proto::open_lease_reply::Event as Told;
use carrier::proto::{
    CloseLeaseRequest, Gpu, Granted, HelloReply, HelloRequest, InventoryReply, InventoryRequest, OpenLeaseRequest,
};
use protocol::{Preface, PrefaceKind};
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::control::check_versions;
use super::data::{Carrier, Way, open};
use super::dial::{Answer, Target};
use super::error::{ConnectError, ErrorKind};
use super::offload::versions;
use super::share::{Ca, Share};
use super::shares::followed;
use super::thread;

/// The time limit for an answer. A user must get an error within five seconds.
const ANSWER: Duration = Duration::from_secs(4);
/// The maximum silence while a request waits. An appliance reports the reason every second.
const SILENCE: Duration = Duration::from_secs(15);

/// Credentials and TLS settings for an appliance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    pub token: Option<String>,
    /// The path of a PEM file with the trusted authorities. If it is set, the connection uses TLS.
    pub ca: Option<String>,
    /// The name in the certificate, if it differs from the host.
    pub server_name: Option<String>,
}

/// The requested lease; the fields are those of `OpenLeaseRequest`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseWish {
    pub count: u32,
    pub milli: u32,
    pub memory_bytes: u64,
    pub compute_milli: u32,
    pub compute_limit_milli: u32,
    pub client: String,
    pub wait: bool,
}

/// A description of an appliance, for choosing among several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Site {
    /// Whether the appliance is draining and opens no lease.
    pub draining: bool,
    /// Whether the appliance divides the time of its GPUs.
    pub turns: bool,
    pub gpus: Vec<SiteGpu>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SiteGpu {
    pub healthy: bool,
    pub shareable_bytes: u64,
    pub leased_bytes: u64,
}

#[derive(Debug)]
pub enum Event {
    /// The request waits, for the given reason.
    Waiting(String),
    Granted(Box<Lease>),
}

#[derive(Debug, Clone)]
pub struct Lease {
    pub share: Share,
    /// Whether the lease's GPUs are software GPUs.
    pub software: bool,
    /// The time for which the lease survives without its holding connection.
    pub grace: Duration,
    tls: bool,
    data_port: u16,
}

/// Requests a lease at `endpoint`, `HOST:PORT`. The received events end with a grant or an error. Drop the receiver to
/// cancel the request.
///
/// # Errors
/// If the endpoint is invalid, or no thread can be started. All other errors are received as events.
pub fn open_lease(
    endpoint: &str,
    access: &Access,
    wish: LeaseWish,
) -> Result<Receiver<Result<Event, ConnectError>>, ConnectError> {
    let share = no_share_yet(endpoint, access);
    let (sender, events) = channel();
    let caller = Caller { target: Target::new(&share, None)?, bearer: bearer(access)? };
    let started = thread::start("remotegpu-lease", async move || {
        if let Err(error) = caller.ask(share, wish, &sender).await {
            let _ = sender.send(Err(error));
        }
    });
    started.map_err(thread::no_thread)?;
    Ok(events)
}

/// Asks the appliance at `endpoint`, `HOST:PORT`, for its GPUs.
///
/// # Errors
/// If it cannot be reached, refuses, or has another version.
pub fn site(endpoint: &str, access: &Access) -> Result<Site, ConnectError> {
    let share = no_share_yet(endpoint, access);
    let caller = Caller { target: Target::new(&share, None)?, bearer: bearer(access)? };
    thread::run(async move || {
        let greeted = timeout(ANSWER, caller.greet(&share.endpoint)).await;
        let (_, _, _, inventory) = greeted.unwrap_or_else(|_| Err(caller.target.too_slow(ANSWER)))?;
        let gpu = |gpu: Gpu| SiteGpu {
            healthy: gpu.healthy,
            shareable_bytes: gpu.shareable_bytes,
            leased_bytes: gpu.leased_bytes,
        };
        Ok(Site {
            draining: inventory.draining,
            turns: inventory.compute_mode == "turns",
            gpus: inventory.gpus.into_iter().map(gpu).collect(),
        })
    })
}

fn no_share_yet(endpoint: &str, access: &Access) -> Share {
    Share {
        endpoint: endpoint.to_owned(),
        lease_id: String::new(),
        lease_secret: String::new(),
        ca: access.ca.clone().map(Ca::File),
        server_name: access.server_name.clone(),
        asking: None,
        claim: None,
    }
}

fn bearer(access: &Access) -> Result<Option<MetadataValue<Ascii>>, ConnectError> {
    let parsed = access.token.as_ref().map(|token| format!("Bearer {token}").parse()).transpose();
    parsed.map_err(|_| {
        let message = "the token has characters that no token has; see --token-file and REMOTEGPU_TOKEN";
        ConnectError::new(ErrorKind::Settings, message)
    })
}

struct Caller {
    target: Target,
    bearer: Option<MetadataValue<Ascii>>,
}

impl Caller {
    async fn ask(
        &self,
        mut share: Share,
        wish: LeaseWish,
        sender: &Sender<Result<Event, ConnectError>>,
    ) -> Result<(), ConnectError> {
        let greeted = timeout(ANSWER, self.greet(&share.endpoint)).await;
        let (mut control, answer, hello, inventory) = greeted.unwrap_or_else(|_| Err(self.target.too_slow(ANSWER)))?;
        let divides = inventory.compute_mode == "turns";
        if !divides && (wish.compute_milli, wish.compute_limit_milli) != (0, 1000) {
            // An appliance of an earlier version would ignore the request instead of refusing it.
            let message = format!(
                "{} does not divide the time of its GPUs: start it with --compute-mode turns, or leave out --compute and \
                 --compute-limit",
                share.endpoint
            );
            return Err(ConnectError::new(ErrorKind::Settings, message));
        }
        let request = self.request(OpenLeaseRequest {
            versions: Some(versions()),
            count: wish.count,
            milli: wish.milli,
            memory_bytes: wish.memory_bytes,
            client: wish.client,
            wait: wish.wait,
            compute_milli: wish.compute_milli,
            compute_limit_milli: wish.compute_limit_milli,
        });
        let silent = |_| self.target.too_slow(SILENCE);
        let opened = timeout(SILENCE, control.open_lease(request)).await;
        let mut events = match opened.map_err(silent)? {
            Ok(reply) => reply.into_inner(),
            Err(status) => return Err(self.explain(&answer, &status).await),
        };
        loop {
            let told = match timeout(SILENCE, events.message()).await.map_err(silent)? {
                Ok(reply) => reply.and_then(|reply| reply.event),
                Err(status) => return Err(self.explain(&answer, &status).await),
            };
            match told {
                Some(Told::Waiting(waiting)) => {
                    if sender.send(Ok(Event::Waiting(waiting.reason))).is_err() {
                        return Ok(());
                    }
                }
                Some(Told::Granted(Granted { lease_id, lease_secret, data_port, grace_seconds, .. })) => {
                    (share.lease_id, share.lease_secret) = (lease_id, lease_secret);
                    let grace = Duration::from_secs(grace_seconds.into());
                    let data_port = u16::try_from(data_port).unwrap_or_default();
                    let software = inventory.backend == "software";
                    let lease = Lease { share, software, grace, tls: hello.tls, data_port };
                    let _ = sender.send(Ok(Event::Granted(Box::new(lease))));
                    return Ok(());
                }
                None => {
                    let peer = self.target.peer();
                    let message = format!("{peer} ended the request for a share; is it shutting down?");
                    return Err(ConnectError::new(ErrorKind::Unreachable, message));
                }
            }
        }
    }

    async fn greet(
        &self,
        endpoint: &str,
    ) -> Result<(ControlClient<Channel>, Answer, HelloReply, InventoryReply), ConnectError> {
        let (channel, answer) = self.target.channel().await?;
        let mut control = ControlClient::new(channel);
        let request = HelloRequest { versions: Some(versions()), ..HelloRequest::default() };
        let hello = match control.hello(request).await {
            Ok(reply) => reply.into_inner(),
            Err(status) => return Err(self.explain(&answer, &status).await),
        };
        check_versions(endpoint, &hello, &versions())?;
        match control.inventory(self.request(InventoryRequest {})).await {
            Ok(reply) => Ok((control, answer, hello, reply.into_inner())),
            Err(status) => Err(self.explain(&answer, &status).await),
        }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(bearer) = &self.bearer {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        request
    }

    /// Converts a failed call to an error for the launcher that requests a lease.
    async fn explain(&self, answer: &Answer, status: &Status) -> ConnectError {
        let (peer, said) = (self.target.peer(), status.message());
        // tonic creates a status with a source for a broken connection.
        if status.source().is_some() {
            return self.target.no_grpc(answer, said).await;
        }
        let (kind, next) = match status.code() {
            Code::Unauthenticated => (ErrorKind::Refused, "; give the right one with --token-file or REMOTEGPU_TOKEN"),
            Code::PermissionDenied => (ErrorKind::Refused, ""),
            Code::ResourceExhausted => (ErrorKind::Busy, "; try later, or leave out --no-wait"),
            Code::FailedPrecondition => (ErrorKind::Busy, ""),
            Code::InvalidArgument => (ErrorKind::Settings, ""),
            Code::Unimplemented => {
                let message = format!("{peer} is not the control port of an appliance; its data port is one higher");
                return ConnectError::new(ErrorKind::NotAnAppliance, message);
            }
            _ => (ErrorKind::Appliance, "; see the appliance's log"),
        };
        ConnectError::new(kind, format!("{peer}: {said}{next}"))
    }
}

impl Lease {
    /// Opens a connection that keeps the lease alive. It goes to the appliance that has the lease now, and ends when
    /// the appliance or the network fails.
    ///
    /// # Errors
    /// If the appliance cannot be reached, or does not know the lease.
    pub fn hold(&self) -> Result<OwnedFd, ConnectError> {
        let parts = (from_hex(&self.share.lease_id), from_hex(&self.share.lease_secret));
        let (Some(id), Some(ticket)) = parts else { return Err(super::control::malformed(&self.share)) };
        let preface = Preface { kind: PrefaceKind::Lease, id, ticket };
        open(Carrier::Direct, &self.share, self.tls, Way { port: self.data_port, socket: "" }, &preface.into())
    }

    /// Returns the endpoint of the appliance that has the lease now.
    #[must_use]
    pub fn endpoint(&self) -> String {
        followed(&self.share).0.endpoint
    }

    /// Closes the lease.
    ///
    /// # Errors
    /// If the appliance does not answer. The lease then ends with its holding connection.
    pub fn close(&self) -> Result<(), ConnectError> {
        let target = Target::new(&followed(&self.share).0, None)?;
        let Share { lease_id, lease_secret, .. } = self.share.clone();
        thread::run(async move || {
            let caller = Caller { target, bearer: None };
            let closing = async {
                let (channel, answer) = caller.target.channel().await?;
                match ControlClient::new(channel).close_lease(CloseLeaseRequest { lease_id, lease_secret }).await {
                    Ok(_) => Ok(()),
                    Err(status) => Err(caller.explain(&answer, &status).await),
                }
            };
            timeout(ANSWER, closing).await.unwrap_or_else(|_| Err(caller.target.too_slow(ANSWER)))
        })
    }
}
