//! The first bytes of a data connection: which session or lease it is for, and the ticket that proves it.

pub const PREFACE_BYTES: usize = 52;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefaceKind {
    /// Frames of a session follow once the gateway has answered `K`; the ticket is good for one connection.
    Session,
    /// The connection carries nothing: the lease lives as long as it does. The gateway answers one byte, `K`.
    Lease,
}

/// `RGP1` (session) or `RGL1` (lease), 16 bytes of id, 32 bytes of ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preface {
    pub kind: PrefaceKind,
    pub id: [u8; 16],
    pub ticket: [u8; 32],
}

impl Preface {
    pub fn encode(&self) -> [u8; PREFACE_BYTES] {
        let mut out = [0; PREFACE_BYTES];
        out[..4].copy_from_slice(match self.kind {
            PrefaceKind::Session => b"RGP1",
            PrefaceKind::Lease => b"RGL1",
        });
        out[4..20].copy_from_slice(&self.id);
        out[20..].copy_from_slice(&self.ticket);
        out
    }

    /// `None` if the bytes are no preface of ours.
    pub fn decode(bytes: &[u8; PREFACE_BYTES]) -> Option<Preface> {
        let kind = match &bytes[..4] {
            b"RGP1" => PrefaceKind::Session,
            b"RGL1" => PrefaceKind::Lease,
            _ => return None,
        };
        let (mut id, mut ticket) = ([0; 16], [0; 32]);
        id.copy_from_slice(&bytes[4..20]);
        ticket.copy_from_slice(&bytes[20..]);
        Some(Preface { kind, id, ticket })
    }
}
