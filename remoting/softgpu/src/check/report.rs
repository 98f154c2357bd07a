//! The names of operations, and the printed reports of conflicts.

use super::clocks::Point;
use super::shadow::Conflict;
use crate::engine::watch::Access;
use crate::ffi::print;
use driverapi::constants::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The description of an operation or of a part of it.
#[derive(Clone)]
pub struct What {
    pub point: Point,
    pub stream: usize,
    pub in_graph: bool,
    pub name: Arc<str>,
}

/// An operation's name and stream.
type Named = (Arc<str>, usize);

#[derive(Default)]
pub struct Reports {
    /// The descriptions. The operation with number n has index n - 1.
    all: RwLock<Vec<What>>,
    told: Mutex<HashSet<[Named; 2]>>,
}

fn stream_name(what: &What) -> String {
    let graph = if what.in_graph { "a graph on " } else { "" };
    let stream = match what.stream {
        id if id == CU_STREAM_LEGACY.addr() => "the legacy default stream".to_owned(),
        id if id == CU_STREAM_PER_THREAD.addr() => "a per-thread default stream".to_owned(),
        id => format!("stream 0x{id:x}"),
    };
    format!("{graph}{stream}")
}

fn verb(access: Access) -> &'static str {
    match access {
        Access::Read | Access::StrongRead => "reads",
        Access::Write => "writes",
        Access::StrongWrite => "changes",
    }
}

impl Reports {
    pub fn add(&self, what: What) -> u32 {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.push(what);
        all.len() as u32
    }

    /// Adds a part of an operation, and returns the part's number.
    pub fn add_part(&self, id: u32, point: Point) -> u32 {
        self.add(What { point, ..self.what(id) })
    }

    pub fn name(&self, id: u32, name: &str) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(what) = all.get_mut(id as usize - 1)
            && &*what.name != name
        {
            what.name = name.into();
        }
    }

    pub fn point(&self, id: u32) -> Point {
        self.all.read().unwrap_or_else(PoisonError::into_inner)[id as usize - 1].point
    }

    fn what(&self, id: u32) -> What {
        self.all.read().unwrap_or_else(PoisonError::into_inner)[id as usize - 1].clone()
    }

    /// Prints a conflict. For each pair of operation names and streams only the first conflict is printed.
    pub fn tell(&self, found: Conflict, id: u32, access: Access, line: u64) {
        let (first, second) = (self.what(found.id), self.what(id));
        let mut pair = [&first, &second].map(|what| (Arc::clone(&what.name), what.stream));
        pair.sort();
        if !self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(pair) {
            return;
        }
        let from = line + u64::from(found.bytes.trailing_zeros());
        let to = line + u64::from(63 - found.bytes.leading_zeros());
        print(&format!(
            "remotegpu: overlap: {} on {} {} and {} on {} {} bytes 0x{from:x} to 0x{to:x}, and nothing orders them: \
             record an event behind the first and let the second's stream wait for it (docs/overlap-checker.md)",
            first.name,
            stream_name(&first),
            verb(found.access),
            second.name,
            stream_name(&second),
            verb(access),
        ));
    }
}
