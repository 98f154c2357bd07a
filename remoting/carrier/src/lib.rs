//! What both ends of a data connection share: the services of `control.proto`, the settings of a TCP connection, and the
//! ways in which the bytes of a session pass through TLS or gRPC.

mod hex;
mod pieces;
mod pump;
mod socket;

/// The services and messages of `remoting/proto/control.proto`.
#[allow(clippy::all, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("remotegpu.v1");
}

pub use hex::{from_hex, to_hex};
pub use pieces::{from_pieces, into_pieces};
pub use pump::{copy, pump};
pub use socket::configure;

/// How much is read at once: large enough for bulk copies to run at the network's speed, small enough for a gRPC message.
pub const READ_BYTES: usize = 256 << 10;

/// The door's answer to a preface that it accepts.
pub const ACCEPTED: u8 = b'K';
