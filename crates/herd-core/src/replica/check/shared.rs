//! A piece of a state that many states share: cloned and hashed in no time, copied when it changes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::rc::Rc;

#[derive(Clone, Debug)]
pub(super) struct Shared<T> {
    inner: Rc<T>,
    hash: u64,
}

impl<T: Clone + Hash> Shared<T> {
    pub(super) fn new(inner: T) -> Self {
        let mut hasher = DefaultHasher::new();
        inner.hash(&mut hasher);
        Self { inner: Rc::new(inner), hash: hasher.finish() }
    }

    pub(super) fn take(self) -> T {
        Rc::unwrap_or_clone(self.inner)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}
