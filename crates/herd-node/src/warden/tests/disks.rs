//! What disks do to a warden: a crash in the middle of a write, a directory that goes, no room.

use super::*;
use herd_core::limits::OFFICE_RENEW_MS;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Tells a test that it is the process another one has started, and where it is to work.
const PLACE: &str = "HERD_TEST_WARDEN";

/// This program, that runs one test as a process of its own in a place.
fn child(program: impl AsRef<OsStr>, before: &[&str], test: &str, place: &Path) -> Command {
    let this = std::env::current_exe().expect("a test has a binary");
    let mut command = Command::new(program.as_ref());
    if !before.is_empty() {
        command.args(before).arg(this);
    }
    command.args([&format!("warden::tests::disks::{test}"), "--exact", "--nocapture", "--test-threads=1"]);
    command.env(PLACE, place).stdout(Stdio::piped());
    command
}

/// Where this process is to work, if another test has started it.
fn told() -> Option<std::path::PathBuf> {
    std::env::var_os(PLACE).map(Into::into)
}

/// Nodes join as fast as they can; each is told on stdout once it is in.
fn join_on(place: &Path) -> ! {
    let (begun, _) = herd(place);
    println!("\nherd {:?}", begun.joined.herd.0);
    for number in 2..=255 {
        println!("\njoined {number} {}", joined(ask(&begun, join(number))).node.0);
    }
    std::process::exit(0);
}

#[test]
fn a_process_that_is_killed_in_the_middle_loses_no_answer() {
    if let Some(place) = told() {
        join_on(&place);
    }
    let this = std::env::current_exe().expect("a test has a binary");
    let directory = TempDir::new().expect("a directory");
    let test = "a_process_that_is_killed_in_the_middle_loses_no_answer";
    for (round, last) in [3, 9, 20].into_iter().enumerate() {
        let place = directory.path().join(format!("{round}"));
        let mut child: Child = child(&this, &[], test, &place).spawn().expect("it runs");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let (mut begun, mut told) = (String::new(), Vec::new());
        for line in lines.map_while(Result::ok) {
            match line.split_once(' ') {
                Some(("herd", herd)) => begun = herd.into(),
                Some(("joined", numbers)) => told.push(numbers.to_string()),
                _ => {}
            }
            if told.len() == last {
                // Nobody waits for it: the next join is on its way to the disk.
                child.kill().expect("it lives");
            }
        }
        child.wait().expect("it has ended");
        assert!(told.len() >= last, "{told:?}");
        let (again, _) = herd(&place);
        assert_eq!(format!("{:?}", again.joined.herd.0), begun);
        assert!(again.joined.incarnation > 1);
        for (at, line) in told.iter().enumerate() {
            assert_eq!(*line, format!("{0} {0}", at + 2));
        }
        let there = numbers(&again.map).len() - 1;
        assert!(there == told.len() || there == told.len() + 1, "{there} nodes, {} were told", told.len());
    }
}

#[test]
fn a_directory_that_is_taken_away_refuses_changes_until_it_is_back() {
    let directory = TempDir::new().expect("a directory");
    let (place, elsewhere) = (directory.path().join("data"), directory.path().join("elsewhere"));
    let (begun, watched) = herd(&place);
    fs::rename(&place, &elsewhere).expect("it moves");
    for number in [2, 3] {
        match ask(&begun, join(number)) {
            Err(Refusal::Store(text)) => assert!(text.contains("data/control was taken away: put it back"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    let told = seen(&watched.told);
    assert!(told.len() == 1 && told[0].contains("taken away"), "one line of it: {told:?}");
    fs::rename(&elsewhere, &place).expect("it moves");
    assert_eq!(joined(ask(&begun, join(2))).node.0.get(), 2, "it goes on");
    fs::remove_dir_all(&place).expect("it goes");
    ask(&begun, join(3)).expect_err("it is gone for good");
    assert_eq!(seen(&watched.told).len(), 2, "and that is told again");
    begun.warden.stop().expect("a clean end");
}

#[test]
fn a_directory_that_can_t_be_written_to_is_no_harm_to_who_has_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let directory = TempDir::new().expect("a directory");
    let (begun, _) = herd(directory.path());
    let mode = |mode| fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).expect("it is ours");
    mode(0o500);
    assert_eq!(joined(ask(&begun, join(2))).node.0.get(), 2);
    begun.warden.stop().expect("a clean end");
    if fs::write(directory.path().join("probe"), "").is_ok() {
        println!("not tried further: this user may write to any directory");
    } else {
        let error = refused(options(Some(directory.path()), true));
        assert!(error.to_string().contains("give the node a directory that it can write to"), "{error}");
    }
    mode(0o700);
    assert_eq!(numbers(&herd(directory.path()).0.map), [1, 2]);
}

#[test]
fn a_full_disk_refuses_changes_until_there_is_room() {
    let test = "a_full_disk_refuses_changes_until_there_is_room";
    if let Some(place) = told() {
        return fill(&place);
    }
    let directory = TempDir::new().expect("a directory");
    let script = r#"mount -t tmpfs -o size=256k,mode=700 none "$0" || exit 77; exec "$@""#;
    let place = directory.path().to_str().expect("a plain path");
    let before = ["-rm", "--propagation", "private", "sh", "-c", script, place];
    let output = child("unshare", &before, test, directory.path()).stderr(Stdio::piped()).output();
    let Ok(output) = output else { return println!("not tried: there is no unshare here") };
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || error.contains("unshare failed") {
        return println!("not tried: no small disk can be had here: {error}");
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("the disk was full"), "{said}{error}");
}

/// On a small disk: all of its room goes to another file.
fn fill(place: &Path) {
    let (begun, watched) = herd(place);
    let ballast = place.join("ballast");
    fs::write(&ballast, vec![0; 1 << 20]).expect_err("the disk is small");
    for number in [2, 3] {
        match ask(&begun, join(number)) {
            Err(Refusal::Store(text)) => assert!(text.contains("No space left on device"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    let told = seen(&watched.told);
    assert!(told.len() == 1 && told[0].contains("see to its disk"), "{told:?}");
    std::thread::sleep(Duration::from_millis(2 * OFFICE_RENEW_MS));
    assert_eq!(seen(&watched.told), told, "one line while it lasts");
    fs::remove_file(&ballast).expect("it is there");
    assert_eq!(joined(ask(&begun, join(2))).node.0.get(), 2);
    begun.warden.stop().expect("a clean end");
    assert_eq!(numbers(&herd(place).0.map), [1, 2]);
    println!("the disk was full");
}
