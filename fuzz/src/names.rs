//! Names of the variants of an enum, made so that no variant can be left out.

/// Makes a function from a variant to its name, a match without wildcard, and the list of all names it can give: a new
/// variant does not compile before it has a name, and its name must then be reached by the corpus.
///
/// Variants behind `never` are those the parser in question does not give; meeting one is a finding.
macro_rules! names {
    ($function:ident, $all:ident, $type:ty {
        $($pattern:pat => $name:literal,)+
        $(; never $other:pat)?
    }) => {
        fn $function(value: &$type) -> &'static str {
            match value {
                $($pattern => $name,)+
                $($other => panic!("the parser does not give {value:?}"),)?
            }
        }
        const $all: &[&str] = &[$($name),+];
    };
}

pub(crate) use names;
