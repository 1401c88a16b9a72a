//! libFuzzer on the target `collection`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::collection::run(input)));
