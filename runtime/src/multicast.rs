//! Who forbids multicast, and what must forbid it to other libraries.
//!
//! Nothing here makes a multicast object: where several programs share a host, one that does can put the others' GPUs
//! out of service. Other libraries may make one unless a variable of theirs says no, each its own.

use crate::error::Error;

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

/// What must be set for a library, or for one that is not among those.
fn of(library: &str) -> Vec<(&'static str, &'static str)> {
    let own = LIBRARIES.into_iter().zip(OFF);
    let own: Vec<_> = own.filter(|(name, _)| *name == library).collect();
    match own.is_empty() {
        true => OFF.to_vec(),
        false => own.into_iter().map(|(_, variable)| variable).collect(),
    }
}

/// Those of [`OFF`] that do not forbid it, by what `variable` gives for a name.
pub fn allowing(variable: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, &'static str)> {
    let forbids =
        |(name, value): &(&str, &str)| variable(name).as_deref().map(str::trim) == Some(value);
    OFF.into_iter().filter(|each| !forbids(each)).collect()
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
