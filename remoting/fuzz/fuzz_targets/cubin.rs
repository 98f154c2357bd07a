#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remotegpu_fuzz::cubin(data));
