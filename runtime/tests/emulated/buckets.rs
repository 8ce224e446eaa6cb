//! Ops that have a variant for each bucket of rows.

use crate::schedules::{self, Sender};
use counterflow_codegen::builder::tune;
use counterflow_codegen::program::{Program, Setting};
use counterflow_runtime::{Communicator, Error, Op};
use half::bf16;

/// Rows of the largest launch that is built for, columns, and depth.
const SIZE: [usize; 3] = [16384, 2048, 64];
/// Rows of the largest that is made.
const MADE: usize = 200;

/// The fastest tile depends on the rows.
fn tuned() -> Program {
    let tiles = tune([(128, 256), (128, 64), (64, 64)]);
    schedules::gather_by("gather_tuned", Sender::Ctas(4), tiles)
}

fn built(rank: &Communicator, buckets: &[usize]) -> Result<Op, Error> {
    let [m, n, k] = SIZE;
    let program = tuned();
    let builder = rank.op(&program).up_to(m, n, k);
    builder.buckets(buckets.iter().copied()).build()
}

/// The tile of a launch.
fn tile(op: &Op, rows: usize) -> Option<Setting> {
    op.variant_of(rows).choices.get("tiles").copied()
}

#[test]
fn a_launch_has_the_variant_of_the_first_bucket_that_holds_its_rows() -> Result<(), Error> {
    let [m, n, k] = SIZE;
    for world in [1, 2] {
        let ranks = Communicator::emulated(world)?;
        Communicator::each(&ranks, |rank| {
            rank.reserve(16 << 20)?;
            let program = tuned();
            let alone = rank.op(&program).up_to(m, n, k).workspace()?;
            let with = rank.op(&program).up_to(m, n, k).buckets([16, 64]);
            assert!(with.workspace()?.heap > alone.heap, "a kernel more");
            let op = with.build()?;
            // What would be chosen for the largest launch of a bucket is what all of the bucket have.
            for (rows, of) in [(1, 16), (16, 16), (17, 64), (64, 64), (65, m), (m, m)] {
                let alone = rank.op(&program).up_to(of, n, k).build()?;
                assert_eq!(op.variant_of(rows), alone.variant(), "{rows} rows");
            }
            assert_ne!(tile(&op, 16), tile(&op, m), "a test of two variants");
            assert_eq!((op.variant(), op.most().m as usize), (op.variant_of(m), m));

            let x = rank.allocate::<bf16>("x", [MADE, k])?;
            let (w, mut y) = (rank.zeros([n, k])?, rank.zeros::<bf16>([MADE, n])?);
            let column = |row: usize| row % k;
            let mut picks = vec![bf16::ZERO; n * k];
            (0..n).for_each(|row| picks[row * k + column(row)] = bf16::ONE);
            w.write(&picks)?;
            for (launch, rows) in [MADE, 7, 64, 65, 16, 1, 17].into_iter().enumerate() {
                let number = |row: usize, column: usize| {
                    bf16::from_f32(((launch * 5 + row * 3 + column) % 251) as f32)
                };
                let shard = rows.div_ceil(rank.world() as usize);
                let value = |at: usize| match at / k / shard == rank.rank() as usize {
                    true => number(at / k, at % k),
                    false => bf16::NAN,
                };
                x.write(&(0..MADE * k).map(value).collect::<Vec<_>>())?;
                y.fill(0xff)?;
                rank.synchronize()?;
                rank.barrier()?;
                let launching = op.on(rank).tensor("x", &x).tensor("w", &w);
                launching.tensor("y", &mut y).rows(rows).launch()?.wait()?;
                let values = y.read()?;
                for (at, value) in values[..rows * n].iter().enumerate() {
                    let wanted = number(at / n, column(at % n));
                    assert_eq!(*value, wanted, "{rows} rows: {}, {}", at / n, at % n);
                }
                assert!(values[rows * n..].iter().all(|value| value.is_nan()));
                rank.barrier()?;
            }
            let launching = op.on(rank).tensor("x", &x).tensor("w", &w);
            let beyond = launching.tensor("y", &mut y).rows(m + 1).launch();
            // A rank that is slower is told of its peer's refusal.
            let kind = beyond.expect_err("too many").kind();
            assert!(
                kind == "rejected" || (world > 1 && kind == "aborted"),
                "{kind}"
            );
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn buckets_with_the_same_choices_are_one() -> Result<(), Error> {
    let ranks = Communicator::emulated(1)?;
    let [m, n, k] = SIZE;
    let program = tuned();
    ranks[0].reserve(4 << 20)?;
    let builder = ranks[0].op(&program).up_to(m, n, k).first_options();
    let alone = builder.workspace()?;
    // Choices that are all settled, and buckets that no launch is beyond.
    let with = builder.buckets([16, 64, m, 2 * m]);
    assert_eq!(with.workspace()?, alone);
    assert_eq!(tile(&with.build()?, 1), None);
    Ok(())
}

#[test]
fn ranks_with_other_buckets_are_told_when_they_build() -> Result<(), Error> {
    for theirs in [&[][..], &[32][..], &[16, 32][..]] {
        let ranks = Communicator::emulated(2)?;
        let told = Communicator::each(&ranks, |rank| {
            rank.reserve(16 << 20)?;
            let ours: &[usize] = if rank.rank() == 0 { &[16] } else { theirs };
            Ok(built(rank, ours)
                .map_err(|error| (error.kind(), error.to_string()))
                .err())
        })?;
        for told in told {
            let (kind, text) = told.expect("other buckets");
            assert_eq!(kind, "mismatch", "{text}");
            assert!(
                text.contains("loads") && text.contains("for up to "),
                "{text}"
            );
        }
    }
    Ok(())
}
