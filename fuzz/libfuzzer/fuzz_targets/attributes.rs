//! libFuzzer on the target `attributes`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::attributes::run(input)));
