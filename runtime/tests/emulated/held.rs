//! What of the heap is given out, and to whom.

use crate::schedules::{self, Sender};
use counterflow::schedules::GemmRsOp;
use counterflow_runtime::op::Workspace;
use counterflow_runtime::{Communicator, Error, Op, OpBuilder, Owner};

#[test]
fn what_is_given_out_is_listed_with_its_owner_and_the_most_at_once() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        rank.reserve(8 << 20)?;
        let none = rank.heap_use();
        assert_eq!((none.used, none.peak, none.held.len()), (0, 0, 0));
        let x = rank.allocate::<u8>("x", [3000])?;
        let program = schedules::gather(Sender::Ctas(4));
        let op = rank.op(&program).up_to(256, 64, 64).build()?;
        rank.barrier()?;
        let most = rank.heap_use();
        let of = |owner| most.held.iter().filter(move |held| held.owner == owner);
        let mine: Vec<_> = of(Owner::Program)
            .map(|held| (&*held.name, held.bytes))
            .collect();
        assert_eq!(mine, [("x", 3072)], "whole lines");
        assert!(of(Owner::Ops).any(|held| held.name.starts_with("counters of ")));
        assert_eq!(
            most.used,
            most.held.iter().map(|held| held.bytes).sum::<u64>()
        );
        // A group has a heap of its own.
        let group = rank.split(0, 0)?;
        assert_eq!(group.heap_use().used, 0);
        rank.barrier()?;
        drop((x, op, group));
        rank.barrier()?;
        let after = rank.heap_use();
        assert_eq!((after.used, after.peak), (0, most.used), "{after}");
        rank.barrier()
    })
    .map(drop)
}

/// An op of that many rows and columns, whose choices are settled.
fn summed(rank: &Communicator, [rows, columns]: [usize; 2]) -> OpBuilder<'_, GemmRsOp<'static>> {
    let op = rank.op_of::<GemmRsOp>().first_options();
    op.up_to(rows, columns, 64)
}

/// Builds them, and gives back the bytes that were told, those that they took, and the ops.
fn built(
    rank: &Communicator,
    sizes: &[[usize; 2]],
) -> Result<(u64, u64, Vec<Op<GemmRsOp<'static>>>), Error> {
    let told = sizes.iter().map(|size| summed(rank, *size).workspace());
    let told = Workspace::together(told.collect::<Result<Vec<_>, _>>()?).heap;
    let before = rank.heap_use().used;
    // Nobody builds before all have looked.
    rank.barrier()?;
    let ops = sizes.iter().map(|size| summed(rank, *size).build());
    let ops = ops.collect::<Result<Vec<_>, _>>()?;
    rank.barrier()?;
    Ok((told, rank.heap_use().used - before, ops))
}

#[test]
fn ops_without_room_to_share_scratch_take_what_every_rank_was_told() -> Result<(), Error> {
    /// Counters of three such ops lie near each other, and those of four do not.
    const SIZE: [usize; 2] = [1 << 17, 8];
    let ranks = Communicator::emulated(2)?;
    let told = Communicator::each(&ranks, |rank| {
        rank.reserve(128 << 20)?;
        let one = summed(rank, SIZE).workspace()?.heap;
        let (shared, taken, mut three) = built(rank, &[SIZE; 3])?;
        assert_eq!(taken, shared);
        assert!(shared < 2 * one, "three share: {shared} of {one} each");
        // Between the first and the last there is room for one of the same size, and behind them for less.
        drop(three.remove(1));
        rank.barrier()?;
        let mut all = vec![shared];
        for sizes in [
            // One finds the room, and the other does not.
            vec![SIZE; 2],
            // All that is free is enough, and no part of it is.
            vec![[SIZE[0] / 16 * 17, 8], [1 << 14, 512]],
        ] {
            let (told, taken, ops) = built(rank, &sizes)?;
            assert!(taken <= told, "{sizes:?}: {taken} of {told}");
            let each = sizes.iter().map(|size| summed(rank, *size).workspace());
            let apart: u64 = each
                .map(|each| Ok(each?.heap))
                .sum::<Result<u64, Error>>()?;
            assert_eq!(
                told, apart,
                "nothing that may not be shared is counted as shared"
            );
            all.push(told);
            drop(ops);
            rank.barrier()?;
        }
        Ok(all)
    })?;
    assert_eq!(told[0], told[1]);
    Ok(())
}
