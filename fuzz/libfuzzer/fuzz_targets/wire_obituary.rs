//! libFuzzer on the target `wire_obituary`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::wire_obituary::run(input)));
