//! libFuzzer on the target `door_sniff`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::door_sniff::run(input)));
