//! Candidates that are measured where no winner is known, on emulated ranks: their times are the emulator's.

use crate::schedules::{gather_of_choices, product};
use counterflow_runtime::family::{Family, Reason};
use counterflow_runtime::metrics::Why;
use counterflow_runtime::tuning::Tuning;
use counterflow_runtime::{Communicator, Error};

const SIZE: [usize; 3] = [256, 256, 128];
/// What the communicator itself has of its heap.
const COMMUNICATOR: u64 = (1 << 20) + (32 << 10);

/// What each rank does, in a world of two.
fn each<T: Send>(part: impl Fn(&Communicator) -> Result<T, Error> + Sync) -> Vec<T> {
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, part);
    done.unwrap_or_else(|error| panic!("{error}"))
}

/// Why a rank's ops have their choices.
fn whys(rank: &Communicator) -> Vec<Why> {
    rank.op_counts().iter().map(|op| op.why).collect()
}

#[test]
fn all_ranks_take_the_winner_of_a_measurement() {
    let [m, n, k] = SIZE;
    let done = each(|rank| {
        let program = gather_of_choices(false);
        let builder = rank.op(&program).tuning(Tuning::Quick).up_to(m, n, k);
        let memory = builder.workspace()?;
        rank.reserve(COMMUNICATOR + memory.heap)?;
        let op = builder.build()?;
        assert_eq!(op.unmeasured(m), None);
        assert_eq!(
            whys(rank),
            [Why::Measured],
            "one op is counted, and no candidate"
        );
        let used = rank.heap_use().used;
        assert!(used <= memory.heap, "{used} of {memory:?}");
        rank.barrier()?;
        Ok(op.variant().clone())
    });
    assert_eq!(done[0], done[1]);
}

/// What is measured again has another time.
#[test]
fn an_op_that_is_built_again_measures_nothing() {
    let [m, n, k] = SIZE;
    let family = Family::new("gathered", gather_of_choices(false)).or(gather_of_choices(true));
    each(|rank| {
        rank.reserve(8 << 20)?;
        let built = || {
            let builder = rank.family(&family).tuning(Tuning::Quick);
            builder.up_to(m, n, k).build()
        };
        let (first, again) = (built()?, built()?);
        let Reason::Measured { microseconds, .. } = first.why(m) else {
            panic!("{}", first.why(m));
        };
        assert!(microseconds > 0.0);
        assert_eq!(first.why(m), again.why(m));
        assert_eq!(first.variant(), again.variant());
        rank.barrier()
    });
}

#[test]
fn nothing_is_measured_where_it_is_off() {
    let [m, n, k] = SIZE;
    each(|rank| {
        let program = gather_of_choices(false);
        let builder = || rank.op(&program).up_to(m, n, k);
        let off = builder().tuning(Tuning::Off).workspace()?;
        assert_eq!(
            off,
            builder().workspace()?,
            "emulated GPUs are off by default"
        );
        assert_eq!(off.tuning, 0);
        rank.reserve(COMMUNICATOR + off.heap)?;
        let op = builder().tuning(Tuning::Off).build()?;
        assert_eq!(whys(rank), [Why::Model]);
        assert_eq!(op.unmeasured(m), None, "nothing was to be measured");
        rank.barrier()
    });
}

#[test]
fn nothing_is_measured_while_a_graph_is_recorded() {
    let [m, n, k] = SIZE;
    let family = Family::new("gathered", gather_of_choices(false)).or(gather_of_choices(true));
    each(|rank| {
        rank.reserve(8 << 20)?;
        let measured = || {
            let builder = rank.family(&family).tuning(Tuning::Quick);
            let op = builder.up_to(m, n, k).build()?;
            let measured = matches!(op.why(m), Reason::Measured { .. });
            let why = op.unmeasured(m).unwrap_or_default();
            assert_eq!(why.contains("a stream records a graph"), !measured, "{why}");
            Ok::<_, Error>(measured)
        };
        // One rank that records is enough.
        let mut recorded = None;
        match rank.rank() {
            0 => rank
                .capture(|_| measured().map(|it| recorded = Some(it)))
                .map(drop)?,
            _ => recorded = Some(measured()?),
        }
        assert_eq!(recorded, Some(false));
        rank.barrier()?;
        assert!(measured()?);
        rank.barrier()
    });
}

#[test]
fn what_leaves_nothing_open_is_not_measured() {
    each(|rank| {
        let program = gather_of_choices(false);
        let alone = product((128, 128));
        // It has one variant, so there is nothing to measure.
        rank.op(&alone)
            .tuning(Tuning::Full)
            .up_to(64, 64, 64)
            .build()?;
        assert_eq!(whys(rank), [Why::OnlyOne]);
        let first = rank.op(&program).first_options().tuning(Tuning::Full);
        rank.reserve(8 << 20)?;
        first.up_to(64, 64, 64).build()?;
        assert!(whys(rank).contains(&Why::FirstOptions));
        rank.barrier()
    });
}

#[test]
fn ranks_that_do_not_all_measure_the_same_are_told() {
    let [m, n, k] = SIZE;
    let told = |second: Tuning| {
        let ranks = Communicator::emulated(2).expect("ranks");
        let done = Communicator::each(&ranks, |rank| {
            rank.reserve(8 << 20)?;
            let program = gather_of_choices(false);
            let tuning = [Tuning::Quick, second][rank.rank() as usize];
            rank.op(&program).tuning(tuning).up_to(m, n, k).build()?;
            Ok(())
        });
        let error = done.expect_err("they differ");
        assert_eq!(error.kind(), "mismatch");
        error.to_string()
    };
    let off = told(Tuning::Off);
    assert!(off.contains("measures candidates"), "{off}");
    let full = told(Tuning::Full);
    assert_eq!(full, "rank 1 measures other candidates than rank 0");
}
