//! The wire between a client and its worker: frames, commands, replies and pushes.
//!
//! This crate has no I/O, no threads and no `unsafe`. `remoting/registry/wire-format.md` describes the same in prose.
//! Everything that arrives is untrusted: decoding checks every length and never allocates more than the frame holds.

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

/// The place of no function, with a context's id instead of a module's: in queries about clusters.
pub const NO_FUNCTION: u32 = u32::MAX;

/// After so many received bytes without a frame that could say so, an end sends `Acknowledge`.
pub const ACKNOWLEDGE_BYTES: u64 = 1 << 20;

/// Bulk bytes travel in pieces of at most this many bytes, so that no frame holds up the connection for long.
pub const BULK_CHUNK: usize = 512 << 10;

/// Images up to this size are sent along unasked: that costs less than a second round trip.
pub const SMALL_IMAGE: usize = 32 << 10;
