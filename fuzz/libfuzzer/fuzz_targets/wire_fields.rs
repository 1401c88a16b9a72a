//! libFuzzer on the target `wire_fields`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::wire_fields::run(input)));
