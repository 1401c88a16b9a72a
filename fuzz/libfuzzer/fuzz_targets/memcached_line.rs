//! libFuzzer on the target `memcached_line`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::memcached_line::run(input)));
