//! Names for the defences that protect tenants from each other and from strangers. `tests/attacker` disables a defence
//! to show that its attack would then succeed. In a build with the feature `undefended`, the variable
//! `REMOTEGPU_UNDEFENDED` names the disabled defence, and the worker obeys a test that plays a tenant who has taken it
//! over. A release has neither.

macro_rules! defences {
    ($($(#[$doc:meta])* $defence:ident = $name:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Defence { $($(#[$doc])* $defence),* }

        #[cfg(feature = "undefended")]
        const ALL: &[(Defence, &str)] = &[$((Defence::$defence, $name)),*];
    };
}

defences! {
    /// The gateway checks tickets and the secrets of leases.
    Ticket = "ticket";
    /// The gateway refuses plaintext if it has a certificate.
    Plaintext = "plaintext";
    /// The gateway accepts only TLS 1.3.
    TlsVersion = "tls-version";
    /// A connection has to authenticate itself in time.
    Patience = "patience";
    /// One peer gets only a share of the places for unauthenticated connections.
    Crowd = "crowd";
    /// Copies and fills stay in the arena and the modules' variables.
    Range = "range";
    /// Memory is mapped, or given to the driver, only after it was granted.
    Room = "room";
    /// Memory can be returned only if it is not in use.
    Return = "return";
    /// A module takes no more device memory than its load stated.
    ImageSize = "image-size";
    /// Stored images have a budget.
    ImageBudget = "image-budget";
    /// The number of waiting commands is limited.
    Parked = "parked";
    /// Memory of a suspended session is sealed with a key that only its worker has.
    ImageKey = "image-key";
    /// A turn at a GPU that does not end is given to the next worker.
    TurnEnds = "turn-ends";
    /// Only the worker that has a turn can end it.
    TurnOwner = "turn-owner";
    /// seccomp, Landlock and a worker's other restrictions.
    Sandbox = "sandbox";
}

/// Whether the defence is enabled. Always true in a released build.
#[cfg(not(feature = "undefended"))]
pub const fn stands(_defence: Defence) -> bool {
    true
}

#[cfg(feature = "undefended")]
pub use undefended::{TAKEN_OVER, obey, stands};

#[cfg(feature = "undefended")]
mod undefended {
    use super::{ALL, Defence};
    use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
    use std::sync::LazyLock;

    pub fn stands(defence: Defence) -> bool {
        static LACKS: LazyLock<Option<Defence>> = LazyLock::new(|| {
            let name = std::env::var("REMOTEGPU_UNDEFENDED").ok()?;
            ALL.iter().find(|(_, defence)| *defence == name).map(|(defence, _)| *defence)
        });
        *LACKS != Some(defence)
    }

    /// The code of a command that no client sends.
    pub const TAKEN_OVER: u32 = 0xbfff;

    /// Executes the order in the payload of that command, as if a tenant had found a way to run code in the worker.
    /// Returns a description of the outcome.
    pub fn obey(order: &[u8]) -> String {
        let order = String::from_utf8_lossy(order);
        let (verb, object) = order.split_once(' ').unwrap_or((&order, ""));
        attempt(verb, object).unwrap_or_else(|error| format!("refused: {error}"))
    }

    fn attempt(verb: &str, object: &str) -> std::io::Result<String> {
        let process = || object.parse().ok().and_then(Pid::from_raw).ok_or(std::io::ErrorKind::InvalidInput);
        match verb {
            "read" => std::fs::read(object).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            "connect" => std::net::TcpStream::connect(object).map(|_| "done".into()),
            "connect-unix" => std::os::unix::net::UnixStream::connect(object).map(|_| "done".into()),
            "run" => std::process::Command::new(object).status().map(|_| "done".into()),
            "kill" => Ok(kill_process(process()?, Signal::KILL).map(|()| "done".into())?),
            "limit" => {
                let none = Rlimit { current: Some(0), maximum: Some(0) };
                Ok(prlimit(Some(process()?), Resource::Nofile, none).map(|_| "done".into())?)
            }
            "variables" => Ok(std::env::vars().map(|(name, value)| format!("{name}={value}\n")).collect()),
            _ => Err(std::io::ErrorKind::InvalidInput.into()),
        }
    }
}
