//! The program; all it does is in the library, which has the tests.

/// As the node's own: a run allocates much.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    herd_sim::cli::main()
}
