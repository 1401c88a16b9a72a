//! What a client is told of the herd's map, so that it goes straight to the owners, and whether it has found the node
//! it means (PROTOCOL.md §1.13).

use super::write_frame;
use crate::context::{Context, Output};
use herd_core::wire::{Fields, Header, LinkErrorKind, MapMark, Meant, Routes, Status};
use herd_core::{Error, ErrorKind};

/// Answers a client that asks for the map: with what it goes by, and the map if that is later than the client's.
#[cold]
pub(super) fn answer(cx: &Context, request: &Header, fields: &Fields<'_>, out: &mut Output<'_>) -> Result<(), Error> {
    cx.was_dear();
    let bad = |error: herd_core::wire::WireError| Error::new(ErrorKind::BadRequest, error.to_string());
    let theirs = MapMark::told(request, fields).map_err(bad)?;
    let ours = cx.shared.place.get().and_then(|place| place.map()).filter(|(map, _)| map.nodes.len() > 1);
    let Some((map, held)) = ours else {
        write_frame(cx.reply_to(request, Status::Ok), &Fields::default(), &[], out);
        return Ok(());
    };
    let mark = MapMark::of(&map, held);
    let bytes = if theirs.is_none_or(|theirs| theirs < mark) { map.encode() } else { Vec::new() };
    let routes = Routes { mark, key: cx.shared.store.hash_key() };
    routes.encode(out.buf, request, &bytes).map_err(|error| Error::new(ErrorKind::TooLarge, error.to_string()))
}

/// Refuses a hello that means another node, with the code of the goodbye and what it says.
pub(super) fn check_meant(cx: &Context, fields: &Fields<'_>) -> Result<(), (u16, &'static str)> {
    let another = (LinkErrorKind::OtherNode as u16, "another node answers here than the one that is meant");
    match Meant::told(fields) {
        Ok(None) => Ok(()),
        Ok(Some(meant)) if cx.shared.place.get().is_some_and(|place| place.is_meant(meant)) => Ok(()),
        Ok(Some(_)) | Err(_) => Err(another),
    }
}
