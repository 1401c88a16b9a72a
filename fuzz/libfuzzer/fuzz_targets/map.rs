//! libFuzzer on the target `map`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::map::run(input)));
