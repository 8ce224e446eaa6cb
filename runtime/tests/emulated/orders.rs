//! Orders by closure that say something else later, or on another rank.

use crate::schedules::{Sender, gather_in};
use counterflow_codegen::builder::{ranks, tune};
use counterflow_codegen::program::Program;
use counterflow_runtime::{Communicator, Error};
use half::bf16;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const WORLD: u32 = 4;
const SIDE: usize = 64;
/// Rows of launches: a plan of the build, one of another class, the first again.
const ROWS: [usize; 3] = [512, 384, 512];

fn program(order: fn(u32, u32, u32) -> u32) -> Program {
    let tile = tune([(128, 256)]);
    gather_in(ranks().by(order), "moody_gather", Sender::Ctas(4), tile)
}

fn onward(me: u32, step: u32, world: u32) -> u32 {
    (me + step) % world
}

/// Its launches are right, and plans of new rows are of the order as it was when the op was built.
fn launches(rank: &Communicator, program: &Program, changes: impl Fn()) -> Result<(), Error> {
    let builder = rank.op(program).up_to(ROWS[0], SIDE, SIDE).first_options();
    builder.workspace()?;
    changes();
    let op = builder.build()?;
    let x = rank.allocate::<bf16>("x", [ROWS[0], SIDE])?;
    let w = rank.zeros::<bf16>([SIDE, SIDE])?;
    let mut y = rank.zeros::<bf16>([ROWS[0], SIDE])?;
    x.write(&vec![bf16::ONE; ROWS[0] * SIDE])?;
    w.write(&vec![bf16::ONE; SIDE * SIDE])?;
    for (launch, rows) in ROWS.into_iter().enumerate() {
        y.fill(0xc0)?;
        rank.barrier()?;
        let launching = op.on(rank).tensor("x", &x).tensor("w", &w);
        launching.tensor("y", &mut y).rows(rows).launch()?.wait()?;
        let expected = bf16::from_f32(SIDE as f32);
        let wrong = y.read()?[..rows * SIDE]
            .iter()
            .filter(|y| **y != expected)
            .count();
        assert_eq!(
            wrong,
            0,
            "launch {launch} of {rows} rows on rank {}",
            rank.rank()
        );
        rank.barrier()?;
    }
    Ok(())
}

#[test]
fn an_order_stays_as_it_was_when_the_op_was_built() {
    static SKIPS: AtomicU32 = AtomicU32::new(0);
    fn moody(me: u32, step: u32, world: u32) -> u32 {
        match (step, SKIPS.load(SeqCst)) {
            (1, 1) => me,
            _ => onward(me, step, world),
        }
    }
    let ranks = Communicator::emulated(WORLD).expect("ranks");
    let program = program(moody);
    let done = Communicator::each(&ranks, |rank| {
        rank.reserve(8 << 20)?;
        launches(rank, &program, || {
            rank.barrier().expect("all have asked");
            SKIPS.store(1, SeqCst);
        })
    });
    done.expect("right");
}

#[test]
fn a_closure_is_asked_once_for_each_step_of_each_rank() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    fn counted(me: u32, step: u32, world: u32) -> u32 {
        assert_eq!(world, WORLD, "no other world");
        ASKED.fetch_add(1, SeqCst);
        onward(me, step, world)
    }
    let ranks = Communicator::emulated(WORLD).expect("ranks");
    let program = program(counted);
    let done = Communicator::each(&ranks, |rank| {
        rank.reserve(8 << 20)?;
        launches(rank, &program, || ())
    });
    done.expect("right");
    // Each rank builds an op of its own.
    assert_eq!(ASKED.load(SeqCst), WORLD * WORLD * WORLD);
}

#[test]
fn ranks_with_other_orders_are_all_told_which() {
    thread_local! { static MINE: Cell<u32> = const { Cell::new(0) } }
    fn own(me: u32, step: u32, world: u32) -> u32 {
        // On rank 2 it is no order that could be proved: some shards come twice.
        match MINE.get() {
            2 => me,
            _ => onward(me, step, world),
        }
    }
    let ranks = Communicator::emulated(WORLD).expect("ranks");
    let program = program(own);
    let told = Communicator::each(&ranks, |rank| {
        MINE.set(rank.rank());
        rank.reserve(8 << 20)?;
        let built = rank
            .op(&program)
            .up_to(ROWS[0], SIDE, SIDE)
            .first_options()
            .build();
        let error = built.map(drop).expect_err("they differ");
        // A difference ends nothing.
        rank.barrier()?;
        let help = error.help().unwrap_or_default().to_owned();
        Ok((error.kind(), error.to_string(), help))
    });
    for (kind, what, help) in told.expect("all are told") {
        assert_eq!(kind, "mismatch", "{what}");
        let said = "in step 1 rank 0 visits rank 1 as rank 0 has it, and rank 0 as rank 2 has it";
        assert!(
            what.contains("the order of `shard` in moody_gather ("),
            "{what}"
        );
        assert!(
            what.contains("schedules.rs:") && what.ends_with(said),
            "{what}"
        );
        assert!(
            help.contains("let the closure use nothing but its arguments"),
            "{help}"
        );
    }
}
