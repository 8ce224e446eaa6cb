//! What of the heap is given out, and to whom.

use crate::schedules::{self, Sender};
use counterflow_runtime::{Communicator, Error, Owner};

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
