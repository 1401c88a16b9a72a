//! herd.
fn main() {}
