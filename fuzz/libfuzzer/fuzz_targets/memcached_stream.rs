//! libFuzzer on the target `memcached_stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(herd_fuzz::targets::memcached_stream::run(input)));
