//! The shares that `remotegpu run` gave this process.

use serde::Deserialize;

use super::error::{ConnectError, ErrorKind};

pub const SHARES: &str = "REMOTEGPU_SHARES";

/// A lease on one appliance.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Share {
    /// Of the control service: `HOST:PORT`.
    pub endpoint: String,
    pub lease_id: String,
    pub lease_secret: String,
    /// PEM file of the authorities that may have signed the appliance's certificate; without it no TLS is spoken.
    #[serde(default)]
    pub ca: Option<String>,
    /// The name in the certificate, where it is not the endpoint's host.
    #[serde(default)]
    pub server_name: Option<String>,
}

/// # Errors
/// `Settings` if the variable is missing or does not have its form.
pub fn shares_from_env() -> Result<Vec<Share>, ConnectError> {
    match std::env::var(SHARES) {
        Ok(text) => parse(&text),
        Err(_) => Err(ConnectError::new(
            ErrorKind::Settings,
            format!("no GPU share: {SHARES} is not set; start the program with `remotegpu run -p 0.25 -- COMMAND`"),
        )),
    }
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

impl Share {
    /// Host (an IPv6 address without its brackets) and port of the control service.
    pub(super) fn address(&self) -> Option<(&str, u16)> {
        let (host, port) = self.endpoint.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        (!host.is_empty()).then_some((host, port.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(endpoint: &str) -> Share {
        let (lease_id, lease_secret) = ("ab".into(), "cd".into());
        Share { endpoint: endpoint.into(), lease_id, lease_secret, ca: None, server_name: None }
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
    fn an_ipv6_address_stands_in_brackets() {
        assert_eq!(share("[::1]:7070").address(), Some(("::1", 7070)));
        assert_eq!(share("gpu.example:80").address(), Some(("gpu.example", 80)));
    }
}
