//! `remotegpu-connect`: opens an offload session on a share from this process's environment, and forwards its bytes.
//!
//! Standard input is a connected stream socket, the program's end of the session. The program prints the result as one
//! line of JSON: `{"session", "environment", "endpoint", "share"}`, or `{"error", "kind"}`. Then it forwards bytes
//! until either end closes. If the acceptor closes first, a last line may report its exit before the socket is closed:
//! `{"exit_code"}`, which is minus the signal's number if a signal ended it.

mod choose;
mod options;
mod pass;

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use remotegpu_client::connect::{ConnectError, Environment, ErrorKind, close_offload_session, open_data, shares};
use serde::Serialize;

use choose::Found;
use options::{Job, Options};
use pass::Ended;

/// The timeout for the appliance's report of an acceptor's exit. The appliance may have ended, and the program is
/// waiting.
const LAST_ANSWER: Duration = Duration::from_secs(2);

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome {
    Open { session: String, environment: Environment, endpoint: String, share: usize },
    Ended { exit_code: i32 },
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
        let connection = open_data(&found.share, &found.hello, &found.ticket, &[])?;
        Ok((program, connection, found, environment))
    });
    let (program, connection, found, environment) = match opened {
        Ok(opened) => opened,
        Err(error) => return tell_failure(&error),
    };
    let session = found.ticket.id();
    let endpoint = found.share.endpoint.clone();
    match tell(&Outcome::Open { session, environment, endpoint, share: found.index }) {
        // The program has ended, so there is no reader.
        Err(_) => ExitCode::FAILURE,
        Ok(()) => {
            if pass::both_ways(&program, UnixStream::from(connection)) == Ended::Acceptor {
                tell_ending(found);
            }
            let _ = program.shutdown(Shutdown::Both);
            ExitCode::SUCCESS
        }
    }
}

fn tell_ending(found: Found) {
    let (sender, answer) = mpsc::channel();
    thread::spawn(move || sender.send(close_offload_session(&found.share, &found.ticket)));
    if let Ok(Ok(exit_code)) = answer.recv_timeout(LAST_ANSWER) {
        // An error is ignored: the program may have ended as well.
        let _ = tell(&Outcome::Ended { exit_code });
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
        ErrorKind::Gone => "gone",
        ErrorKind::Moved => "moved",
        ErrorKind::Busy => "busy",
        ErrorKind::Appliance => "appliance",
    }
}
