//! The first bytes of a data connection: its session or lease, and the proof of access.

use hmac::{Hmac, Mac};
use sha2::Sha256;

pub const PREFACE_BYTES: usize = 52;
/// The length in bytes of `epoch` and `received`, which follow the preface of a [`PrefaceKind::Resume`] connection.
pub const RESUME_BYTES: usize = 16;

/// The length in bytes of a stripe's number, which follows the preface.
pub const STRIPE_BYTES: usize = 8;

/// The first four bytes of the preface of a [`PrefaceKind::Memory`] connection.
pub const MEMORY: &[u8; 4] = b"RGM1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefaceKind {
    /// A new session. The gateway answers `K`, then frames of the session follow. The ticket is valid for one
    /// connection.
    Session,
    /// A holding connection without data. The lease exists as long as the connection. The gateway answers one byte,
    /// `K`.
    Lease,
    /// A connection that replaces a broken connection of the session. `epoch` is higher than that of every earlier
    /// attempt; `received` is the number of bytes that the client has received. The worker answers `K` and its own
    /// epoch and number. If the session does not exist any more, the answer is `G`.
    Resume { epoch: u64, received: u64 },
    /// A connection by Unix socket on which the session's client shares memory with its worker ([`SharedMemory`]).
    Memory,
    /// An additional connection of the session for the bytes of large copies ([`PieceHeader`]). The number is higher
    /// than that of every earlier stripe. The worker answers `K`.
    Stripe { number: u64 },
}

/// The preface of a connection. Its format is:
/// - `RGP1` (session), `RGL1` (lease), `RGR1` (resume), `RGM1` (memory) or `RGS1` (stripe);
/// - 16 bytes of id;
/// - 32 bytes of ticket, or for the last three kinds the proof that the sender has the ticket.
///
/// A resume has 16 more bytes, epoch and received; a stripe has 8 more bytes, its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preface {
    pub kind: PrefaceKind,
    pub id: [u8; 16],
    pub ticket: [u8; 32],
}

impl Preface {
    /// Returns the preface that resumes the session with this ticket.
    pub fn resume(id: [u8; 16], ticket: &[u8; 32], epoch: u64, received: u64) -> Preface {
        Preface {
            kind: PrefaceKind::Resume { epoch, received },
            id,
            ticket: resume_proof(&id, ticket, epoch, received),
        }
    }

    /// Returns the preface that shares memory with the worker of the session with this ticket.
    pub fn memory(id: [u8; 16], ticket: &[u8; 32]) -> Preface {
        Preface { kind: PrefaceKind::Memory, id, ticket: proof(MEMORY, &id, ticket, &[]) }
    }

    /// Returns the preface that opens a stripe of the session with this ticket.
    pub fn stripe(id: [u8; 16], ticket: &[u8; 32], number: u64) -> Preface {
        Preface { kind: PrefaceKind::Stripe { number }, id, ticket: proof(b"RGS1", &id, ticket, &[number]) }
    }

    /// Returns the correct value of the `ticket` field for a session with this ticket. For resume, memory and stripe
    /// that is the proof, otherwise the ticket itself.
    pub fn expected(&self, ticket: &[u8; 32]) -> [u8; 32] {
        match self.kind {
            PrefaceKind::Session | PrefaceKind::Lease => *ticket,
            PrefaceKind::Resume { epoch, received } => resume_proof(&self.id, ticket, epoch, received),
            PrefaceKind::Memory => proof(MEMORY, &self.id, ticket, &[]),
            PrefaceKind::Stripe { number } => proof(b"RGS1", &self.id, ticket, &[number]),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PREFACE_BYTES + RESUME_BYTES);
        out.extend_from_slice(match self.kind {
            PrefaceKind::Session => b"RGP1",
            PrefaceKind::Lease => b"RGL1",
            PrefaceKind::Resume { .. } => b"RGR1",
            PrefaceKind::Memory => MEMORY,
            PrefaceKind::Stripe { .. } => b"RGS1",
        });
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.ticket);
        match self.kind {
            PrefaceKind::Resume { epoch, received } => {
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(&received.to_le_bytes());
            }
            PrefaceKind::Stripe { number } => out.extend_from_slice(&number.to_le_bytes()),
            PrefaceKind::Session | PrefaceKind::Lease | PrefaceKind::Memory => {}
        }
        out
    }

    /// Decodes a preface, or returns `None` if the bytes are not one. To resume, [`RESUME_BYTES`] more follow for
    /// [`Preface::resumes`]; for a stripe, [`STRIPE_BYTES`] for [`Preface::numbered`].
    pub fn decode(bytes: &[u8; PREFACE_BYTES]) -> Option<Preface> {
        let kind = match &bytes[..4] {
            b"RGP1" => PrefaceKind::Session,
            b"RGL1" => PrefaceKind::Lease,
            b"RGR1" => PrefaceKind::Resume { epoch: 0, received: 0 },
            b"RGS1" => PrefaceKind::Stripe { number: 0 },
            head if head == MEMORY => PrefaceKind::Memory,
            _ => return None,
        };
        let (mut id, mut ticket) = ([0; 16], [0; 32]);
        id.copy_from_slice(&bytes[4..20]);
        ticket.copy_from_slice(&bytes[20..]);
        Some(Preface { kind, id, ticket })
    }

    /// Adds the epoch and the number of received bytes that followed the preface.
    pub fn resumes(self, bytes: &[u8; RESUME_BYTES]) -> Preface {
        let (mut epoch, mut received) = ([0; 8], [0; 8]);
        epoch.copy_from_slice(&bytes[..8]);
        received.copy_from_slice(&bytes[8..]);
        let (epoch, received) = (u64::from_le_bytes(epoch), u64::from_le_bytes(received));
        Preface { kind: PrefaceKind::Resume { epoch, received }, ..self }
    }

    /// Adds the stripe's number that followed the preface.
    pub fn numbered(self, bytes: &[u8; STRIPE_BYTES]) -> Preface {
        Preface { kind: PrefaceKind::Stripe { number: u64::from_le_bytes(*bytes) }, ..self }
    }
}

fn resume_proof(id: &[u8; 16], ticket: &[u8; 32], epoch: u64, received: u64) -> [u8; 32] {
    proof(b"RGR1", id, ticket, &[epoch, received])
}

fn proof(kind: &[u8; 4], id: &[u8; 16], ticket: &[u8; 32], numbers: &[u64]) -> [u8; 32] {
    // HMAC accepts a key of any length, so this never fails.
    let Ok(mac) = Hmac::<Sha256>::new_from_slice(ticket) else { return [0; 32] };
    let mac = mac.chain_update(kind).chain_update(id);
    numbers.iter().fold(mac, |mac, number| mac.chain_update(number.to_le_bytes())).finalize().into_bytes().into()
}

/// The header of a piece on a stripe: the piece's command, and its number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceHeader {
    pub command: u64,
    pub len: u64,
}

impl PieceHeader {
    pub const BYTES: usize = 16;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.command.to_le_bytes());
        out[8..].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8; Self::BYTES]) -> PieceHeader {
        let (words, _) = bytes.as_chunks();
        let [command, len] = [0, 1].map(|at| u64::from_le_bytes(words[at]));
        PieceHeader { command, len }
    }
}

/// A client's message on its session's memory connection.
///
/// With a descriptor it shares memory. The descriptor is a memfd of `size` bytes, sealed against resizing; the client
/// has it mapped at `address`, in a context. The worker answers one byte, [`SHARED`] if it could map the memory.
///
/// Without a descriptor, and with a size of 0, it ends the sharing of the memory that starts at `address`. No copy uses
/// that memory any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedMemory {
    pub context: u64,
    pub address: u64,
    pub size: u64,
}

pub const SHARED: u8 = b'K';
pub const NOT_SHARED: u8 = b'N';

impl SharedMemory {
    pub const BYTES: usize = 24;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        for (place, number) in out.as_chunks_mut::<8>().0.iter_mut().zip([self.context, self.address, self.size]) {
            *place = number.to_le_bytes();
        }
        out
    }

    pub fn decode(bytes: &[u8; Self::BYTES]) -> SharedMemory {
        let (words, _) = bytes.as_chunks();
        let [context, address, size] = [0, 1, 2].map(|at| u64::from_le_bytes(words[at]));
        SharedMemory { context, address, size }
    }
}
