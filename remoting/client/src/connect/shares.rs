//! The shares of this process: from `remotegpu run`, or else from its pod.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;

use super::address;
use super::error::{ConnectError, ErrorKind};
use super::pod;
use super::share::{Place, Share};
use crate::program::log;

pub const SHARES: &str = "REMOTEGPU_SHARES";

/// Returns the shares of this process.
///
/// # Errors
/// `Settings` if there are none, or if their description is invalid.
pub fn shares() -> Result<Vec<Share>, ConnectError> {
    if let Ok(text) = std::env::var(SHARES) {
        return parse(&text);
    }
    pod::shares()?.ok_or_else(|| {
        let message = format!(
            "no GPU share: {SHARES} is not set and {} is not mounted; start the program with `remotegpu run -p 0.25 -- \
             COMMAND`, or in Kubernetes put `remotegpu/fraction: 0.25` under the container's resources.limits",
            pod::DIRECTORY
        );
        ConnectError::new(ErrorKind::Settings, message)
    })
}

/// Returns a share with its present description. In a pod, the appliance's address or authorities may have changed, or
/// the claim's only share may have moved to another appliance.
fn renewed(share: Share, described: &[Share]) -> Share {
    let same = |other: &&Share| other.lease_id == share.lease_id && other.server_name == share.server_name;
    match (described.iter().find(same), described) {
        (Some(now), _) => now.clone(),
        (None, [only]) if only.lease_id == share.lease_id => only.clone(),
        (None, _) => share,
    }
}

/// The new location of a lease that has moved.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Moved {
    pub endpoint: String,
    pub data_port: u16,
    pub server_name: Option<String>,
}

/// The new locations by the lease's old place. The new place maps to itself, because a session that began elsewhere
/// does not know the data port there.
static MOVED: Mutex<BTreeMap<Place, Moved>> = Mutex::new(BTreeMap::new());

/// Records that a lease has moved from `place`, as [`carrier::MOVED`] describes. Returns `None` if the message is
/// invalid. With `tell` it logs the new location for the user.
pub fn note_moved(place: &Place, told: &[u8], tell: bool) -> Option<()> {
    let moved: Moved = serde_json::from_slice(told).ok()?;
    address::split(&moved.endpoint, None)?;
    let to = Place {
        appliance: moved.server_name.clone().unwrap_or_else(|| moved.endpoint.clone()),
        lease_id: place.lease_id.clone(),
    };
    let mut all = MOVED.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(to.clone(), moved.clone());
    let before = all.insert(place.clone(), moved.clone());
    if tell && before.as_ref() != Some(&moved) {
        let (from, to) = (&place.appliance, to.appliance);
        log::error(&format!("the share on appliance {from} has moved to {to}; the program continues"));
    }
    Some(())
}

/// Returns the share at the appliance that has its lease now, and the data port there if the lease has moved.
pub fn followed(share: &Share) -> (Share, Option<u16>) {
    let described = share.claim.as_ref().and_then(|_| pod::shares().ok().flatten()).unwrap_or_default();
    let all = MOVED.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut share, mut port) = (share.clone(), None);
    while let Some(Moved { endpoint, data_port, server_name }) = all.get(&share.place()).cloned() {
        let before = share.place();
        (share, port) = (Share { endpoint, server_name, ..share }, Some(data_port));
        if share.place() == before {
            break;
        }
    }
    (renewed(share, &described), port)
}

fn parse(text: &str) -> Result<Vec<Share>, ConnectError> {
    let wrong = |why: String| {
        let next = "it is set by `remotegpu run`, start the program with that";
        ConnectError::new(ErrorKind::Settings, format!("{SHARES} cannot be used: {why}; {next}"))
    };
    let shares: Vec<Share> = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if shares.is_empty() {
        return Err(wrong("it lists no share".into()));
    }
    for share in &shares {
        share.address().ok_or_else(|| wrong(format!("`{}` is not HOST:PORT", share.endpoint)))?;
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(endpoint: &str) -> Share {
        let (lease_id, lease_secret) = ("ab".into(), "cd".into());
        Share {
            endpoint: endpoint.into(),
            lease_id,
            lease_secret,
            ca: None,
            server_name: None,
            asking: None,
            claim: None,
        }
    }

    #[test]
    fn reads_what_the_command_line_tool_sets() {
        let text =
            r#"[{"endpoint":"127.0.0.1:7070","lease_id":"ab","lease_secret":"cd","ca":null,"server_name":null}]"#;
        assert_eq!(parse(text).unwrap(), [share("127.0.0.1:7070")]);
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, part) in [
            ("", "EOF"),
            ("[]", "no share"),
            (r#"[{"endpoint":"a:1"}]"#, "lease_id"),
            (r#"[{"endpoint":"a","lease_id":"","lease_secret":""}]"#, "`a` is not HOST:PORT"),
            (r#"[{"endpoint":"a:99999","lease_id":"","lease_secret":""}]"#, "not HOST:PORT"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Settings);
            assert!(error.message.contains(part), "{}", error.message);
            assert!(error.message.contains("remotegpu run"), "{}", error.message);
        }
    }

    #[test]
    fn a_lease_that_has_moved_is_followed() {
        let at = |endpoint: &str| Share { lease_id: "moved".into(), ..share(endpoint) };
        let told = |endpoint: &str| format!(r#"{{"endpoint":"{endpoint}","data_port":9,"server_name":null}}"#);
        let moves = |from: &str, to: &str| note_moved(&at(from).place(), told(to).as_bytes(), true).unwrap();
        assert_eq!(note_moved(&at("a:1").place(), b"{}", true), None);
        assert_eq!(followed(&at("a:1")), (at("a:1"), None));
        moves("a:1", "b:2");
        moves("b:2", "c:3");
        assert_eq!(followed(&at("a:1")), (at("c:3"), Some(9)));
        moves("c:3", "a:1");
        assert_eq!(followed(&at("a:1")), (at("a:1"), Some(9)), "a session may have begun at b:2, with its port");
        assert_eq!(followed(&at("b:2")), (at("a:1"), Some(9)));
        // The claim's lease on another appliance has not moved.
        assert_eq!(followed(&at("d:4")), (at("d:4"), None));
    }

    #[test]
    fn the_pod_says_where_its_share_is_now() {
        let named = |endpoint: &str, name: &str| Share { server_name: Some(name.into()), ..share(endpoint) };
        let (was, there) = (named("10.0.0.1:7070", "a"), named("10.0.0.9:7070", "b"));
        let here = named("10.0.0.2:7070", "a");
        assert_eq!(renewed(was.clone(), &[there.clone(), here.clone()]), here);
        assert_eq!(renewed(was.clone(), std::slice::from_ref(&there)), there);
        assert_eq!(renewed(was.clone(), &[there.clone(), there]), was);
    }
}
