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

/// Those of them that do not forbid it, by what `variable` gives for a name.
pub fn allowing(variable: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, &'static str)> {
    let forbids =
        |(name, value): &(&str, &str)| variable(name).as_deref().map(str::trim) == Some(value);
    OFF.into_iter().filter(|each| !forbids(each)).collect()
}

fn checked(library: &str, variable: impl Fn(&str) -> Option<String>) -> Result<(), Error> {
    let allowing = allowing(variable);
    if allowing.is_empty() {
        return Ok(());
    }
    let set: Vec<String> = allowing
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    Err(Error::Usage {
        what: format!("{library} might use multicast"),
        legal: format!("set {} first", set.join(" ")),
    })
}

/// Call it before a library is started that could use multicast, such as NCCL.
///
/// # Errors
/// [`Error::Usage`] with what to set, unless every variable of [`OFF`] forbids it.
pub fn must_be_off(library: &str) -> Result<(), Error> {
    checked(library, |name| std::env::var(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_told_each_variable_that_does_not_forbid_it() {
        let none = |_: &str| None;
        let all = |name: &str| {
            let found = OFF.into_iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.to_owned())
        };
        assert_eq!(allowing(none), OFF);
        assert!(checked("NCCL", none).is_err() && checked("NCCL", all).is_ok());
        for (one, value) in OFF {
            let only = |name: &str| (name == one).then(|| value.to_owned());
            assert_eq!(allowing(only).len(), OFF.len() - 1, "{one} alone");
            let wrong = |name: &str| match name == one {
                true => Some(if value == "0" { "1" } else { "0" }.to_owned()),
                false => all(name),
            };
            let told = checked("NCCL", wrong).expect_err("it may");
            assert_eq!(told.to_string(), "NCCL might use multicast");
            assert_eq!(told.help(), Some(&format!("set {one}={value} first")[..]));
        }
    }
}
