//! Names of files that are written beside their place and then moved there.

use rustix::rand::{GetRandomFlags, getrandom};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Part of a name that nobody else has. Processes of several containers may have the same number and write to the same
/// folder, so a process draws its own.
pub(crate) fn unique() -> String {
    static OWN: OnceLock<u64> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let own = OWN.get_or_init(|| drawn().unwrap_or_else(|| std::process::id().into()));
    format!("{own:x}.{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn drawn() -> Option<u64> {
    let mut number = [0; 8];
    let drawn = getrandom(&mut number[..], GetRandomFlags::empty());
    (drawn == Ok(number.len())).then_some(u64::from_le_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_number_have_names_of_their_own() {
        let names = [unique(), unique()];
        assert_ne!(names[0], names[1]);
        let own: Vec<&str> = names
            .iter()
            .map(|name| name.split('.').next().expect("a part"))
            .collect();
        assert_eq!(own[0], own[1]);
        assert_ne!(
            own[0],
            format!("{:x}", std::process::id()),
            "what another container may have"
        );
        assert_ne!(drawn(), drawn());
    }
}
