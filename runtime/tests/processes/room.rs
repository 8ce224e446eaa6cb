//! A process that may not have the memory that its emulated GPUs are to have.

use super::{last_words, started};
use counterflow::{Communicator, Error};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a process does for the test below, if it is that.
pub fn done(part: &str) -> Option<Result<(), Error>> {
    (part == "room").then(refused)
}

/// As `ulimit -v` says it: so many bytes of addresses more than this process has.
fn no_more_than(bytes: u64) {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = pages.split(' ').next().and_then(|pages| pages.parse().ok());
    let has: u64 = pages.map(|pages: u64| pages * 4096).expect("a number");
    let most = Rlimit {
        current: Some(has + bytes),
        ..getrlimit(Resource::As)
    };
    setrlimit(Resource::As, most).expect("set");
}

/// What there is no room for is refused, and all else goes on.
fn refused() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    no_more_than(600 << 20);
    Communicator::each(&ranks, |rank| {
        rank.reserve(4 << 20)?;
        let small = rank.allocate::<u8>("small", [1 << 20])?;
        small.fill(7)?;
        let large = [
            rank.zeros::<u8>([1 << 30]).map(drop),
            rank.reserve(2 << 30),
            rank.zeros::<u64>([1 << 28]).map(drop),
        ];
        for refused in large {
            let error = refused.expect_err("no room");
            assert_eq!(error.kind(), "too_large", "{error}");
            assert!(
                error.to_string().contains("of an emulated GPU's memory"),
                "{error}"
            );
            assert!(error.help().is_some_and(|help| help.contains("ulimit -v")));
        }
        assert!(small.read()?.iter().all(|byte| *byte == 7));
        rank.zeros::<u8>([1 << 20])?.fill(1)?;
        rank.barrier()
    })
    .map(drop)
}

#[test]
fn memory_that_a_process_may_not_have_is_refused_and_it_goes_on() {
    assert_eq!(last_words(&started("room", 60)), ["fine"; super::WORLD]);
}
