//! Profiles that come with the package.

use super::profile::Profile;
use super::rates::Machine;
use std::sync::LazyLock;

const H100: &str = include_str!("../../profiles/h100.toml");
const H200: &str = include_str!("../../profiles/h200.toml");

fn read(text: &str) -> Profile {
    // A test reads both.
    Profile::parse(text).unwrap_or_else(|why| panic!("a profile of the package: {why}"))
}

static BOTH: LazyLock<[Profile; 2]> = LazyLock::new(|| [H100, H200].map(read));

/// The profile that comes with the package for a GPU of that name, as its driver spells it: that of an H100 SXM for every H100, and
/// an H200's for every other GPU. Where it is another one, [`Profile::gpu`] says so: measure it.
pub fn shipped(gpu: &str) -> &'static Profile {
    let [h100, h200] = &*BOTH;
    match gpu.contains("H100") {
        true => h100,
        false => h200,
    }
}

impl Machine {
    /// One H200 of an NVSwitch domain, by the profile that comes with the package. For tests and predictions without a GPU: a run
    /// takes the profile of its own.
    pub fn h200() -> Machine {
        of(&BOTH[1])
    }

    /// One H100 SXM of an NVSwitch domain, in the same way.
    pub fn h100() -> Machine {
        of(&BOTH[0])
    }
}

fn of(profile: &Profile) -> Machine {
    profile
        .machine()
        .unwrap_or_else(|why| panic!("a profile of the package: {why}"))
}
