//! libFuzzer on the target `key`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::key::run(input)));
