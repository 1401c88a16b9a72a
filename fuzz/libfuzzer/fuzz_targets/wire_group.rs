//! libFuzzer on the target `wire_group`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::wire_group::run(input)));
