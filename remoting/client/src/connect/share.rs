//! A share: a lease on one appliance, and in a pod the claim of the lease.

use std::path::PathBuf;

use serde::Deserialize;

use super::address;
use super::error::{ConnectError, ErrorKind};
use super::handed::Asking;

/// A lease on one appliance.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Share {
    /// The address of the control service: `HOST:PORT`.
    pub endpoint: String,
    pub lease_id: String,
    /// The secret of the lease. Empty for the share of a claim.
    pub lease_secret: String,
    /// The authorities for the appliance's certificate. Without them the connection does not use TLS.
    #[serde(default)]
    pub ca: Option<Ca>,
    /// The name in the certificate, if it differs from the endpoint's host.
    #[serde(default)]
    pub server_name: Option<String>,
    /// In an acceptor of offload, the socket on which it requests connections.
    #[serde(default)]
    pub asking: Option<Asking>,
    /// In a pod, the claim of the lease.
    #[serde(skip)]
    pub claim: Option<Claim>,
}

/// Certificate authorities, in PEM form.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum Ca {
    File(String),
    Pem(String),
}

impl From<String> for Ca {
    fn from(path: String) -> Self {
        Ca::File(path)
    }
}

impl std::fmt::Display for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ca::File(path) => write!(f, "the CA file {path}"),
            Ca::Pem(_) => f.write_str("the CA certificates of this pod's session"),
        }
    }
}

impl Share {
    /// Returns the host (an IPv6 address without its brackets) and the port of the control service.
    pub(super) fn address(&self) -> Option<(&str, u16)> {
        address::split(&self.endpoint, None)
    }

    pub(super) fn place(&self) -> Place {
        let appliance = self.server_name.clone().unwrap_or_else(|| self.endpoint.clone());
        Place { lease_id: self.lease_id.clone(), appliance }
    }
}

/// The claim that this share belongs to, and the proof of identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    /// The path of the token. It is read for each call, because kubelet replaces it before it expires.
    pub token: PathBuf,
}

impl Claim {
    /// Returns the command that shows the user more about the claim.
    pub fn describe(&self) -> String {
        format!("see `kubectl describe gpuclaim {} -n {}`", self.name, self.namespace)
    }

    /// Returns the token.
    ///
    /// # Errors
    /// `Settings` if there is no token.
    pub fn bearer(&self) -> Result<String, ConnectError> {
        let token = std::fs::read_to_string(&self.token).map_err(|error| error.to_string());
        let token = token.and_then(|text| match text.trim() {
            "" => Err("it is empty".to_owned()),
            token => Ok(token.to_owned()),
        });
        token.map_err(|why| {
            let file = self.token.display();
            let next = "the pod's volume `remotegpu` was changed: create the pod again without that change";
            ConnectError::new(ErrorKind::Settings, format!("this pod's token {file} cannot be used: {why}; {next}"))
        })
    }
}

/// A lease and the appliance that has it. On each of its appliances, a claim has a lease of the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub(super) lease_id: String,
    pub(super) appliance: String,
}
