//! The first exchange with an appliance, and the time that a program waits for it.
//!
//! A pod's network may start later than its program: network policies must take effect, a sidecar of a service mesh
//! must start, or an appliance is just moving. If the client reported too early that there is no GPU, a framework would
//! compute on the CPU.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use carrier::proto::Versions;

use super::answers::Hello;
use super::control::{self, STARTS_ANEW, greet};
use super::error::{ConnectError, ErrorKind};
use super::share::Share;
use super::{offload, thread};
use crate::program::{log, sys};

/// The time that a caller waits for an appliance that cannot be reached. A refusal is never retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// For a program's first CUDA call or first offload session. In a pod this is a minute, the time for which a
    /// session survives without a connection.
    First,
    /// One attempt. For the calls after the first call, if that call found no device.
    Once,
    /// For NVML, because a user or a monitor waits, and for one of several appliances of which any will do.
    Short,
}

const IN_A_POD: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(5);
/// The time after which a waiting program logs that it waits.
const QUIETLY: Duration = Duration::from_secs(2);

/// Asks an appliance for its version and for the lease's devices.
///
/// # Errors
/// If there is no appliance, or its version is incompatible with this client.
pub fn hello(share: &Share, patience: Patience) -> Result<Hello, ConnectError> {
    ask(share, control::versions(), patience)
}

/// Like [`hello`], for a program without CUDA calls. Asks for the Python environments.
///
/// # Errors
/// Those of [`hello`].
pub fn offload_hello(share: &Share, patience: Patience) -> Result<Hello, ConnectError> {
    ask(share, offload::versions(), patience)
}

fn ask(share: &Share, ours: Versions, patience: Patience) -> Result<Hello, ConnectError> {
    let begun = Instant::now();
    match (patience, &share.claim) {
        (Patience::First, None) => greet(share, ours, STARTS_ANEW),
        (Patience::First, Some(claim)) => {
            let answer = in_background(share, ours, IN_A_POD)?;
            if let Ok(said) = answer.recv_timeout(QUIETLY) {
                return said;
            }
            let (peer, seconds, describe) = (&share.endpoint, IN_A_POD.as_secs(), claim.describe());
            log::error(&format!(
                "this pod's appliance {peer} is not reached yet; the program waits for it up to {seconds} s; {describe}"
            ));
            let said = answer.recv().map_err(thread::no_thread)??;
            let waited = begun.elapsed().as_secs_f32();
            log::error(&format!("appliance {peer} is reached after {waited:.1} s; the program goes on"));
            Ok(said)
        }
        (Patience::Once, _) => promptly(share, ours, Duration::ZERO),
        (Patience::Short, _) => promptly(share, ours, STARTS_ANEW),
    }
}

/// Asks the appliance. Returns its answer, or a timeout error after [`SHORT`].
fn promptly(share: &Share, ours: Versions, patience: Duration) -> Result<Hello, ConnectError> {
    in_background(share, ours, patience)?.recv_timeout(SHORT).unwrap_or_else(|_| {
        let (peer, seconds) = (&share.endpoint, SHORT.as_secs());
        let next = "check that the appliance runs and that no firewall is in between";
        Err(ConnectError::new(ErrorKind::Timeout, format!("no answer from {peer} within {seconds} s; {next}")))
    })
}

fn in_background(
    share: &Share,
    ours: Versions,
    patience: Duration,
) -> Result<Receiver<Result<Hello, ConnectError>>, ConnectError> {
    let (sender, answer) = channel();
    let share = share.clone();
    let asked = sys::spawn("remotegpu-hello", move || drop(sender.send(greet(&share, ours, patience))));
    asked.map_err(thread::no_thread)?;
    Ok(answer)
}
