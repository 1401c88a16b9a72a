//! libFuzzer on the target `session_wire`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::session_wire::run(input)));
