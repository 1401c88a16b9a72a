//! What a node does when it finds a defect in itself: a panic of any thread ends the process at once. Other threads
//! would go on with what the panic left half changed, and every lock is taken whether it is poisoned or not.
//!
//! Callers: the binary, before it starts a node.

use std::io::Write;
use std::panic::{PanicHookInfo, set_hook};

/// Has every panic of this process write one line to stderr, what and where, and abort.
pub fn abort_on_panic() {
    set_hook(Box::new(|info| {
        // A closed stderr is no reason to live on.
        writeln!(std::io::stderr(), "{}", line(info)).ok();
        std::process::abort();
    }));
}

fn line(info: &PanicHookInfo<'_>) -> String {
    let what = info.payload_as_str().unwrap_or("a panic without a text").replace('\n', " ");
    let at = info.location().map_or_else(|| "an unknown place".into(), ToString::to_string);
    format!("herd: defect: {what}, at {at}; the node ends at once, please report this line")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::Duration;

    const CHILD: &str = "HERD_TEST_PANICS";

    #[test]
    fn a_panic_of_any_thread_ends_the_process_with_one_line() {
        if std::env::var_os(CHILD).is_some() {
            abort_on_panic();
            std::thread::spawn(|| panic!("a broken\ninvariant")).join().ok();
            std::thread::sleep(Duration::from_secs(10));
            std::process::exit(0);
        }
        let this = std::env::current_exe().expect("a test has a binary");
        let name = "defect::tests::a_panic_of_any_thread_ends_the_process_with_one_line";
        let output = Command::new(this)
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .current_dir(std::env::temp_dir())
            .output()
            .expect("it runs");
        const SIGABRT: i32 = 6;
        assert_eq!(output.status.signal(), Some(SIGABRT));
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.starts_with("herd: defect: a broken invariant, at crates/herd-node/src/defect.rs:"), "{text}");
    }
}
