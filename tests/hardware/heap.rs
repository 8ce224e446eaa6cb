//! The symmetric heap, and what ranks are told that do different things.

use crate::fine;
use crate::gpus::both_ways;
use counterflow::{Communicator, Error, UserBuffer};

#[test]
fn the_heap_is_one_range_that_grows_and_never_moves() {
    for world in (1..=4).flat_map(both_ways) {
        let ranks = &world.ranks;
        fine(Communicator::each(ranks, |rank| {
            let (me, world) = (rank.rank(), rank.world());
            rank.reserve(8 << 20)?;
            let first: UserBuffer<u32> = rank.allocate("first", [1000])?;
            assert!(
                first.read()?.iter().all(|value| *value == 0),
                "memory comes zeroed"
            );
            let mine: Vec<u32> = (0..1000).map(|index| index * 10 + me).collect();
            first.write(&mine)?;
            rank.stream().synchronize().expect("written");
            rank.barrier()?;
            let address = first.address();
            rank.reserve(64 << 20)?;
            let second: UserBuffer<u64> = rank.allocate("second", [4 << 20])?;
            assert_eq!(first.address(), address, "an address moved");
            for peer in 0..world {
                assert_eq!(
                    first.on(peer),
                    first.on(0).plus(u64::from(peer) * rank.stride())
                );
                let theirs = first.read_on(peer)?;
                assert!(
                    (0..1000).all(|index| theirs[index as usize] == index * 10 + peer),
                    "rank {peer} seen from {me}"
                );
            }
            // Writes to a peer arrive there, at both ends of what was reserved later.
            let next = (me + 1) % world;
            second.write_on(next, &vec![u64::from(me) + 5; 4 << 20])?;
            rank.stream().synchronize().expect("written");
            rank.barrier()?;
            let got = second.read()?;
            let from = u64::from((me + world - 1) % world) + 5;
            assert!(got.iter().all(|value| *value == from));
            // What all dropped is given out again, zeroed; while one rank holds on, it is not.
            let offset = second.offset();
            rank.barrier()?;
            drop(second);
            rank.barrier()?;
            let again: UserBuffer<u64> = rank.allocate("again", [4 << 20])?;
            assert_eq!(again.offset(), offset);
            assert!(again.read()?.iter().all(|value| *value == 0));
            rank.barrier()
        }));
        println!("  the heap: {}", world.told());
    }
}

/// A call that every rank is refused, and what the first is told. They can go on.
fn refused<T>(
    ranks: &[Communicator],
    call: impl Fn(&Communicator) -> Result<T, Error> + Sync,
) -> Error {
    let errors = fine(Communicator::each(ranks, |rank| {
        Ok(call(rank).err().expect("refused"))
    }));
    errors.into_iter().next().expect("a rank")
}

#[test]
fn ranks_that_disagree_are_told_and_a_full_heap_says_what_to_reserve() {
    for world in both_ways(2) {
        let ranks = &world.ranks;
        let error = refused(ranks, |rank| {
            rank.reserve(4 << 20)?;
            rank.allocate::<u8>("x", [100 + rank.rank() as usize])
        });
        assert_eq!(error.kind(), "mismatch", "{error}");
        // As many bytes, under other names: they would be each other's.
        let error = refused(ranks, |rank| {
            let names = [["x", "w"], ["w", "x"]][rank.rank() as usize];
            names
                .into_iter()
                .try_for_each(|name| rank.allocate::<u8>(name, [100]).map(drop))
        });
        let told = error.to_string();
        assert!(
            told.contains("rank 0 allocates x, [100] of u8 (100 bytes), rank 1 allocates w"),
            "{told}"
        );
        let error = refused(ranks, |rank| rank.allocate::<u16>("x", [(1 << 63) + 1, 1]));
        assert_eq!(error.kind(), "usage", "{error}");
        let error = refused(ranks, |rank| rank.allocate::<u8>("x", [64 << 20]));
        assert!(
            error.help().is_some_and(|help| help.contains("reserve")),
            "{error}"
        );
        let error = refused(ranks, |rank| rank.reserve(1 << 50));
        assert_eq!(error.kind(), "too_large", "{error}");
        let error = refused(ranks, |rank| {
            if rank.rank() == 0 {
                rank.barrier()
            } else {
                rank.reserve(1)
            }
        });
        assert!(
            error
                .to_string()
                .contains("rank 0 is at a barrier, rank 1 reserves 1 bytes")
        );
        // They can go on.
        fine(Communicator::each(ranks, |rank| {
            rank.allocate::<u8>("x", [100]).map(drop)
        }));
    }
}
