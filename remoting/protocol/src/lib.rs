//! The wire between a client and its worker: frames, commands, replies and pushes.
//!
//! This crate has no I/O, no threads and no `unsafe`. `remoting/registry/wire-format.md` describes the wire in prose.
//! All received bytes are untrusted: decoding checks every length and never allocates more memory than the frame's
//! size.

mod bundle;
mod frame;
mod kept;
mod message;
mod preface;
mod recording;
mod runs;
mod wire;

#[rustfmt::skip]
mod functions_generated;
#[rustfmt::skip]
mod versions_generated;

pub use bundle::{bundle_images, bundled_images};
pub use frame::{Decoder, FrameError, HEADER_BYTES, Header, MAX_PAYLOAD};
pub use functions_generated::{function, function_name};
pub use kept::{Kept, OutOfRange};
pub use message::*;
pub use preface::{
    MEMORY, NOT_SHARED, PREFACE_BYTES, PieceHeader, Preface, PrefaceKind, RESUME_BYTES, SHARED, STRIPE_BYTES,
    SharedMemory,
};
pub use recording::Recording;
pub use runs::{differences, without};
pub use versions_generated::{OLDEST_WIRE, TABLE_HASH, WIRE_VERSION, since, table_hash};
pub use wire::{DecodeError, Reader, Wire, Writer};

/// A sentinel for the function index in a query about clusters. The query then has a context's id in place of a
/// module's.
pub const NO_FUNCTION: u32 = u32::MAX;

/// The number of received bytes after which an end sends `Acknowledge`, if it has sent no other frame.
pub const ACKNOWLEDGE_BYTES: u64 = 1 << 20;

/// The maximum number of bulk bytes in a frame, so that no frame blocks the connection for long.
pub const BULK_CHUNK: usize = 512 << 10;

/// The maximum size of an image that is sent without a request. For such an image this is cheaper than a second round
/// trip.
pub const SMALL_IMAGE: usize = 32 << 10;
