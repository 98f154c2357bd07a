//! The command-line options of the gateway.

use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `HOST:PORT` of the data port. With port 0 the kernel chooses the port.
    pub listen: String,
    /// `HOST:PORT` of the control port, like `listen`.
    pub control_listen: String,
    /// The path of a Unix socket that serves like the data port. Its folder belongs only to the appliance's user.
    pub data_socket: Option<PathBuf>,
    /// The path of the Unix socket on which the appliance's control service receives the control port's connections.
    pub control_socket: PathBuf,
    /// The number of the inherited `SOCK_SEQPACKET` descriptor to the appliance.
    pub control_fd: i32,
    pub tls: Option<KeyPair>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

pub const USAGE: &str = "usage: remotegpu-gateway --listen HOST:PORT --control-listen HOST:PORT --control-socket PATH \
    --control-fd N [--data-socket PATH] [--cert FILE --key FILE]";

impl Options {
    /// Parses the arguments of the command line.
    ///
    /// # Errors
    /// A message of one line.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
        let (mut listen, mut control_listen, mut control_socket, mut control_fd) = (None, None, None, None);
        let (mut data_socket, mut certificate, mut key) = (None, None, None);
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value; {USAGE}"))?;
            match name.as_str() {
                "--listen" => listen = Some(value),
                "--control-listen" => control_listen = Some(value),
                "--control-socket" => control_socket = Some(PathBuf::from(value)),
                "--control-fd" => {
                    let number = value.parse().ok().filter(|number| *number > 2);
                    control_fd = Some(number.ok_or_else(|| format!("--control-fd {value} is no descriptor; {USAGE}"))?);
                }
                "--data-socket" => data_socket = Some(PathBuf::from(value)),
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
        let required = (listen, control_listen, control_socket, control_fd);
        let (Some(listen), Some(control_listen), Some(control_socket), Some(control_fd)) = required else {
            return Err(format!("only --data-socket, --cert and --key may be left out; {USAGE}"));
        };
        Ok(Options { listen, data_socket, control_listen, control_socket, control_fd, tls })
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
        let options = Options {
            listen: "127.0.0.1:0".into(),
            data_socket: Some("/tmp/d".into()),
            control_listen: "127.0.0.1:7070".into(),
            control_socket: "/tmp/c".into(),
            control_fd: 5,
            tls: Some(pair),
        };
        let control = "--control-listen 127.0.0.1:7070 --control-socket /tmp/c --control-fd 5 --data-socket /tmp/d";
        assert_eq!(parse(&format!("--listen 127.0.0.1:0 {control} --cert c.pem --key k.pem")), Ok(options));
    }

    #[test]
    fn refuses_what_it_cannot_mean() {
        for line in ["", "--listen a:1", "--listen", "--listen a:1 --control-fd x", "--listen a:1 --control-fd 0"] {
            assert!(parse(line).unwrap_err().contains("usage:"), "{line}");
        }
        assert!(parse("--listen a:1 --control-fd 3 --cert c").unwrap_err().contains("go together"));
    }
}
