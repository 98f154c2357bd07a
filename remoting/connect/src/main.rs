//! `remotegpu-connect`: opens an offload session on a share of this process's environment, and passes its bytes.
//!
//! Its standard input is a connected stream socket, the program's end of the session. One line of JSON on its standard
//! output says how it went: `{"session", "environment", "endpoint", "share"}`, or `{"error", "kind"}`. Afterwards bytes
//! pass until either end closes.

mod choose;
mod options;
mod pass;

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use remotegpu_client::connect::{ConnectError, Environment, ErrorKind, open_data, shares};
use serde::Serialize;

use options::{Job, Options};

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome {
    Open { session: String, environment: Environment, endpoint: String, share: usize },
    Failed { error: String, kind: String },
}

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)) {
        Ok(Job::Help) => {
            println!("{}", options::HELP);
            ExitCode::SUCCESS
        }
        Ok(Job::Connect(options)) => connect(&options),
        Err(why) => tell_failure(&ConnectError::new(ErrorKind::Settings, format!("remotegpu-connect: {why}"))),
    }
}

fn connect(options: &Options) -> ExitCode {
    let opened = program_end().and_then(|program| {
        let (found, environment) = choose::open(&shares()?, options)?;
        let connection = open_data(&found.share, &found.hello, &found.ticket)?;
        Ok((program, connection, found, environment))
    });
    let (program, connection, found, environment) = match opened {
        Ok(opened) => opened,
        Err(error) => return tell_failure(&error),
    };
    let session = found.ticket.session_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let endpoint = found.share.endpoint.clone();
    match tell(&Outcome::Open { session, environment, endpoint, share: found.index }) {
        // Nobody reads it: the program has ended.
        Err(_) => ExitCode::FAILURE,
        Ok(()) => {
            pass::both_ways(program, UnixStream::from(connection));
            ExitCode::SUCCESS
        }
    }
}

fn program_end() -> Result<UnixStream, ConnectError> {
    let socket = io::stdin().as_fd().try_clone_to_owned().map(|descriptor: OwnedFd| UnixStream::from(descriptor));
    let socket = socket.and_then(|socket| socket.peer_addr().map(|_| socket));
    socket.map_err(|error| {
        let message =
            format!("standard input is no connected socket ({error}); remotegpu-connect is started by the program");
        ConnectError::new(ErrorKind::Settings, message)
    })
}

fn tell_failure(error: &ConnectError) -> ExitCode {
    let _ = tell(&Outcome::Failed { error: error.message.clone(), kind: kind(error.kind).to_owned() });
    ExitCode::FAILURE
}

fn tell(outcome: &Outcome) -> io::Result<()> {
    let line = serde_json::to_string(outcome)?;
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

fn kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Settings => "settings",
        ErrorKind::Unreachable => "unreachable",
        ErrorKind::NotAnAppliance => "not-an-appliance",
        ErrorKind::Timeout => "timeout",
        ErrorKind::Tls => "tls",
        ErrorKind::Refused => "refused",
        ErrorKind::Version => "version",
        ErrorKind::Busy => "busy",
        ErrorKind::Appliance => "appliance",
    }
}
