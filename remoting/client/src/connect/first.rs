//! The first exchange with an appliance, and how long a program waits for it.
//!
//! A pod's network may come up after its program: the enforcer of network policies learns of the pod, a sidecar of a
//! service mesh starts, an appliance moves. Reporting too early that there is no GPU makes a framework compute on the
//! CPU.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use carrier::proto::Versions;

use super::answers::Hello;
use super::control::{self, STARTS_ANEW, greet};
use super::error::{ConnectError, ErrorKind};
use super::share::Share;
use super::{offload, thread};
use crate::program::{log, sys};

/// How long to wait for an appliance that cannot be reached. One that refuses answers at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// A program's first call of CUDA, or its first session of offload: in a pod as long as a session outlives its
    /// connection.
    First,
    /// The next call, after the first one got the answer that there is no device.
    Once,
    /// NVML, behind which a person or a monitor waits, and one of several appliances of which any will do.
    Short,
}

const IN_A_POD: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(5);
/// A program that waits longer says so.
const QUIETLY: Duration = Duration::from_secs(2);

/// Asks an appliance who it is and what the lease holds.
///
/// # Errors
/// If there is no appliance, or it and this client do not fit.
pub fn hello(share: &Share, patience: Patience) -> Result<Hello, ConnectError> {
    ask(share, control::versions(), patience)
}

/// Like [`hello`], for a program that makes no CUDA calls: asks which environments there are.
///
/// # Errors
/// As [`hello`].
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

/// Returns within [`SHORT`].
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
