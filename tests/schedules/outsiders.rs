//! Schedules of people who know this field's papers and not the library: each runs, or is refused at a statement with what to
//! write instead.

#[path = "../common/newcomers.rs"]
mod newcomers;
#[path = "../common/outsiders.rs"]
mod schedules;

use crate::parallel::in_parallel;
use crate::wide::wide;
use counterflow::codegen::interp::{self, Options};
use counterflow::codegen::lower::lower;
use counterflow::codegen::sm90;
use counterflow::codegen::verify;
use counterflow::{Arch, Diagnostic, Machine, Program, Shape, Variant};
use schedules::ALL;

/// A schedule, and the worlds that it is legal in.
type Written = (fn() -> Program, &'static [u32]);

/// What a finding says, and of which line.
fn said(found: &Diagnostic) -> String {
    let line = found.at.map(|at| {
        let text = std::fs::read_to_string(at.file()).unwrap_or_default();
        let line = text.lines().nth(at.line() as usize - 1);
        line.unwrap_or_default().trim().to_owned()
    });
    let hint = found.hint.clone().unwrap_or_default();
    format!(
        "{}\n    at: {}\n    help: {hint}",
        found.message,
        line.unwrap_or_default()
    )
}

fn told(all: &[Written]) -> String {
    in_parallel(all.len(), |number| became(all[number])).concat()
}

/// Each has the numbers of its reference, in every world; and its warps are right, or it is said what to change.
fn became((program, worlds): Written) -> String {
    let program = program();
    let mut became = String::new();
    let few = [worlds[0], worlds[worlds.len().min(3) - 1]];
    for world in if wide() { worlds } else { &few[..] } {
        let name = format!("{} world {world}", program.name);
        let lowered = lower(&program, &Variant::new(*world).arch(Arch::Cpu));
        let kernel = match lowered.and_then(verify::kernel) {
            Ok(kernel) => kernel,
            Err(found) => {
                became = format!("not legal: {}", said(found.first()));
                break;
            }
        };
        let most = Shape::new(128 * world + 70, 136, 72);
        let shapes = [
            most.clone(),
            Shape {
                m: 2 * world + 1,
                ..most.clone()
            },
        ];
        let series = match verify::series(&kernel, &most, &Machine::h200()) {
            Ok(series) => series,
            Err(found) => {
                became = format!("not legal for {world}: {}", said(found.first()));
                break;
            }
        };
        let plans = shapes.map(|shape| {
            series
                .plan(&shape)
                .unwrap_or_else(|error| panic!("{name}: {error}"))
        });
        let launches: Vec<_> = plans.iter().collect();
        let outcome = interp::run(&series, &launches, &Options::seed(1), interp::uniform(1));
        let outcome = outcome.unwrap_or_else(|failure| panic!("{name}: {failure}"));
        for (launch, plan) in plans.iter().enumerate() {
            let expected = interp::reference(&kernel, plan, launch, interp::uniform(1));
            let expected = expected.unwrap_or_else(|error| panic!("{name}: {error}"));
            interp::compare(&outcome, &expected).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let kernel = lower(&program, &Variant::new(*world)).and_then(verify::kernel);
        let warps = kernel.and_then(|kernel| verify::pipeline(sm90::build(&kernel)?));
        if let Err(found) = warps {
            became = format!("no kernel for {world}: {}", said(found.first()));
            break;
        }
        became = "runs".into();
    }
    format!("{}: {became}\n", program.name)
}

#[test]
fn what_readers_of_papers_write_runs_or_is_refused() {
    insta::assert_snapshot!(told(&ALL), @r"
    micro_batches: runs
    expert_by_parity: runs
    adapter: no kernel for 1: products of another type or depth beside each other
        at: y[t] = dot(x[t], w[t]) + dot(low[t], b[t]);
        help: operands of one type, whose K is the same: they come step by step, together; or store one in a loop of its own, and add its tile: `+ z[t]`
    adapter_in_two_loops: runs
    owners_of_tiles: runs
    doubling: runs
    dispatch: runs
    gated_output: runs
    pipeline_stage: runs
    two_paths: runs
    ");
}

#[test]
fn what_readers_of_the_docs_write_runs_or_is_refused() {
    insta::assert_snapshot!(told(&newcomers::ALL), @"
    over_pairs: runs
    by_way_of_the_root: runs
    pushed_or_pulled: runs
    both_gathered: not legal: the columns of `t` are in several shards of `columns`
        at: column_arrived[t.columns()].wait();
        help: ranks divide the rows of one operand of a product: gather the other in a launch before, or count chunks that the ranks divide as they divide `t`
    three_experts: runs
    gated_mlp_with_residual: runs
    reduced_by_the_root: runs
    biases_of_the_root: runs
    there_and_back: not legal: `came` is an operand of a dot, but has a slot
        at: y.on(from)[me()][t] = dot(came[from][t], w[t]);
        help: operands have no slots: a `Gathered` tensor, or scratch without slots, `symmetric::<bf16>()`; or exchange in one launch (`AllToAll`), and multiply what came in the next
    halves_both_ways: runs
    scaled_by_owners: runs
    heads_for_rows: not legal: `columns` has no shards: its rows belong to one rank
        at: for p in columns.of(peer) {
        help: visit all of it: `for t in columns.grouped()`. Ranks divide the rows of some tensors, and columns only where those are the rows of a `Gathered` weight
    ");
}
