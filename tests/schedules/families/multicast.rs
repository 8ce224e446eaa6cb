//! What needs multicast is predicted beside a family's candidates, and no op is built of it.

use super::{GPU, won};
use crate::candidates::{MOST, built};
use counterflow::family::{self, Choice, Family, Reason};
use counterflow::tuned::{Tuned, Winner};
use counterflow::{Communicator, Shape, Variant, families, schedules};

/// Predictions compare what needs multicast with the rest. No op is built of it, whatever a family or a table says.
#[test]
fn multicast_is_predicted_and_nothing_chooses_it() {
    let choose = |family: &Family, tables: &[Tuned]| {
        let shape = Shape::new(4096, 2048, 1024);
        let base = Variant::new(2);
        family::choose(tables, GPU, family, &base, &shape, |_| 132).expect("a choice")
    };
    let compared = |choice: &Choice| match &choice.why {
        Reason::Model { seconds } => seconds.iter().map(|(name, _)| name.clone()).collect(),
        other => vec![other.to_string()],
    };
    let needs = |name: &String| name.contains("multicast");
    for (family, predicted) in [
        (families::all_gather_gemm(), 1),
        (families::gemm_all_reduce(), 2),
    ] {
        let all = compared(&choose(&family.for_predictions(), &[]));
        assert_eq!(
            all.iter().filter(|name| needs(name)).count(),
            predicted,
            "{all:?}"
        );
        let ours = compared(&choose(&family, &[]));
        assert!(!ours.iter().any(needs), "{ours:?}");
        assert_eq!(ours.len() + predicted, all.len());
    }
    // Nor where somebody wrote it as a candidate, or where a table names it.
    let careless = families::all_gather_gemm().or(schedules::ag_gemm_multicast());
    let mut table = won(&[("schedule", "ag_gemm_multicast")]);
    let winner = table.winners().next().expect("one").clone();
    table.put(Winner {
        m: 4096,
        n: 2048,
        k: 1024,
        ..winner
    });
    for tables in [vec![], vec![table]] {
        let ours = compared(&choose(&careless, &tables));
        assert!(!ours.iter().any(needs), "{ours:?}");
    }
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        rank.reserve(16 << 20)?;
        for family in [
            careless.clone(),
            families::all_gather_gemm().for_predictions(),
        ] {
            let refused = built(rank, &family, Some("ag_gemm_multicast"));
            let told = refused.expect_err("refused").to_string();
            assert!(
                told.contains("no family chooses multicast by itself"),
                "{told}"
            );
            let op = built(rank, &family, None)?;
            assert_ne!(op.schedule_of(MOST), "ag_gemm_multicast");
        }
        Ok(())
    });
    done.unwrap_or_else(|error| panic!("{error}"));
}

/// The switch adds in an order of its own, so an op that is to have the same bits is refused.
#[test]
fn sums_in_the_switch_have_no_bits_to_promise() {
    let ranks = Communicator::emulated(2).expect("ranks");
    let done = Communicator::each(&ranks, |rank| {
        rank.reserve(16 << 20)?;
        let op = || {
            rank.op_of::<schedules::GemmArMulticastOp>()
                .up_to(64, 32, 16)
        };
        let told = op()
            .batch_invariant()
            .build()
            .expect_err("refused")
            .to_string();
        assert!(told.contains("in an order of its own"), "{told}");
        op().build().map(drop)
    });
    done.unwrap_or_else(|error| panic!("{error}"));
}
