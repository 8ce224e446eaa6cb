//! NVLink multicast of the heap: who asks for it, who forbids it, and what must forbid it to other libraries.
//!
//! Where several programs share a host, one that makes a multicast object can put the others' GPUs out of service. So none is
//! made unless three things are so: the program was built with the feature `multicast`, it asks by
//! [`Communicator::multicast`](crate::Communicator::multicast), and no variable of [`OFF`] forbids it. Other libraries may make
//! one unless a variable of theirs says no, each its own.

mod calls;
#[cfg(test)]
pub(crate) mod recorded;
mod view;

#[cfg(feature = "multicast")]
pub(crate) use calls::Object;
pub(crate) use calls::{Calls, Granularity, Part, Team};
pub(crate) use view::View;

use crate::error::Error;

/// Request of a program for NVLink multicast of a communicator's heap.
///
/// ```
/// use counterflow::{Communicator, Multicast};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let refused = rank.multicast(Multicast::On).unwrap_err(); // with `Auto` it would go on
/// println!("{refused}: {}", refused.help().unwrap_or_default());
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Multicast {
    /// None: how each communicator begins.
    #[default]
    Off,
    /// Multicast where every rank can. Otherwise the communicator goes on without, and says why.
    Auto,
    /// On every rank, or it is an error.
    On,
}

/// State of multicast for a communicator's heap: the same on every rank.
///
/// ```
/// use counterflow::MulticastState;
///
/// fn told(state: &MulticastState) -> String {
///     match state {
///         MulticastState::On { bytes } => format!("a store reaches {bytes} bytes of every rank"),
///         MulticastState::Off { why, help } => format!("{why}: {help}"),
///         other => format!("{other:?}"),
///     }
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MulticastState {
    /// Nothing.
    Off {
        /// Reason that there is none.
        why: String,
        /// Advice on how to have it.
        help: String,
    },
    /// The beginning of every rank's slot.
    On {
        /// Bytes of each slot, from its start. Memory that `reserve` adds is reached too, unless the driver refuses that.
        bytes: u64,
    },
}

/// The variables that forbid multicast, each with the value that does: of the TransformerEngine's user buffers, NCCL,
/// PyTorch, NVSHMEM and cuBLASMp. Give all of them to every process that you start.
pub const OFF: [(&str, &str); 5] = [
    ("UB_SKIPMC", "1"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
    ("NVSHMEM_DISABLE_NVLS", "1"),
    ("CUBLASMP_DISABLE_MULTICAST", "1"),
];

/// The libraries of [`OFF`], in its order.
const LIBRARIES: [&str; OFF.len()] = [
    "TransformerEngine",
    "NCCL",
    "PyTorch",
    "NVSHMEM",
    "cuBLASMp",
];

/// Variables to set for a library, or for one that is not among those.
fn of(library: &str) -> Vec<(&'static str, &'static str)> {
    let own = LIBRARIES.into_iter().zip(OFF);
    let own: Vec<_> = own.filter(|(name, _)| *name == library).collect();
    match own.is_empty() {
        true => OFF.to_vec(),
        false => own.into_iter().map(|(_, variable)| variable).collect(),
    }
}

/// True if this program was built with the feature `multicast`.
pub const BUILT: bool = cfg!(feature = "multicast");

/// Variables of [`OFF`] that do not forbid it, by what `variable` gives for a name.
pub fn allowing(variable: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, &'static str)> {
    let forbids =
        |(name, value): &(&str, &str)| variable(name).as_deref().map(str::trim) == Some(value);
    OFF.into_iter().filter(|each| !forbids(each)).collect()
}

/// Variables that forbid it to this program, as they are set: any one is enough, and one that wants `1` forbids by
/// any value but `0`.
pub fn forbidding(variable: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
    let forbids = |(name, value): (&'static str, &str)| {
        let set = variable(name)?.trim().to_owned();
        let no = match value {
            "1" => !set.is_empty() && set != "0",
            value => set == value,
        };
        no.then_some((name, set))
    };
    OFF.into_iter().filter_map(forbids).collect()
}

/// Rejects what a variable forbids.
fn must_be_free(variable: impl Fn(&str) -> Option<String>) -> Result<(), Error> {
    let forbidding = forbidding(variable);
    let Some((variable, _)) = forbidding.first() else {
        return Ok(());
    };
    let set = forbidding
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let set = set.collect::<Vec<_>>().join(" ");
    Err(Error::Environment {
        variable,
        what: format!("{set} forbids multicast"),
        help: "go on without it; where nobody else uses the host's GPUs and multicast is allowed, unset that".into(),
    })
}

/// Rejects multicast of this program, unless it was built for it and no variable forbids it.
pub(crate) fn must_be_allowed() -> Result<(), Error> {
    if !BUILT {
        return Err(not_built());
    }
    must_be_free(|name| std::env::var(name).ok())
}

/// The error of a program that was built without the feature.
pub(crate) fn not_built() -> Error {
    Error::Usage {
        what: "multicast in a program that was built without it".into(),
        legal: "go on without it, or build with the feature `multicast`: docs/multicast.md says where that may run".into(),
    }
}

fn checked(library: &str, variable: impl Fn(&str) -> Option<String>) -> Result<(), Error> {
    let (allowing, own) = (allowing(variable), of(library));
    let set: Vec<String> = own
        .iter()
        .filter(|each| allowing.contains(each))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if set.is_empty() {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!("{library} might use multicast"),
        legal: format!("set {} first", set.join(" ")),
    })
}

/// Call it before a library is started that could use multicast, such as NCCL.
///
/// # Errors
/// [`Error::Usage`] with what to set, unless the library's variable of [`OFF`] forbids it: that of `"NCCL"`,
/// `"TransformerEngine"`, `"PyTorch"`, `"NVSHMEM"` or `"cuBLASMp"`. Of another library, all of them.
pub fn must_be_off(library: &str) -> Result<(), Error> {
    checked(library, |name| std::env::var(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_one_variable_forbids_it_with_its_name() {
        assert!(must_be_free(|_| None).is_ok());
        for (one, value) in OFF {
            let only = |name: &str| (name == one).then(|| format!(" {value}\n"));
            let told = must_be_free(only).expect_err("forbidden");
            assert_eq!(told.kind(), "environment");
            assert_eq!(told.to_string(), format!("{one}={value} forbids multicast"));
            assert!(matches!(told, Error::Environment { variable, .. } if variable == one));
            let allows = if value == "0" { "1" } else { "0" };
            for set in [allows, ""] {
                let only = |name: &str| (name == one).then(|| set.to_owned());
                assert!(must_be_free(only).is_ok(), "{one}={set:?}");
            }
        }
        // What wants `1` forbids by more than that.
        let told = must_be_free(|name| (name == "UB_SKIPMC").then(|| "yes".into()));
        assert_eq!(
            told.expect_err("forbidden").to_string(),
            "UB_SKIPMC=yes forbids multicast"
        );
        let all = |name: &str| {
            OFF.iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).into())
        };
        let told = must_be_free(all).expect_err("forbidden").to_string();
        assert!(
            OFF.iter()
                .all(|(name, value)| told.contains(&format!("{name}={value}"))),
            "{told}"
        );
    }

    #[test]
    fn a_program_that_was_built_without_it_is_told_how() {
        // These tests are built without, as everything of ours is.
        let told = must_be_allowed().expect_err("refused");
        assert_eq!(told.kind(), "usage");
        assert_eq!(
            told.to_string(),
            "multicast in a program that was built without it"
        );
        assert!(
            told.help()
                .is_some_and(|help| help.contains("the feature `multicast`"))
        );
        assert_eq!(Multicast::default(), Multicast::Off);
    }

    #[test]
    fn a_library_is_told_its_variable_unless_that_forbids_it() {
        for (library, (one, value)) in LIBRARIES.into_iter().zip(OFF) {
            assert_eq!(of(library), [(one, value)]);
            let only = |name: &str| (name == one).then(|| format!(" {value}\n"));
            assert!(checked(library, only).is_ok(), "no other's");
            let wrong = if value == "0" { "1" } else { "0" };
            for set in [None, Some(wrong.to_owned()), Some(String::new())] {
                let told = checked(library, |_| set.clone()).expect_err("it may");
                assert_eq!(told.to_string(), format!("{library} might use multicast"));
                assert_eq!(told.help(), Some(&format!("set {one}={value} first")[..]));
            }
        }
    }

    #[test]
    fn a_library_that_nobody_knows_is_told_every_variable() {
        let all = |name: &str| {
            let found = OFF.into_iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.to_owned())
        };
        assert!(checked("another", all).is_ok());
        for (one, value) in OFF {
            let told = checked("another", |name| all(name).filter(|_| name != one));
            let told = told.expect_err("it may");
            assert_eq!(told.help(), Some(&format!("set {one}={value} first")[..]));
        }
    }
}
