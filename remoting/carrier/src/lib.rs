//! Shared by both ends of a data connection: the services of `control.proto`, the settings of a TCP connection, and the
//! ways in which the bytes of a session pass through TLS or gRPC.
//!
//! `pump` passes bytes where a connection cannot be handed over, and `pieces` puts them into gRPC messages. Used by
//! client, `remotegpu-connect`, gateway and worker. It must not know a message of a session: the bytes that it passes
//! have no meaning here.

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

/// How much is read at once: large enough for bulk copies to run at the network's speed, small enough for a gRPC message.
pub const READ_BYTES: usize = 256 << 10;

/// Bytes of one HTTP/2 stream, and half of those of one connection, that may be on their way: at 10 ms this is 800 MB/s.
pub const HTTP2_WINDOW: u32 = 8 << 20;

/// The longest HTTP/2 frame that is taken: a piece of [`READ_BYTES`] should not become 16 frames of the default size.
pub const HTTP2_FRAME: u32 = 1 << 20;

/// The gateway's answer to a preface that it accepts.
pub const ACCEPTED: u8 = b'K';

/// Its answer to a client that wants to resume a session that does not exist any more.
pub const GONE: u8 = b'G';

/// Its answer to a request for a session or lease that has moved to another appliance. Two bytes of length follow, and
/// the new place in JSON: `endpoint`, `data_port` and `server_name`.
pub const MOVED: u8 = b'M';

/// Metadata of a refused call that names a lease which has moved: the same JSON.
pub const MOVED_METADATA: &str = "remotegpu-moved";
