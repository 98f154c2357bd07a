//! A cache of a context's driver answers, which hold until a setting changes, and of the last settings. The client
//! neither repeats a question whose answer it has, nor sends a setting that is already set.

use crate::session::lock;
use protocol::function;
use std::collections::HashMap;
use std::sync::Mutex;

/// The kind of a generated call, for the cache of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A query whose answer does not change until the program sets something.
    Question,
    /// A call that sets a value. Repeating it with the same value has no effect.
    Preference,
    Other,
}

pub fn kind(number: u32) -> Kind {
    match number {
        function::CU_CTX_GET_LIMIT
        | function::CU_CTX_GET_CACHE_CONFIG
        | function::CU_CTX_GET_SHARED_MEM_CONFIG
        | function::CU_OCCUPANCY_MAX_ACTIVE_BLOCKS_PER_MULTIPROCESSOR
        | function::CU_OCCUPANCY_MAX_ACTIVE_BLOCKS_PER_MULTIPROCESSOR_WITH_FLAGS
        | function::CU_OCCUPANCY_AVAILABLE_DYNAMIC_S_MEM_PER_BLOCK
        | function::CU_OCCUPANCY_MAX_POTENTIAL_CLUSTER_SIZE
        | function::CU_OCCUPANCY_MAX_ACTIVE_CLUSTERS => Kind::Question,
        function::CU_CTX_SET_CACHE_CONFIG
        | function::CU_CTX_SET_SHARED_MEM_CONFIG
        | function::CU_FUNC_SET_CACHE_CONFIG
        | function::CU_FUNC_SET_SHARED_MEM_CONFIG => Kind::Preference,
        _ => Kind::Other,
    }
}

/// The maximum number of cached answers. When it is reached, all are dropped.
const MOST: usize = 4096;

#[derive(Default)]
struct Known {
    answers: HashMap<Vec<u8>, Vec<u8>>,
    /// The last value that the program set. The key is the call without its last field, the value.
    preferences: HashMap<Vec<u8>, Vec<u8>>,
}

/// The cached answers and settings of one context.
#[derive(Default)]
pub struct Answers(Mutex<Known>);

/// Splits an encoded call into the call without its last field, and this field: a value of four bytes.
fn split(call: &[u8]) -> (&[u8], &[u8]) {
    call.split_at(call.len().saturating_sub(4))
}

impl Answers {
    pub fn answer(&self, question: &[u8]) -> Option<Vec<u8>> {
        lock(&self.0).answers.get(question).cloned()
    }

    pub fn note_answer(&self, question: Vec<u8>, answer: &[u8]) {
        let answers = &mut lock(&self.0).answers;
        if answers.len() >= MOST {
            answers.clear();
        }
        answers.insert(question, answer.to_vec());
    }

    pub fn is_set(&self, preference: &[u8]) -> bool {
        let (what, value) = split(preference);
        lock(&self.0).preferences.get(what).is_some_and(|set| set == value)
    }

    /// Records a setting that the driver accepted, and drops all answers, because they may have changed.
    pub fn note_preference(&self, preference: &[u8]) {
        let (what, value) = split(preference);
        let known = &mut *lock(&self.0);
        known.answers.clear();
        known.preferences.insert(what.to_vec(), value.to_vec());
    }

    /// Drops all answers, because a limit may have changed.
    pub fn note_limit(&self) {
        lock(&self.0).answers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_hold_until_something_is_set() {
        let answers = Answers::default();
        answers.note_answer(vec![1, 2], &[3]);
        assert_eq!(answers.answer(&[1, 2]), Some(vec![3]));
        assert_eq!(answers.answer(&[1]), None);
        answers.note_preference(&[9, 0, 0, 0, 1]);
        assert_eq!(answers.answer(&[1, 2]), None);
        assert!(answers.is_set(&[9, 0, 0, 0, 1]));
        assert!(!answers.is_set(&[9, 0, 0, 0, 2]));
        assert!(!answers.is_set(&[8, 0, 0, 0, 1]));
        answers.note_answer(vec![1, 2], &[4]);
        answers.note_limit();
        assert_eq!(answers.answer(&[1, 2]), None);
        assert!(answers.is_set(&[9, 0, 0, 0, 1]));
    }

    #[test]
    fn answers_are_bounded() {
        let answers = Answers::default();
        for i in 0..=MOST as u32 {
            answers.note_answer(i.to_le_bytes().to_vec(), &[]);
        }
        assert_eq!(answers.answer(&0u32.to_le_bytes()), None);
        assert_eq!(answers.answer(&(MOST as u32).to_le_bytes()), Some(vec![]));
    }
}
