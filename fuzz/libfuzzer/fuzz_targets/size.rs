//! libFuzzer on the target `size`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::size::run(input)));
