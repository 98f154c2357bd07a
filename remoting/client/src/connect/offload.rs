//! Sessions in which an appliance runs Python for this one (docs/offload.md).

use std::collections::BTreeMap;

use super::answers::{Environment, Hello, SessionTicket};
use super::control::{self, call, malformed, ticket};
use super::error::ConnectError;
use super::share::Share;
use carrier::proto::{self, CloseSessionRequest, OpenSessionRequest, Versions};

/// The requested properties of a session; an empty field allows any value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wish {
    pub environment: String,
    /// Best first.
    pub backends: Vec<String>,
    /// The program's own version of Python, "3.12.4".
    pub python: String,
    /// The program's own packages: "torch" -> "2.15.0".
    pub packages: BTreeMap<String, String>,
    /// Other minor versions of Python and torch will do.
    pub allow_skew: bool,
    /// The program's process id, for people.
    pub pid: u32,
    pub process_name: String,
}

impl Wish {
    /// Whether an environment is the named one and of one of the back ends; the appliance judges the versions.
    pub fn may_be(&self, environment: &Environment) -> bool {
        (self.environment.is_empty() || self.environment == environment.name)
            && (self.backends.is_empty() || self.backends.contains(&environment.backend))
    }
}

/// Returns the versions of a program that makes no CUDA calls.
pub fn versions() -> Versions {
    Versions { table_hash: 0, ..control::versions() }
}

/// Starts an acceptor on the appliance.
///
/// # Errors
/// If the lease has ended, or the appliance takes no such session.
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

/// Ends a session whose data connection has ended. Returns the exit code of its process, or minus the signal that ended
/// it.
///
/// # Errors
/// If the lease has ended, or the appliance cannot be reached.
pub fn close_offload_session(share: &Share, ticket: &SessionTicket) -> Result<i32, ConnectError> {
    let (session_id, lease_secret) = (ticket.id(), share.lease_secret.clone());
    let request = CloseSessionRequest { session_id, lease_secret, client_ended: false };
    Ok(call(share, async move |mut control| control.close_session(request).await)?.exit_code)
}
