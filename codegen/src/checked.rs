//! Accepted values.

use std::ops::Deref;
use std::sync::Arc;

/// A value that [`crate::verify`] accepted, with what is decided about it once. Nothing else makes one.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/example.rs")); }
/// let (series, _) = example::proven();
/// let kernel = series.kernel(); // a `Checked<Kernel>` is read as a `Kernel`
/// assert_eq!(kernel.name, "ag_gemm");
/// let cta = kernel.decided().fits()?.expect("it multiplies");
/// println!("{cta:?}");
/// # Ok::<(), counterflow_codegen::diag::Diagnostics>(())
/// ```
#[derive(Clone, Debug)]
pub struct Checked<T: Subject> {
    value: Arc<T>,
    decided: Arc<T::Decided>,
}

/// Value that [`crate::verify`] checks.
///
/// ```
/// use counterflow_codegen::verify::{Checked, Subject};
/// use std::fmt::Debug;
///
/// /// Of a kernel, a plan or a pipeline that was accepted.
/// fn told<T: Subject + Debug>(checked: &Checked<T>) {
///     println!("{:?}: {:?}", &**checked, checked.decided());
/// }
/// ```
pub trait Subject {
    /// Decisions that are kept beside the accepted value.
    type Decided: Clone + std::fmt::Debug;
}

impl<T: Subject> Checked<T> {
    /// For [`crate::verify`] and the proof alone: `tests/layering` holds the rest of the crate to that.
    pub(crate) fn new(value: T, decided: T::Decided) -> Checked<T> {
        Checked {
            value: Arc::new(value),
            decided: Arc::new(decided),
        }
    }

    /// The value, for whoever keeps it as long.
    pub(crate) const fn shared(&self) -> &Arc<T> {
        &self.value
    }

    /// Decisions about the value: of a kernel, how its tiles are computed.
    pub fn decided(&self) -> &T::Decided {
        &self.decided
    }
}

impl<T: Subject> Deref for Checked<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}
