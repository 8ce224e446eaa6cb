//! What several test binaries share.
#![allow(dead_code, reason = "each test binary uses some of it")]

pub mod schedules;

use counterflow::workbench::{Schedule, Surroundings, run_with};

/// What a call of the workbench gave.
#[derive(Debug)]
pub struct Told {
    pub code: u8,
    pub out: String,
    pub err: String,
}

/// Every schedule of these tests as one binary.
pub const ALL: [Schedule; 9] = [
    schedules::gemm,
    schedules::ag_gemm,
    schedules::ag_gemm_ring,
    schedules::gemm_rs,
    schedules::gemm_ar,
    schedules::bulk,
    schedules::forgets_one_peer,
    schedules::does_not_wait,
    schedules::copies_outside,
];

/// Calls the workbench with words separated by spaces.
pub fn tell(schedules: &[Schedule], words: &str) -> Told {
    tell_with(
        schedules,
        words.split_whitespace(),
        &Surroundings::default(),
    )
}

/// As [`tell`], with arguments as they are and surroundings.
pub fn tell_with<'a>(
    schedules: &[Schedule],
    words: impl IntoIterator<Item = &'a str>,
    surroundings: &Surroundings,
) -> Told {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = std::iter::once("workbench").chain(words);
    let code = run_with(args, schedules, surroundings, &mut out, &mut err);
    Told {
        code,
        out: String::from_utf8(out).expect("text"),
        err: String::from_utf8(err).expect("text"),
    }
}
