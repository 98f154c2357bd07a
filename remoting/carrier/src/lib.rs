//! The code that both ends of a data connection share: the services of `control.proto`, the settings of a TCP
//! connection, and the ways in which the bytes of a session pass through TLS or gRPC.
//!
//! `pump` forwards bytes if a connection cannot be handed over, and `pieces` puts bytes into gRPC messages. Client,
//! `remotegpu-connect`, gateway and worker use this crate. It must not depend on the messages of a session: it forwards
//! bytes without interpreting them.

mod hex;
mod pieces;
mod pump;
mod socket;
mod spin;

/// The services and messages of `remoting/proto/control.proto`.
#[allow(clippy::all, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("remotegpu.v1");
}

pub use hex::{from_hex, to_hex};
pub use pieces::{from_pieces, into_pieces};
pub use pump::{copy, pump};
pub use socket::{configure, follow_window, followed};
pub use spin::{Spin, TO_WAKE};

/// The size of a read buffer: large enough for bulk copies at the network's speed, small enough for a gRPC message.
pub const READ_BYTES: usize = 256 << 10;

/// The window of an HTTP/2 stream in bytes, and half of a connection's window: at 10 ms latency this allows 800 MB/s.
pub const HTTP2_WINDOW: u32 = 8 << 20;

/// The maximum size of an HTTP/2 frame. With the default size a piece of [`READ_BYTES`] would need 16 frames.
pub const HTTP2_FRAME: u32 = 1 << 20;

/// The gateway's answer to a valid preface.
pub const ACCEPTED: u8 = b'K';

/// The gateway's answer to a client that wants to resume a session that does not exist any more.
pub const GONE: u8 = b'G';

/// The gateway's answer to a request for a session or lease that has moved to another appliance. Two bytes of length
/// follow, and the new place in JSON: `endpoint`, `data_port` and `server_name`.
pub const MOVED: u8 = b'M';

/// The metadata key of a refused call for a lease that has moved. Its value is the same JSON.
pub const MOVED_METADATA: &str = "remotegpu-moved";
