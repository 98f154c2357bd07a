//! The options of `remotegpu run` that this program implements. The only input besides the arguments is the token's
//! file.

use std::ffi::OsString;

use remotegpu_client::connect::{Access, LeaseWish, address};

use crate::exits::{Failure, USAGE, reason};
use crate::native::Profile;
use crate::quantities::{fraction, memory, part_of_time};

pub const HELP: &str = "\
Usage: remotegpu-run [OPTIONS] [--] COMMAND...
       remotegpu-run --hold [OPTIONS] [-- NAME...]

Runs a command on a share of a GPU of an appliance.

  -a, --appliance HOST:PORT   the appliance, or several with commas, or REMOTEGPU_APPLIANCE
  -n, --count NUMBER          how many GPUs; 1
  -p, --fraction PART         part of each GPU, as 0.25
  -m, --memory SIZE           memory of each GPU, as 4GiB
      --compute PART          of each GPU's time at least this
      --compute-limit PART    of each GPU's time at most this
      --managed-memory SIZE   managed memory that the program may have
      --wait, --no-wait       wait until the share is free; --wait
      --native                on a software GPU in the command's own process, without an appliance
      --profile NAME          what that GPU is like: normal, hostile, slow or null-h100
      --hold                  run nothing: print as JSON what makes a program use the share, and hold the share until
                              standard input ends
      --token TOKEN           or REMOTEGPU_TOKEN; better by file or variable
      --token-file FILE       or REMOTEGPU_TOKEN_FILE
      --ca FILE               certificate authority of the appliance, turns TLS on; or REMOTEGPU_CA
      --server-name NAME      name in the certificate, if not the host; or REMOTEGPU_SERVER_NAME

Exit code: the command's own; before it runs 2 usage, 69 no appliance, 70 not complete, 75 share not available, 76
versions do not fit, 77 token, 126 not executable, 127 command not found.";

const DEFAULT_PORT: u16 = 7070;
const ONLY_IN_PYTHON: [&str; 3] = ["--report", "--report-file", "--trace"];

#[derive(Debug, PartialEq, Eq)]
pub enum Job {
    Help,
    Run(Options),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub place: Place,
    pub wish: LeaseWish,
    pub managed_mib: Option<u64>,
    /// The command and its arguments. Empty only with `--hold`.
    pub command: Vec<OsString>,
    pub hold: bool,
}

/// The GPUs that the command uses.
#[derive(Debug, PartialEq, Eq)]
pub enum Place {
    /// Software GPUs in the command's process.
    Native(Profile),
    Appliances {
        endpoints: Vec<String>,
        access: Access,
    },
}

#[derive(Default)]
struct Given {
    appliance: Option<String>,
    count: Option<String>,
    fraction: Option<String>,
    memory: Option<String>,
    compute: Option<String>,
    compute_limit: Option<String>,
    managed_memory: Option<String>,
    profile: Option<String>,
    token: Option<String>,
    token_file: Option<String>,
    ca: Option<String>,
    server_name: Option<String>,
    no_wait: bool,
    native: bool,
    hold: bool,
}

/// Parses the command line. `variable` returns an environment variable, or `None` if it is empty or not set.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Job, Failure> {
    let (mut arguments, mut given) = (arguments.into_iter().peekable(), Given::default());
    while let Some(argument) = arguments.next_if(|next| next.to_string_lossy().starts_with('-') && next != "-") {
        let argument = argument.to_string_lossy().into_owned();
        let (name, value) = match (argument.split_once('='), argument.char_indices().nth(2)) {
            (Some((name, value)), _) if name.starts_with("--") => (name, Some(value.to_owned())),
            // A short option with its value attached, for example -p0.25.
            (_, Some((end, _))) if !argument.starts_with("--") => (&argument[..end], Some(argument[end..].to_owned())),
            _ => (argument.as_str(), None),
        };
        match name {
            "--" => break,
            "--help" | "-h" => return Ok(Job::Help),
            "--wait" => given.no_wait = false,
            "--no-wait" => given.no_wait = true,
            "--native" => given.native = true,
            "--hold" => given.hold = true,
            _ if ONLY_IN_PYTHON.contains(&name) => {
                return Err(usage(format!("{name} is an option of `remotegpu run` of the Python package; use that")));
            }
            _ => {
                let place = given.place(name).ok_or_else(|| usage(format!("No such option: {name}")))?;
                let next = || arguments.next().map(|next| next.to_string_lossy().into_owned());
                let value = value.or_else(next);
                *place = Some(value.ok_or_else(|| usage(format!("Option '{name}' requires an argument")))?);
            }
        }
    }
    let command: Vec<_> = arguments.collect();
    if command.is_empty() && !given.hold {
        return Err(usage("Missing argument 'COMMAND...'".into()));
    }
    given.finish(command, variable).map(Job::Run)
}

fn usage(what: String) -> Failure {
    Failure::new(USAGE, format!("{what}; see `remotegpu-run --help`"))
}

impl Given {
    fn place(&mut self, name: &str) -> Option<&mut Option<String>> {
        Some(match name {
            "--appliance" | "-a" => &mut self.appliance,
            "--count" | "-n" => &mut self.count,
            "--fraction" | "-p" => &mut self.fraction,
            "--memory" | "-m" => &mut self.memory,
            "--compute" => &mut self.compute,
            "--compute-limit" => &mut self.compute_limit,
            "--managed-memory" => &mut self.managed_memory,
            "--profile" => &mut self.profile,
            "--token" => &mut self.token,
            "--token-file" => &mut self.token_file,
            "--ca" => &mut self.ca,
            "--server-name" => &mut self.server_name,
            _ => return None,
        })
    }

    fn finish(self, command: Vec<OsString>, variable: impl Fn(&str) -> Option<String>) -> Result<Options, Failure> {
        let count = match self.count.as_deref().map_or(Ok(1), str::parse::<u32>) {
            Ok(count @ 1..=1024) => count,
            _ => {
                let text = self.count.unwrap_or_default();
                return Err(usage(format!("-n {text} is not a number greater than or equal to 1 and at most 1024")));
            }
        };
        let (count, milli, memory_bytes) = match (&self.fraction, &self.memory) {
            (Some(_), Some(_)) => {
                return Err(Failure::new(USAGE, "-p and -m both say how much of a GPU: give one of them"));
            }
            (None, Some(text)) => (count, 0, memory(text)?),
            (None, None) => (count, 1000, 0),
            (Some(text), None) => match fraction(text)? {
                (gpus, _) if gpus > 1 && count > 1 => {
                    let message = format!("-p {text} and -n {count} both say how many GPUs: give one of them");
                    return Err(Failure::new(USAGE, message));
                }
                (gpus, milli) => (count.max(gpus), milli, 0),
            },
        };
        let compute_milli = self.compute.as_deref().map_or(Ok(0), part_of_time)?;
        let compute_limit_milli = self.compute_limit.as_deref().map_or(Ok(1000), part_of_time)?;
        if compute_milli > compute_limit_milli {
            let [guarantee, limit] =
                [&self.compute, &self.compute_limit].map(|text| text.as_deref().unwrap_or_default());
            let message = format!(
                "{guarantee} of a GPU's time is guaranteed and {limit} is the limit: a limit is at least the guarantee"
            );
            return Err(Failure::new(USAGE, message));
        }
        let managed_mib = self.managed_memory.as_deref().filter(|text| !text.is_empty()).map(memory).transpose();
        let managed_mib = managed_mib
            .map_err(|Failure { code, message }| Failure::new(code, format!("--managed-memory: {message}")))?
            .map(|bytes| bytes >> 20);
        let (client, wait) = (String::new(), !self.no_wait);
        let wish = LeaseWish { count, milli, memory_bytes, compute_milli, compute_limit_milli, client, wait };
        let hold = self.hold;
        Ok(Options { place: self.place_of(variable)?, wish, managed_mib, command, hold })
    }

    fn place_of(self, variable: impl Fn(&str) -> Option<String>) -> Result<Place, Failure> {
        if self.native {
            let given = self.profile.as_deref().map(Profile::read).transpose()?;
            let inherited = || variable("REMOTEGPU_SOFTGPU_PROFILE").and_then(|name| Profile::named(&name));
            return Ok(Place::Native(given.or_else(inherited).unwrap_or_default()));
        }
        if self.profile.is_some() {
            return Err(Failure::new(USAGE, "--profile is for GPUs of this machine: appliances have their own"));
        }
        if let Some(check) = variable("REMOTEGPU_CHECK").filter(|check| check != "0") {
            let message =
                format!("REMOTEGPU_CHECK={check} checks nothing on a share, only natively: add --native, or unset it");
            return Err(Failure::new(USAGE, message));
        }
        let endpoints = endpoints(self.appliance.or_else(|| variable("REMOTEGPU_APPLIANCE")))?;
        if self.token.as_ref().is_some_and(|token| !token.is_empty()) {
            let instead = "use --token-file or REMOTEGPU_TOKEN";
            eprintln!("remotegpu: warning: everybody on this machine sees --token in `ps`: {instead}");
        }
        let token = self.token.or_else(|| variable("REMOTEGPU_TOKEN")).filter(|token| !token.is_empty());
        let token_file = self.token_file.or_else(|| variable("REMOTEGPU_TOKEN_FILE"));
        let access = Access {
            token: token
                .map_or_else(|| token_file.map(|file| read_token(&file)).transpose(), |token| Ok(Some(token)))?,
            ca: self.ca.or_else(|| variable("REMOTEGPU_CA")),
            server_name: self.server_name.or_else(|| variable("REMOTEGPU_SERVER_NAME")).filter(|name| !name.is_empty()),
        };
        Ok(Place::Appliances { endpoints, access })
    }
}

fn read_token(file: &str) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::new(USAGE, format!("the token file {file} cannot be read: {}; correct --token-file", reason(&error)))
    })?;
    let token = text.trim();
    if !token.is_ascii() || token.split_whitespace().count() > 1 {
        let message = format!("{file} holds more than a token: name a file with nothing else, as `user.token`");
        return Err(Failure::new(USAGE, message));
    }
    Ok(token.to_owned())
}

/// Parses addresses separated by commas. Each is HOST, HOST:PORT or [V6]:PORT, and is returned as HOST:PORT.
fn endpoints(appliance: Option<String>) -> Result<Vec<String>, Failure> {
    let text = appliance.unwrap_or_default();
    let parts: Vec<_> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        let message = "no appliance is named: give --appliance HOST:PORT or set REMOTEGPU_APPLIANCE; or use a software \
                       GPU of this machine: by --native, or by an appliance that the Python package's `remotegpu run` \
                       starts";
        return Err(Failure::new(USAGE, message));
    }
    let endpoint = |text: &str| match address::split(text, Some(DEFAULT_PORT)) {
        Some((host, port @ 1..)) => Ok(address::joined(host, port)),
        _ => Err(Failure::new(USAGE, format!("'{text}' is not the address of an appliance; write HOST:PORT"))),
    };
    parts.into_iter().map(endpoint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Options, Failure> {
        let variable = |name: &str| (name == "REMOTEGPU_TOKEN").then(|| "secret".to_owned());
        match parse(text.split_whitespace().map(OsString::from), variable)? {
            Job::Run(options) => Ok(options),
            Job::Help => Err(Failure::new(0, HELP)),
        }
    }

    #[test]
    fn options_end_where_the_command_begins() {
        for text in
            ["-a gpu -p 0.25 -- sh -c -p", "--appliance=gpu:7070 --fraction=0.25 sh -c -p", "-agpu -p0.25 sh -c -p"]
        {
            let options = parsed(text).unwrap();
            assert_eq!(options.wish.milli, 250);
            assert_eq!(options.command, ["sh", "-c", "-p"]);
            let access = Access { token: Some("secret".into()), ..Access::default() };
            assert_eq!(options.place, Place::Appliances { endpoints: vec!["gpu:7070".into()], access });
        }
    }

    #[test]
    fn places() {
        let endpoints = |text| match parsed(text).unwrap().place {
            Place::Appliances { endpoints, .. } => endpoints,
            Place::Native(profile) => panic!("{profile:?}"),
        };
        assert_eq!(endpoints("-a [::1]:9 true"), ["[::1]:9"]);
        assert_eq!(endpoints("-a a:1,,b true"), ["a:1", "b:7070"]);
        assert_eq!(parsed("--native true").unwrap().place, Place::Native(Profile::Normal));
        assert_eq!(parsed("--native --profile slow true").unwrap().place, Place::Native(Profile::Slow));
        let held = parsed("-a gpu --hold").unwrap();
        assert!(held.hold && held.command.is_empty());
    }

    #[test]
    fn what_it_does_not_have_is_named() {
        for (text, word) in [
            ("-a gpu --trace f true", "Python package"),
            ("-a gpu --profile slow true", "of this machine"),
            ("--native --profile fast true", "null-h100"),
            ("true", "REMOTEGPU_APPLIANCE"),
            ("-a gpu", "COMMAND"),
            ("-a gpu -p", "-p"),
            ("-a gpu:port true", "'gpu:port'"),
            ("-a gpu -n 2 -p 2 true", "-n 2"),
        ] {
            let failure = parsed(text).unwrap_err();
            assert_eq!(failure.code, USAGE);
            assert!(failure.message.contains(word), "{}", failure.message);
        }
    }
}
