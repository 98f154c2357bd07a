//! Tensor maps. The device's driver encodes them, because only the driver knows their format. The same arguments give
//! the same map, so the client caches the maps. A program that encodes a map before every launch needs one round trip.

use crate::Code;
use crate::devices::context::Live;
use crate::session::lock;
use protocol::{Message, TensorMap, Writer};
use std::collections::HashMap;
use std::sync::Mutex;

/// A request: the code of the message, and its encoded fields, of which the first is the context.
type Question = (u32, Vec<u8>);

/// The number of maps in a full generation of the cache. At least this many of the last used maps are kept.
const KEPT: usize = 2048;

/// A cache with two generations. When the young one is full, it replaces the old one. Entries that were not used in the
/// meantime are dropped.
#[derive(Default)]
struct Cache {
    young: HashMap<Question, TensorMap>,
    old: HashMap<Question, TensorMap>,
}

static CACHE: Mutex<Option<Cache>> = Mutex::new(None);

impl Cache {
    fn get(&mut self, question: &Question) -> Option<TensorMap> {
        if let Some(found) = self.young.get(question) {
            return Some(found.clone());
        }
        let (question, found) = self.old.remove_entry(question)?;
        self.put(question, found.clone());
        Some(found)
    }

    fn put(&mut self, question: Question, answer: TensorMap) {
        if self.young.len() >= KEPT {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(question, answer);
    }
}

/// Returns the driver's answer to a request, from the cache if possible.
///
/// # Errors
/// The driver's code, if it rejects the arguments or does not support tensor maps.
pub fn ask<M: Message>(live: &Live, message: &M) -> Result<TensorMap, Code> {
    live.session.check()?;
    let mut fields = Writer::new();
    fields.put(message);
    let question = (M::CODE, fields.bytes);
    if let Some(known) = lock(&CACHE).get_or_insert_default().get(&question) {
        return Ok(known);
    }
    let answer: TensorMap = live.session.call(0, message)?.success()?.decode()?;
    lock(&CACHE).get_or_insert_default().put(question, answer.clone());
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(n: u64) -> Question {
        (1, n.to_le_bytes().to_vec())
    }

    #[test]
    fn what_is_asked_for_stays_and_the_cache_stays_small() {
        let mut cache = Cache::default();
        for n in 0..10 * KEPT as u64 {
            cache.put(question(n), TensorMap { words: [n; 16], class: 0 });
            assert_eq!(cache.get(&question(0)).map(|map| map.words[0]), Some(0));
            assert!(cache.young.len() + cache.old.len() <= 2 * KEPT);
        }
        assert!(cache.get(&question(1)).is_none());
        assert_eq!(cache.get(&question(10 * KEPT as u64 - 1)).map(|map| map.words[3]), Some(10 * KEPT as u64 - 1));
        assert!(cache.get(&(2, question(0).1)).is_none());
    }
}
