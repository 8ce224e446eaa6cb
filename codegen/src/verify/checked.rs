//! Accepted values.

use std::ops::Deref;
use std::sync::Arc;

/// A value that [`crate::verify`] accepted. Nothing else makes one.
#[derive(Clone, Debug)]
pub struct Checked<T>(pub(super) Arc<T>);

impl<T> Checked<T> {
    pub(super) fn new(value: T) -> Checked<T> {
        Checked(Arc::new(value))
    }
}

impl<T> Deref for Checked<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
