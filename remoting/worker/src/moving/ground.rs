//! The memory layout of a session that moves: its address range, grants, contexts and slabs. The other worker gets the
//! whole layout, or the changes since the layout was created there.

use crate::driver::Handle;
use crate::moving::image::Failed;
use crate::moving::replay::{Replay, answered};
use protocol::{
    ArenaAt, ContextCreate, ContextLimit, ContextSynchronize, Grant, GrantReturn, Open, Opened, PieceBounds, SlabMap,
    SlabUnmap, UNCOUNTED, table_hash,
};
use std::collections::{BTreeMap, HashSet};

#[derive(Debug)]
pub struct Ground {
    pub arena: (u64, u64),
    pub granularity: u64,
    /// The wire version that the client uses.
    pub wire: u32,
    /// The granted bytes by device, without those that are charged for contexts.
    pub granted: BTreeMap<u32, u64>,
    pub contexts: Vec<(ContextCreate, Handle, Vec<ContextLimit>)>,
    pub slabs: Vec<SlabMap>,
    pub pieces: Vec<PieceBounds>,
}

fn bounds(pieces: &[PieceBounds]) -> BTreeMap<u64, u64> {
    pieces.iter().map(|piece| (piece.address, piece.size)).collect()
}

/// Returns the values that identify a slab.
fn key(slab: &SlabMap) -> (u32, u64, u64) {
    (slab.device, slab.address, slab.size)
}

impl Ground {
    /// Creates the layout at the other worker, where the layout `before` already exists.
    ///
    /// # Errors
    /// The reason why the same layout cannot be created there.
    pub fn make(&self, there: &mut Replay, before: Option<&Ground>) -> Result<(), Failed> {
        if before.is_none() {
            self.open(there)?;
        }
        let had = |device: u32| before.and_then(|before| before.granted.get(&device).copied()).unwrap_or(0);
        for (&device, &is) in &self.granted {
            if let Some(more) = is.checked_sub(had(device)).filter(|more| *more > 0) {
                let seq = there.tell(0, &Grant { device, least: more, want: more }, &[])?;
                there.expect(seq, "NoRoom: memory");
            }
        }
        there.settle()?;
        self.make_contexts(there, before)?;
        let kept = self.kept(before);
        let is_new = |slab: &&SlabMap| !kept.contains_key(&slab.address);
        let gone: Vec<&SlabMap> = before.iter().flat_map(|before| &before.slabs).filter(is_new).collect();
        if !gone.is_empty() {
            // The other worker may not have written all bytes for the removed slabs yet. These bytes must not reach new
            // memory at the same addresses.
            self.synchronise(there)?;
        }
        for gone in gone {
            there.tell(0, &SlabUnmap { address: gone.address, size: gone.size }, &[])?;
        }
        for slab in self.slabs.iter().filter(is_new) {
            there.tell(0, slab, &[])?;
        }
        let (was, is) = (bounds(before.map_or(&[], |before| &before.pieces)), bounds(&self.pieces));
        for (&address, size) in &was {
            if is.get(&address) != Some(size) && self.covers(address) {
                there.tell(0, &PieceBounds { address, size: 0 }, &[])?;
            }
        }
        for (&address, &size) in &is {
            if was.get(&address) != Some(&size) {
                there.tell(0, &PieceBounds { address, size }, &[])?;
            }
        }
        for (&device, &was) in before.iter().flat_map(|before| &before.granted) {
            let less = was.saturating_sub(self.granted.get(&device).copied().unwrap_or(0));
            if less > 0 {
                there.tell(0, &GrantReturn { device, size: less }, &[])?;
            }
        }
        self.synchronise(there)
    }

    /// Waits for all commands sent so far, and detects errors of commands that have no answer.
    ///
    /// # Errors
    /// The first error of these commands.
    pub fn synchronise(&self, there: &mut Replay) -> Result<(), Failed> {
        for (create, ..) in &self.contexts {
            let seq = there.tell(0, &ContextSynchronize { context: create.context, launches: UNCOUNTED }, &[])?;
            there.expect(seq, "NotMade: a context, a stream or memory");
        }
        there.settle()
    }

    /// Returns a context for copies to a device, and its legacy stream.
    ///
    /// # Errors
    /// Fails if the session has no context on the device.
    pub fn stream(&self, device: u32) -> Result<(u64, u64), Failed> {
        let mut there = self.contexts.iter().filter(|(create, ..)| create.device == device);
        let (create, ..) = there.next().ok_or("NoContext: its memory has no context")?;
        Ok((create.context, create.legacy_stream))
    }

    /// Returns the addresses and sizes of the slabs that are also in the layout `before`. All other slabs are new at
    /// the other worker.
    pub fn kept(&self, before: Option<&Ground>) -> BTreeMap<u64, u64> {
        let had: HashSet<_> = before.iter().flat_map(|before| &before.slabs).map(key).collect();
        self.slabs.iter().filter(|slab| had.contains(&key(slab))).map(|slab| (slab.address, slab.size)).collect()
    }

    /// Whether a slab contains the address. The slabs are sorted by address.
    fn covers(&self, address: u64) -> bool {
        let after = self.slabs.partition_point(|slab| slab.address <= address);
        self.slabs[..after].last().is_some_and(|slab| address - slab.address < slab.size)
    }

    fn open(&self, there: &mut Replay) -> Result<(), Failed> {
        let open = Open {
            wire_version: self.wire,
            table_hash: table_hash(self.wire).unwrap_or_default(),
            client_pid: std::process::id(),
            client_name: "a session that moves".into(),
        };
        let opened: Opened = answered(&there.call(&open)?, "NotOpened")?;
        if opened.granularity != self.granularity {
            let (ours, theirs) = (self.granularity, opened.granularity);
            return Err(format!("OtherGranularity: memory is mapped in units of {ours} bytes here and {theirs} there"));
        }
        let (base, size) = self.arena;
        match there.call(&ArenaAt { base, size })? {
            (0, _) => Ok(()),
            _ => Err(format!(
                "RangeTaken: its addresses {base:#x} to {:#x} are not free in the worker there",
                base + size
            )),
        }
    }

    fn make_contexts(&self, there: &mut Replay, before: Option<&Ground>) -> Result<(), Failed> {
        let made = before.map_or(&[][..], |before| &before.contexts);
        if made.iter().any(|(was, ..)| self.contexts.iter().all(|(is, ..)| is != was)) {
            return Err("ContextEnded: one of its contexts ended while its memory was sent; move it again".into());
        }
        for (create, _, limits) in &self.contexts {
            if made.iter().all(|(was, ..)| was != create) {
                there.tell(0, create, &[])?;
            }
            for limit in limits {
                let seq = there.tell(0, limit, &[])?;
                there.expect(seq, "OtherLimits: a limit of a context");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Decoder, Header, Message, Reply, Writer};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    /// Answers requests like a worker. Returns the codes of the commands that arrived.
    fn answering(mut client: UnixStream) -> Vec<u32> {
        let (mut decoder, mut buffer, mut came) = (Decoder::new(), [0; 4096], Vec::new());
        while let Some(count) = client.read(&mut buffer).ok().filter(|count| *count > 0) {
            decoder.feed(&buffer[..count]);
            while let Ok(Some((Header { code, seq, .. }, _))) = decoder.next_frame() {
                came.push(code);
                if matches!(code, ContextSynchronize::CODE | Grant::CODE | ContextLimit::CODE) {
                    let mut w = Writer::new();
                    w.put(&Reply { code: 0 });
                    let header = Header { len: w.bytes.len() as u32, code: Reply::CODE, seq, ..Header::default() };
                    client.write_all(&[&header.encode()[..], &w.bytes].concat()).expect("it reads");
                }
            }
        }
        came
    }

    fn ground(slabs: &[(u64, u64)]) -> Ground {
        let create = ContextCreate { context: 7, device: 0, flags: 0, primary: true, legacy_stream: 8 };
        Ground {
            arena: (1 << 40, 1 << 30),
            granularity: 2 << 20,
            wire: 1,
            granted: BTreeMap::new(),
            contexts: vec![(create, Handle::NULL, Vec::new())],
            slabs: slabs.iter().map(|&(address, size)| SlabMap { device: 0, address, size }).collect(),
            pieces: Vec::new(),
        }
    }

    #[test]
    fn what_was_sent_is_written_before_its_memory_goes() {
        let (before, after) = (ground(&[(0, 64), (64, 64)]), ground(&[(0, 64), (64, 128)]));
        for (after, expected) in [
            (&after, vec![ContextSynchronize::CODE, SlabUnmap::CODE, SlabMap::CODE, ContextSynchronize::CODE]),
            (&before, vec![ContextSynchronize::CODE]),
        ] {
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            let there = thread::spawn(move || answering(theirs));
            let mut replay = Replay::new(ours.into()).expect("a socket");
            after.make(&mut replay, Some(&before)).expect("answered");
            drop(replay);
            assert_eq!(there.join().expect("ended"), expected);
        }
    }
}
