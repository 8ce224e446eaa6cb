//! What multicast would bring, by published rates: of schedules whose statements can go through the switch, and of others.

use crate::fixtures::features as schedules;
use crate::fixtures::{library, small};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::lower::lower;
use counterflow_codegen::model::{IN_SWITCH, Machine, Multicast, UNICAST, Way, multicast};
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Arch, Variant};

const WORLD: u32 = 4;

fn found(program: &Program, shape: &Shape) -> Multicast {
    let kernel = lower(
        program,
        &Variant::new(WORLD).arch(Arch::Cpu).dtype(Dtype::Bf16),
    )
    .unwrap_or_else(|found| panic!("{found}"));
    let plan = Plan::new(&kernel, shape, &Machine::h200());
    multicast(&kernel, &plan.unwrap_or_else(|found| panic!("{found}")))
}

fn ways(found: &Multicast) -> Vec<Way> {
    found.statements.iter().map(|(_, way, _)| *way).collect()
}

#[test]
fn a_gather_leaves_a_rank_once_and_arrives_as_before() {
    let chunk = 256 * 256 * 2;
    let shape = Shape::new(1024, 512, 256);
    let pushed = found(&schedules::push_all_gather(), &shape);
    assert_eq!(ways(&pushed), [Way::Everywhere]);
    let (.., brings) = pushed.statements[0];
    assert_eq!(
        (brings.unicast, brings.switch),
        ([3 * chunk; 2], [chunk, 3 * chunk])
    );
    assert_eq!(brings.before, 3.0 * chunk as f64 / UNICAST);
    let after = [IN_SWITCH, UNICAST].map(|rate| 3.0 * chunk as f64 / rate);
    assert_eq!(brings.after, after, "at worst it gains nothing");
    assert_eq!(pushed.all, brings);
    // The same schedule as its author would write it.
    let written = found(&small::multicast(), &shape);
    assert_eq!(ways(&written), [Way::Already]);
    assert_eq!(written.all, brings);
}

#[test]
fn a_sum_arrives_once_and_leaves_every_rank() {
    let part = 256 * 512 * 2;
    let summed = found(&schedules::slots_sum(), &Shape::new(1024, 512, 256));
    assert_eq!(ways(&summed), [Way::Sum]);
    let (.., brings) = summed.statements[0];
    assert_eq!(
        (brings.unicast, brings.switch),
        ([3 * part; 2], [4 * part, part])
    );
    assert_eq!(summed.all_reduce, None, "the rows of one rank");
    // Two shots: the sums, and then the rows that each rank has.
    let both = found(&schedules::two_shot(), &Shape::new(1024, 512, 256));
    assert_eq!(ways(&both), [Way::Sum, Way::Everywhere]);
    assert_eq!(both.all.unicast, [6 * part; 2]);
    assert_eq!(
        both.all.switch,
        [5 * part, 4 * part],
        "(1 + 1/4) of all rows, with this rank's own"
    );
    let each = both.statements.iter().map(|(.., brings)| brings.after[1]);
    assert_eq!(both.all.after[1], each.sum::<f64>());
    // The switch adds every rank's copy, where a program is written so.
    let written = found(&small::gemm_ar_switch(), &Shape::new(1024, 512, 256));
    assert!(ways(&written).iter().all(|way| *way == Way::Already));
    assert_eq!(written.all.switch, both.all.switch);
}

#[test]
fn what_goes_to_one_rank_or_is_pulled_gains_nothing() {
    let shape = Shape::new(1024, 512, 256);
    for program in [
        schedules::pull(),
        schedules::ring_all_gather(),
        library::all_to_all(&library::real()),
    ] {
        let found = found(&program, &shape);
        for (_, way, brings) in &found.statements {
            assert_eq!(*way, Way::None, "{}", program.name);
            let same = (brings.after, brings.switch);
            assert_eq!(([brings.before; 2], brings.unicast), same);
        }
        assert_eq!([found.all.before; 2], found.all.after, "{}", program.name);
    }
    assert!(found(&schedules::gemm(), &shape).statements.is_empty());
}

#[test]
fn an_all_reduce_of_a_size_that_others_measured_has_their_times() {
    let of = |rows: u32| found(&schedules::two_shot(), &Shape::new(rows, 1024, 64)).all_reduce;
    let mib = f64::from(1u32 << 20);
    assert_eq!(of(512), Some([mib, 17e-6, 16e-6]));
    assert_eq!(of(1024), Some([2.0 * mib, 26e-6, 21e-6]));
    let [bytes, unicast, switch] = of(1536).expect("between two");
    assert_eq!(bytes, 3.0 * mib);
    assert!((unicast - 31.5e-6).abs() < 1e-12 && (switch - 26e-6).abs() < 1e-12);
    assert_eq!(
        [of(128), of(4096)],
        [None; 2],
        "nothing is published of these"
    );
}
