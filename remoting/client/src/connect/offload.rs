//! Sessions in which an appliance runs Python for this program (docs/offload.md).

use std::collections::BTreeMap;

use super::answers::{Environment, Hello, SessionTicket};
use super::control::{self, call, malformed, ticket};
use super::error::ConnectError;
use super::share::Share;
use carrier::proto::{self, CloseSessionRequest, OpenSessionRequest, Versions};

/// The requested properties of a session. An empty field allows any value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wish {
    pub environment: String,
    /// The accepted back ends, the preferred one first.
    pub backends: Vec<String>,
    /// The version of Python that the program uses, such as "3.12.4".
    pub python: String,
    /// The versions of the program's packages, such as "torch" -> "2.15.0".
    pub packages: BTreeMap<String, String>,
    /// Whether other minor versions of Python and torch are accepted.
    pub allow_skew: bool,
    /// The program's process id, for display.
    pub pid: u32,
    pub process_name: String,
}

impl Wish {
    /// Returns whether the environment has the requested name and back end. The appliance checks the versions.
    pub fn may_be(&self, environment: &Environment) -> bool {
        (self.environment.is_empty() || self.environment == environment.name)
            && (self.backends.is_empty() || self.backends.contains(&environment.backend))
    }
}

/// Returns the versions of a program without CUDA calls.
pub fn versions() -> Versions {
    Versions { table_hash: 0, ..control::versions() }
}

/// Starts an acceptor on the appliance.
///
/// # Errors
/// If the lease has ended, or the appliance does not accept this session.
pub fn open_offload_session(
    share: &Share,
    hello: &Hello,
    wish: &Wish,
) -> Result<(SessionTicket, Environment), ConnectError> {
    let request = OpenSessionRequest {
        versions: Some(versions()),
        lease_id: share.lease_id.clone(),
        lease_secret: share.lease_secret.clone(),
        pid: wish.pid,
        process_name: wish.process_name.clone(),
        offload: Some(proto::Offload {
            environment: wish.environment.clone(),
            backends: wish.backends.clone(),
            python: wish.python.clone(),
            packages: wish.packages.clone().into_iter().collect(),
            allow_skew: wish.allow_skew,
        }),
        process: String::new(),
    };
    let reply = call(share, async move |mut control| control.open_session(request).await)?;
    let ticket = ticket(share, hello, &reply)?;
    let environment = reply.environment.ok_or_else(|| malformed(share))?;
    Ok((ticket, environment.into()))
}

/// Closes a session whose data connection has ended. Returns the exit code of its process, or the negative number of
/// the signal that killed it.
///
/// # Errors
/// If the lease has ended, or the appliance cannot be reached.
pub fn close_offload_session(share: &Share, ticket: &SessionTicket) -> Result<i32, ConnectError> {
    let (session_id, lease_secret) = (ticket.id(), share.lease_secret.clone());
    let request = CloseSessionRequest { session_id, lease_secret, client_ended: false };
    Ok(call(share, async move |mut control| control.close_session(request).await)?.exit_code)
}
