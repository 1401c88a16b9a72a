//! libFuzzer on the target `control_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::control_file::run(input)));
