//! Names for handles and addresses, so that two runs can be compared. A name is a kind and a number, counted in the
//! order of first appearance.

use crate::value::Value;
use std::collections::{BTreeMap, HashMap};

/// The first value that is a handle. Lower values are CUDA's constants, such as the default streams.
const CONSTANTS: u64 = 16;

#[derive(Default)]
pub struct Names {
    /// Whether the names come from a recording. If so, an unknown object must not get a new name.
    given: bool,
    handles: HashMap<(&'static str, u64), u64>,
    raw: HashMap<String, u64>,
    counts: HashMap<&'static str, u64>,
    allocations: BTreeMap<u64, Allocation>,
    bases: HashMap<u64, u64>,
    made: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allocation {
    pub number: u64,
    pub base: u64,
    pub bytes: u64,
    /// Whether the host may read and write the memory.
    pub hosts: bool,
}

/// The name of an address that belongs to no allocation.
pub const ELSEWHERE: &str = "elsewhere";

impl Names {
    pub fn given() -> Self {
        Self { given: true, ..Self::default() }
    }

    pub fn handle(&mut self, kind: &'static str, raw: u64) -> Value {
        match raw {
            0 => return Value::Null,
            1..CONSTANTS => return Value::Unsigned(raw),
            _ => {}
        }
        // The driver accepts a kernel in place of a function.
        let kind = if kind == "function" && self.is_kernel(raw) { "kernel" } else { kind };
        match self.handles.get(&(kind, raw)) {
            Some(number) => Value::Text(format!("{kind}#{number}")),
            None if self.given => Value::Unnamed(kind, raw),
            None => self.new_handle(kind, raw),
        }
    }

    pub fn is_kernel(&self, raw: u64) -> bool {
        self.handles.contains_key(&("kernel", raw))
    }

    /// Returns a new name for a new handle. An older handle with the same value loses its name.
    pub fn new_handle(&mut self, kind: &'static str, raw: u64) -> Value {
        if raw < CONSTANTS {
            return Value::integer(raw, 8, false);
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        self.handles.insert((kind, raw), *count);
        Value::Text(format!("{kind}#{count}"))
    }

    /// Binds a recorded name to a handle. Returns `false` if the name already has a handle, or is not of this kind.
    pub fn bind(&mut self, name: &str, kind: &'static str, raw: u64) -> bool {
        let number = name.split_once('#').filter(|(of, _)| *of == kind).and_then(|(_, number)| number.parse().ok());
        let Some(number) = number.filter(|_| !self.raw.contains_key(name)) else { return false };
        self.raw.insert(name.to_owned(), raw);
        self.handles.insert((kind, raw), number);
        true
    }

    pub fn raw(&self, name: &str) -> Option<u64> {
        self.raw.get(name).copied()
    }

    pub fn address(&self, address: u64) -> Value {
        match self.allocation_at(address) {
            _ if address == 0 => Value::Null,
            Some(found) => Value::Text(format!("memory#{}+{}", found.number, address - found.base)),
            None => Value::text(ELSEWHERE),
        }
    }

    pub fn allocation_at(&self, address: u64) -> Option<Allocation> {
        let (_, found) = self.allocations.range(..=address).next_back()?;
        (address - found.base < found.bytes.max(1)).then_some(*found)
    }

    /// Returns the address that a name stands for, or `None` if the name is not known.
    pub fn address_of(&self, name: &str) -> Option<u64> {
        let (number, offset) = name.strip_prefix("memory#")?.split_once('+')?;
        self.bases.get(&number.parse().ok()?)?.checked_add(offset.parse().ok()?)
    }

    /// Returns the name of an allocation. A new allocation gets a new number.
    pub fn allocate(&mut self, base: u64, bytes: u64, hosts: bool) -> Value {
        let known = self.allocations.get(&base).is_some_and(|known| known.bytes == bytes && known.hosts == hosts);
        if !known {
            self.made += 1;
            self.insert(Allocation { number: self.made, base, bytes, hosts });
        }
        self.address(base)
    }

    pub fn insert(&mut self, new: Allocation) {
        let end = new.base.saturating_add(new.bytes.max(1));
        let stale: Vec<u64> = self.allocations.range(new.base..end).map(|(base, _)| *base).collect();
        for base in stale {
            self.allocations.remove(&base);
        }
        self.bases.insert(new.number, new.base);
        self.allocations.insert(new.base, new);
    }

    pub fn free(&mut self, base: u64) -> Option<Allocation> {
        self.allocations.remove(&base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_numbered_by_kind_and_newly_when_made_again() {
        let mut names = Names::default();
        assert_eq!(names.new_handle("stream", 0x700), Value::text("stream#1"));
        assert_eq!(names.handle("stream", 0x700), Value::text("stream#1"));
        assert_eq!(names.handle("event", 0x700), Value::text("event#1"));
        assert_eq!(names.new_handle("stream", 0x700), Value::text("stream#2"));
        assert_eq!((names.handle("stream", 0), names.handle("stream", 2)), (Value::Null, Value::Unsigned(2)));
        names.handle("kernel", 0x900);
        assert_eq!(names.handle("function", 0x900), Value::text("kernel#1"));
    }

    #[test]
    fn a_given_name_is_bound_once() {
        let mut names = Names::given();
        assert_eq!(names.handle("context", 0x700), Value::Unnamed("context", 0x700));
        assert!(!names.bind("stream#1", "context", 0x700));
        assert!(names.bind("context#4", "context", 0x700));
        assert!(!names.bind("context#4", "context", 0x800));
        assert_eq!((names.handle("context", 0x700), names.raw("context#4")), (Value::text("context#4"), Some(0x700)));
    }

    #[test]
    fn addresses_are_offsets_into_the_allocation_that_lives() {
        let mut names = Names::default();
        assert_eq!(names.allocate(4096, 100, false), Value::text("memory#1+0"));
        assert_eq!(names.address(4195), Value::text("memory#1+99"));
        assert_eq!((names.address(4196), names.address(0)), (Value::text(ELSEWHERE), Value::Null));
        assert_eq!(names.allocate(4000, 200, true), Value::text("memory#2+0"));
        assert_eq!(names.address(4096), Value::text("memory#2+96"));
        assert_eq!(names.address_of("memory#2+96"), Some(4096));
        names.free(4000);
        assert_eq!(names.address(4096), Value::text(ELSEWHERE));
        assert!(
            ["memory#9+0", "memory#+", "stream#1", "memory#2+99999999999999999999"]
                .iter()
                .all(|n| names.address_of(n).is_none())
        );
    }
}
