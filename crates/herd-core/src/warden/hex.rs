//! Ids and keys of 16 bytes as people read them in what a node keeps.

use serde::{Deserialize, Serialize};

/// 16 bytes; in JSON 32 hex digits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hex(pub [u8; 16]);

impl From<Hex> for String {
    fn from(hex: Hex) -> String {
        format!("{:032x}", u128::from_be_bytes(hex.0))
    }
}

impl TryFrom<String> for Hex {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let number = Some(text).filter(|text| text.len() == 32).and_then(|text| u128::from_str_radix(&text, 16).ok());
        number.map(|number| Hex(number.to_be_bytes())).ok_or("not 32 hex digits")
    }
}
