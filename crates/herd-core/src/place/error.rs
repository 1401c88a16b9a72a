//! Why bytes are no map, or a change makes none.

use std::fmt;

/// What is wrong with a map or its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The bytes end too early.
    CutShort,
    /// The bytes are not those of a map.
    NotAMap,
    /// Written by a later version.
    Version(u8),
    /// More bytes than a map may have.
    TooLong(usize),
    /// The checksum does not hold.
    BadChecksum,
    /// The difference follows another map than the one at hand: get the whole map.
    OtherBase,
    /// The parts do not go together: what, and of which node, group or collection.
    Invalid(&'static str, u64),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::CutShort => f.write_str("the map is cut short"),
            MapError::NotAMap => f.write_str("these bytes are not a map"),
            MapError::Version(version) => write!(f, "the map has format {version}: this program reads format 1"),
            MapError::TooLong(bytes) => write!(f, "a map of {bytes} bytes is too long"),
            MapError::BadChecksum => f.write_str("the map's checksum does not hold"),
            MapError::OtherBase => f.write_str("the change of the map follows another map"),
            MapError::Invalid(what, which) => write!(f, "the map is not valid: {what} ({which})"),
        }
    }
}

impl std::error::Error for MapError {}
