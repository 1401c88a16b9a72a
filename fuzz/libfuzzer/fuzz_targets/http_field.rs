//! libFuzzer on the target `http_field`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::http_field::run(input)));
