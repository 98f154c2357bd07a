//! The shares that the pod's volume describes: the claim, the appliances' addresses, and a token that proves the pod's
//! identity.

use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::{ConnectError, ErrorKind};
use super::share::{Ca, Claim, Share};

/// The mount point of the volume.
pub const DIRECTORY: &str = "/var/run/secrets/remotegpu.io";
/// The environment variable that replaces the mount point in tests.
const DIRECTORY_ENV: &str = "REMOTEGPU_POD_DIRECTORY";

/// The content of the file `session`. The operator writes it to an annotation of the pod, which kubelet mounts as this
/// file.
#[derive(Deserialize)]
struct Session {
    claim: ClaimName,
    ca: String,
    appliances: Vec<Place>,
}

#[derive(Deserialize)]
struct ClaimName {
    namespace: String,
    name: String,
    uid: String,
}

#[derive(Deserialize)]
struct Place {
    endpoint: String,
    server_name: String,
}

/// Returns the shares of this pod. Returns `None` outside of a pod, or if the pod did not request a share.
///
/// # Errors
/// `Settings` if a file of the volume is missing or invalid.
pub fn shares() -> Result<Option<Vec<Share>>, ConnectError> {
    let directory = std::env::var_os(DIRECTORY_ENV).map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from);
    let file = directory.join("session");
    match std::fs::read_to_string(&file) {
        Ok(text) => parse(&text, &file, directory.join("token")).map(Some),
        Err(error) if error.kind() == NotFound => Ok(None),
        Err(error) => Err(unusable(&file, &error)),
    }
}

fn parse(text: &str, file: &Path, token: PathBuf) -> Result<Vec<Share>, ConnectError> {
    if text.trim().is_empty() {
        let message = format!(
            "this pod has no GPU share yet ({} is empty): see why with `kubectl get gpuclaims`, then start it again",
            file.display()
        );
        return Err(ConnectError::new(ErrorKind::Settings, message));
    }
    let session: Session = serde_json::from_str(text).map_err(|error| unusable(file, &error))?;
    if session.appliances.is_empty() {
        return Err(unusable(file, &"it names no appliance"));
    }
    let ClaimName { namespace, name, uid } = session.claim;
    let claim = Claim { namespace, name, token };
    let share = |place: Place| {
        let share = Share {
            endpoint: place.endpoint,
            lease_id: uid.replace('-', ""),
            lease_secret: String::new(),
            ca: Some(Ca::Pem(session.ca.clone())),
            server_name: Some(place.server_name),
            asking: None,
            claim: Some(claim.clone()),
        };
        match share.address() {
            Some(_) => Ok(share),
            None => Err(unusable(file, &format!("`{}` is not HOST:PORT", share.endpoint))),
        }
    };
    session.appliances.into_iter().map(share).collect()
}

fn unusable(file: &Path, why: &dyn std::fmt::Display) -> ConnectError {
    let message = format!(
        "this pod's GPU share cannot be used: {}: {why}; the operator writes it: see its log, then start the pod again",
        file.display()
    );
    ConnectError::new(ErrorKind::Settings, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: &str = r#"{"claim": {"namespace": "team", "name": "train", "uid": "0a0b0c0d-1111-2222-3333-444455556666"},
        "ca": "PEM", "appliances": [{"endpoint": "10.244.1.5:7070", "server_name": "a.appliance.remotegpu.io"},
                                    {"endpoint": "10.244.2.5:7070", "server_name": "b.appliance.remotegpu.io"}]}"#;

    fn read(text: &str) -> Result<Vec<Share>, ConnectError> {
        parse(text, Path::new("/pod/session"), "/pod/token".into())
    }

    #[test]
    fn one_share_for_each_appliance_of_the_claim() {
        let shares = read(SESSION).unwrap();
        let claim = Claim { namespace: "team".into(), name: "train".into(), token: "/pod/token".into() };
        let expected = |endpoint: &str, server: &str| Share {
            endpoint: endpoint.into(),
            lease_id: "0a0b0c0d111122223333444455556666".into(),
            lease_secret: String::new(),
            ca: Some(Ca::Pem("PEM".into())),
            server_name: Some(server.into()),
            asking: None,
            claim: Some(claim.clone()),
        };
        let (a, b) = ("a.appliance.remotegpu.io", "b.appliance.remotegpu.io");
        assert_eq!(shares, [expected("10.244.1.5:7070", a), expected("10.244.2.5:7070", b)]);
    }

    #[test]
    fn says_what_is_wrong_and_what_to_do() {
        for (text, cause, next) in [
            ("", "/pod/session is empty", "kubectl get gpuclaims"),
            ("{", "EOF", "operator"),
            (&SESSION.replace("10.244.1.5:7070", "nowhere"), "`nowhere` is not HOST:PORT", "operator"),
            (&SESSION.replace("\"endpoint\"", "\"address\""), "endpoint", "operator"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Settings);
            assert!(error.message.contains(cause) && error.message.contains(next), "{}", error.message);
        }
    }

    #[test]
    fn a_pod_without_a_token_is_told_so() {
        let claim = Claim { namespace: "n".into(), name: "c".into(), token: "/nowhere/token".into() };
        let error = claim.bearer().unwrap_err();
        assert!(error.message.contains("/nowhere/token") && error.message.contains("create the pod again"), "{error}");
    }
}
