//! What one input reached: the cheap coverage signal of the driver, and what the corpus must reach completely.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The outcomes one input reached, each by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes(Vec<&'static str>);

impl Outcomes {
    /// Notes that `name` was reached.
    pub fn add(&mut self, name: &'static str) {
        if !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    /// The names, in the order they were first reached.
    pub fn names(&self) -> &[&'static str] {
        &self.0
    }

    /// A number for the set of names, whatever their order.
    pub fn signature(&self) -> u64 {
        let one = |name: &&str| {
            let mut hasher = DefaultHasher::new();
            name.hash(&mut hasher);
            hasher.finish()
        };
        self.0.iter().map(one).fold(0, u64::wrapping_add)
    }
}
