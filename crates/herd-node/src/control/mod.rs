//! A node's own directory, and the control stores: a file in that of the warden's node, for a herd that needs no other
//! program, or etcd.
//!
//! [`place`] says where the directory lies, [`Home`] is it, [`Home::store`] gives the store in it; `etcd` is the other
//! one. Calls of a store block while the disk or etcd works; so they are made from a thread of their own, never from an
//! event loop. Callers: `warden`.

mod disk;
mod embedded;
pub mod etcd;
mod home;
#[cfg(test)]
mod tests;

pub use embedded::OpenError;
pub use home::{Home, Record};

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The directory of a node's own files, if it has any place: `--data`, else one by the node's name below what
/// `STATE_DIRECTORY` (systemd), `XDG_STATE_HOME` or `HOME` name. `variable` reads the environment.
pub fn place(data: Option<&Path>, name: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(data) = data {
        return Some(data.to_path_buf());
    }
    let absolute = |path: PathBuf| Some(path).filter(|path| path.is_absolute());
    let named = |name: &str| variable(name).map(PathBuf::from).and_then(absolute);
    // systemd names several where it was told to make several.
    let state = variable("STATE_DIRECTORY").and_then(|paths| std::env::split_paths(&paths).next()).and_then(absolute);
    let state = state.or_else(|| named("XDG_STATE_HOME").map(|path| path.join("herd")));
    let state = state.or_else(|| named("HOME").map(|path| path.join(".local/state/herd")));
    state.map(|state| state.join(component(name)))
}

/// A name as one component of a path: all but letters, digits, `-`, `_` and dots within as `%` and two digits. What
/// would be too long for a file name ends in a checksum of the whole.
fn component(name: &str) -> String {
    const MOST: usize = 200;
    let mut text = String::new();
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'.' if at > 0 => text.push('.'),
            b'-' | b'_' => text.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    if text.len() > MOST {
        text.truncate(MOST);
        text.push_str(&format!("~{:08x}", herd_core::checksum::crc32c(name.as_bytes())));
    }
    text
}
