//! Ranks that launch different things at the same moment: each of them is told what both sides launch.

use crate::schedules::{Sender, gather};
use counterflow_runtime::{Communicator, Error};
use half::bf16;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const ROWS: [usize; 2] = [48, 32];
const SIDE: usize = 16;
/// How long it may take until a rank is told, counted from when all may launch.
const TOLD: Duration = Duration::from_secs(1);

/// How a rank launches what it launches.
#[derive(Clone, Copy, Debug)]
enum Way {
    Own,
    Stream,
    Replay,
}

/// What each of three ranks is told if rank 1 launches other rows than the rest, after so many launches that agree.
fn told(ways: [Way; 2], before: usize) -> Vec<(String, String, Duration)> {
    let ranks = Communicator::emulated(3).expect("ranks");
    let program = gather(Sender::Ctas(4));
    let met = Barrier::new(3);
    let told = Communicator::each(&ranks, |rank| {
        rank.reserve(4 << 20)?;
        let builder = rank.op(&program).up_to(ROWS[0], SIDE, SIDE);
        let op = builder.first_options().build()?;
        let x = rank.allocate::<bf16>("x", [ROWS[0], SIDE])?;
        let w = rank.zeros::<bf16>([SIDE, SIDE])?;
        let mut y = rank.zeros::<bf16>([ROWS[0], SIDE])?;
        let stream = rank.gpu().stream()?;
        let differs = usize::from(rank.rank() == 1);
        let graph = rank.capture(|s| {
            let launch = op.on(s).tensor("x", &x).tensor("w", &w);
            let launch = launch.tensor("y", &mut y).rows(ROWS[differs]);
            launch.launch().map(drop)
        })?;
        for launch in 0..before {
            let launching = op.on(&stream).tensor("x", &x).tensor("w", &w);
            let launching = launching.tensor("y", &mut y);
            launching.rows(ROWS[launch % 2]).launch()?;
        }
        met.wait();
        let start = Instant::now();
        let launched = match ways[differs] {
            Way::Replay => graph.launch(&stream),
            way => {
                let launch = match way {
                    Way::Own => op.on(rank),
                    Way::Stream | Way::Replay => op.on(&stream),
                };
                let launch = launch.tensor("x", &x).tensor("w", &w);
                launch.tensor("y", &mut y).rows(ROWS[differs]).launch()
            }
        };
        let error = launched
            .and_then(|done| done.wait())
            .expect_err("they differ");
        let took = start.elapsed();
        // Nobody leaves before all were told.
        met.wait();
        Ok((error.kind().to_owned(), error.to_string(), took))
    });
    told.unwrap_or_else(|error: Error| panic!("{error}"))
}

#[test]
fn every_rank_is_told_both_sides_of_a_difference_within_a_second() {
    let all = [Way::Own, Way::Stream, Way::Replay];
    let pairs = all.iter().flat_map(|one| all.map(|other| [*one, other]));
    for (ways, before) in pairs.flat_map(|ways| [(ways, 0), (ways, 5)]) {
        for (rank, (kind, text, took)) in told(ways, before).into_iter().enumerate() {
            let case = format!("{ways:?} after {before}, rank {rank}: {text}");
            assert_eq!(kind, "mismatch", "{case}");
            let launch = format!("the ranks differ in launch {before}: ");
            assert!(text.starts_with(&launch), "{case}");
            for rows in ROWS {
                assert!(text.contains(&format!("of {rows} rows")), "{case}");
            }
            assert!(took < TOLD, "{case}: after {took:?}");
        }
    }
}
