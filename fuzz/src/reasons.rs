//! Reasons that are texts: where an error has no enum, its text in the source is the variant.
//!
//! A table of the texts stands beside the target; meeting another one is a finding, and a test compares the table with
//! the source of the parser, so neither can have a text the other lacks. `{...}` in a text stands for anything.

/// The text of `table` that `text` is made from.
pub(crate) fn reason(table: &'static [&'static str], text: &str) -> &'static str {
    let found = table.iter().find(|pattern| fits(pattern, text));
    found.unwrap_or_else(|| panic!("the reason {text:?} has no entry in the table of its target"))
}

/// Whether `text` is `pattern` with its `{...}` filled in.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, after)) = pattern.split_once('{') else { return pattern == text };
    let Some((_, pattern)) = after.split_once('}') else { return false };
    let Some(rest) = text.strip_prefix(start) else { return false };
    (0..=rest.len()).filter(|at| rest.is_char_boundary(*at)).any(|at| fits(pattern, &rest[at..]))
}

/// The literals behind any of `markers` in the source of a module, its tests left out.
#[cfg(test)]
pub(crate) fn literals(source: &str, markers: &[&str]) -> Vec<String> {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    // However the source is broken into lines, a literal stands right behind its comma.
    let close = |text: &str| text.replace(", \"", ",\"").replace(", or(", ",or(");
    let joined = close(&source.lines().map(str::trim).collect::<Vec<_>>().join(" ")).replace("( ", "(");
    let mut found = Vec::new();
    for marker in markers.iter().map(|marker| close(marker)) {
        for (at, _) in joined.match_indices(&marker) {
            let literal = joined[at + marker.len()..].split('"').next().unwrap_or_default();
            found.push(literal.to_string());
        }
    }
    found
}
