//! The command line.

use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `HOST:PORT`; port 0 lets the kernel choose.
    pub listen: String,
    /// Number of the inherited `SOCK_SEQPACKET` descriptor.
    pub control_fd: i32,
    pub tls: Option<KeyPair>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

pub const USAGE: &str = "usage: remotegpu-gateway --listen HOST:PORT --control-fd N [--cert FILE --key FILE]";

impl Options {
    /// # Errors
    /// One line for a person.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
        let (mut listen, mut control_fd, mut certificate, mut key) = (None, None, None, None);
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value; {USAGE}"))?;
            match name.as_str() {
                "--listen" => listen = Some(value),
                "--control-fd" => {
                    let number = value.parse().ok().filter(|number| *number > 2);
                    control_fd = Some(number.ok_or_else(|| format!("--control-fd {value} is no descriptor; {USAGE}"))?);
                }
                "--cert" => certificate = Some(PathBuf::from(value)),
                "--key" => key = Some(PathBuf::from(value)),
                _ => return Err(format!("unknown option {name}; {USAGE}")),
            }
        }
        let tls = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(KeyPair { certificate, key }),
            (None, None) => None,
            _ => return Err(format!("--cert and --key go together; {USAGE}")),
        };
        let (Some(listen), Some(control_fd)) = (listen, control_fd) else {
            return Err(format!("--listen and --control-fd are required; {USAGE}"));
        };
        Ok(Options { listen, control_fd, tls })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn reads_the_interface_of_the_appliance() {
        let pair = KeyPair { certificate: "c.pem".into(), key: "k.pem".into() };
        assert_eq!(
            parse("--listen 127.0.0.1:0 --control-fd 5 --cert c.pem --key k.pem"),
            Ok(Options { listen: "127.0.0.1:0".into(), control_fd: 5, tls: Some(pair) })
        );
    }

    #[test]
    fn refuses_what_it_cannot_mean() {
        for line in ["", "--listen a:1", "--listen", "--listen a:1 --control-fd x", "--listen a:1 --control-fd 0"] {
            assert!(parse(line).unwrap_err().contains("usage:"), "{line}");
        }
        assert!(parse("--listen a:1 --control-fd 3 --cert c").unwrap_err().contains("go together"));
    }
}
