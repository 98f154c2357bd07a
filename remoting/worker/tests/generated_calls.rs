//! The fields of generated calls, against a driver that has none of the functions.

use protocol::{DecodeError, Reader, Writer, function_name};
use remotegpu_worker::driver::{Functions, Raw};
use remotegpu_worker::generated::{call, class};
use remotegpu_worker::session::calls::Objects;
use std::ptr::null_mut;

/// A table in which every object exists.
struct Everything;

impl Objects for Everything {
    fn enter(&self, _: u64) -> Result<(), u32> {
        Ok(())
    }
    fn event(&self, _: u64) -> Result<Raw, u32> {
        Ok(null_mut())
    }
    fn function(&self, _: u64, _: u32) -> Result<Raw, u32> {
        Ok(null_mut())
    }
}

fn call_with(number: u32, payload: &[u8]) -> Result<u32, DecodeError> {
    let mut out = Writer::new();
    let result = call(number, &Functions::default(), &Everything, null_mut(), &mut Reader::new(payload), &mut out);
    assert!(out.bytes.is_empty());
    result
}

#[test]
fn only_the_exact_fields_reach_the_driver() {
    const LONGEST: usize = 128;
    const NOT_SUPPORTED: u32 = 801;
    let mut functions = 0;
    for number in (0..0x8000).filter(|n| class(*n).is_some()) {
        functions += 1;
        let results: Vec<_> = (0..LONGEST).map(|len| call_with(number, &vec![0; len])).collect();
        let exact = results.iter().position(Result::is_ok).expect("zeros are values of every field");
        let name = function_name(number);
        assert_eq!(results[exact], Ok(NOT_SUPPORTED), "{name:?}");
        assert!(results[..exact].iter().all(|r| *r == Err(DecodeError::Truncated)), "{name:?}");
        assert!(results[exact + 1..].iter().all(|r| *r == Err(DecodeError::Trailing)), "{name:?}");
    }
    assert!(functions > 0);
}

#[test]
fn a_number_that_is_no_function_is_malformed() {
    assert_eq!(call_with(0, &[]), Err(DecodeError::Invalid));
}
