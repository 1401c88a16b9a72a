//! libFuzzer on the target `memcached_delta`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::memcached_delta::run(input)));
