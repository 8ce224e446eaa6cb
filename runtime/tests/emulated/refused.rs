//! What safe calls must not reach: another rank's memory that is none, another stream's, another machine's, no address.

use counterflow_runtime::driver::Event;
use counterflow_runtime::rendezvous::Threads;
use counterflow_runtime::{Communicator, Error};
use std::time::Duration;

fn refused<T>(call: Result<T, Error>, words: &str) {
    let error = call.err().map(|error| error.to_string());
    assert!(
        error.as_ref().is_some_and(|error| error.contains(words)),
        "{error:?}"
    );
}

#[test]
fn a_rank_that_is_none_has_no_part_of_a_buffer() -> Result<(), Error> {
    let ranks = Communicator::emulated(1)?;
    ranks[0].reserve(1 << 20)?;
    let x = ranks[0].allocate::<u32>("x", [16])?;
    refused(x.write_on(1, &[1; 16]), "rank 1 of 1");
    refused(x.read_on(1), "rank 1 of 1");
    Ok(())
}

#[test]
fn rows_of_a_buffer_are_those_that_it_has_and_no_more() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        rank.reserve(1 << 20)?;
        let x = rank.allocate::<u32>("x", [2, 3, 4])?;
        refused(x.rows(5..7), "rows 5..7 of 6");
        #[allow(clippy::reversed_empty_ranges, reason = "it is refused")]
        let backwards = 3..2;
        refused(x.rows(backwards), "rows 3..2 of 6");
        let mine = x.rows(2..6)?.rows(1..3)?;
        assert_eq!((mine.shape(), mine.len()), (&[2, 4][..], 8));
        assert_eq!(mine.offset(), x.offset() + 3 * 4 * 4);
        refused(mine.write(&[1; 9]), "9 elements");
        rank.barrier()?;
        mine.write_on(1 - rank.rank(), &[7; 8])?;
        rank.stream().synchronize()?;
        rank.barrier()?;
        let mut all = [0; 24];
        all[12..20].fill(7);
        assert_eq!(x.read()?, all);
        assert_eq!(mine.read()?, [7; 8]);
        // It holds the memory.
        drop(x);
        rank.barrier()?;
        let other = rank.allocate::<u32>("y", [2, 3, 4])?;
        assert!(other.offset() != mine.offset() - 3 * 4 * 4);
        rank.barrier()
    })
    .map(drop)
}

#[test]
fn a_tensor_of_another_rank_is_not_copied() -> Result<(), Error> {
    let (ranks, others) = (Communicator::emulated(1)?, Communicator::emulated(1)?);
    let rank = &ranks[0];
    rank.reserve(1 << 20)?;
    let x = rank.allocate::<u32>("x", [16])?;
    let aside = others[0].zeros::<u32>([16])?;
    refused(x.copy_from(&aside), "another rank");
    refused(x.copy_to(&aside), "another rank");
    let (own, back) = (rank.zeros::<u32>([16])?, rank.zeros::<u32>([16])?);
    own.write(&[7; 16])?;
    x.copy_from(&own)?;
    x.copy_to(&back)?;
    assert_eq!((x.read()?, back.read()?), (vec![7; 16], vec![7; 16]));
    Ok(())
}

#[test]
fn an_event_of_another_emulated_machine_is_not_waited_for() -> Result<(), Error> {
    let (one, other) = (Communicator::emulated(1)?, Communicator::emulated(1)?);
    one[0].reserve(1 << 20)?;
    one[0].allocate::<u32>("x", [16])?.fill(1)?;
    let event = Event::record(one[0].stream())?;
    refused(other[0].stream().wait(&event), "another emulated machine");
    refused(
        event.record_again(other[0].stream()),
        "another emulated machine",
    );
    other[0].synchronize()
}

#[test]
fn memory_of_another_library_on_an_emulated_gpu_is_refused_to_all_and_they_go_on()
-> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        rank.reserve(2 << 20)?;
        let theirs = rank.zeros::<u8>([64])?;
        // SAFETY: nobody else uses it.
        let adopt =
            |bytes: usize| unsafe { rank.adopt::<u8>("theirs", theirs.address().get(), [bytes]) };
        let told = adopt(64).expect_err("refused");
        assert_eq!(told.to_string(), "rank 0: memory of an emulated GPU");
        let told = adopt(0).expect_err("refused");
        assert_eq!(told.to_string(), "rank 0: memory of no bytes");
        let told = adopt(1 + rank.rank() as usize).expect_err("differ");
        assert_eq!(told.kind(), "mismatch");
        rank.allocate::<u8>("ours", [64])?.read()?;
        rank.barrier()
    })
    .map(drop)
}

/// What is mapped for a request came with it.
fn both_adopt(ranks: &[Communicator]) {
    const MOMENT: Duration = Duration::from_millis(100);
    let adopts = |rank: usize, bytes: usize| {
        let told = || {
            // SAFETY: memory of an emulated GPU is refused.
            let told = unsafe { ranks[rank].adopt::<u8>("theirs", 4096, [bytes]) };
            told.expect_err("refused")
        };
        // On a busy machine rank 0's second thread may come first.
        let mut each = (0..1000).map(|_| told());
        let told = each.find(|told| told.kind() != "mismatch");
        let wanted = ["no bytes", "an emulated GPU"][usize::from(bytes > 0)];
        let wanted = format!("rank 0: memory of {wanted}");
        assert_eq!(told.expect("both meet").to_string(), wanted);
    };
    let adopts = &adopts;
    std::thread::scope(|scope| {
        // The second waits for the first one's turn to end.
        for bytes in [64, 0] {
            scope.spawn(move || adopts(0, bytes));
            std::thread::sleep(MOMENT);
        }
        adopts(1, 64);
        adopts(1, 0);
    });
}

#[test]
fn threads_of_one_rank_that_adopt_at_once_do_not_get_each_others_memory() -> Result<(), Error> {
    both_adopt(&Communicator::emulated(2)?);
    let joined = std::thread::scope(|scope| {
        let join = |seat| scope.spawn(move || Communicator::join_emulated(&seat));
        let all: Vec<_> = Threads::of(2).into_iter().map(join).collect();
        let all = all.into_iter().map(|rank| rank.join().expect("no panic"));
        all.collect::<Result<Vec<_>, _>>()
    });
    both_adopt(&joined?);
    Ok(())
}

#[test]
fn more_bytes_than_addresses_are_refused() -> Result<(), Error> {
    let ranks = Communicator::emulated(1)?;
    for bytes in [u64::MAX, u64::MAX - (1 << 20)] {
        refused(ranks[0].reserve(bytes), "bytes a rank, in slots of");
    }
    Ok(())
}

#[test]
fn a_tensor_is_not_copied_to_rows_of_its_own() -> Result<(), Error> {
    let ranks = Communicator::emulated(1)?;
    let x = ranks[0].zeros::<u32>([8, 4])?;
    let own = (0..32).collect::<Vec<_>>();
    x.write(&own)?;
    refused(x.rows(0..4)?.copy_from(&x.rows(2..6)?), "rows of its own");
    refused(x.copy_from(&x), "rows of its own");
    x.rows(0..4)?.copy_from(&x.rows(4..8)?)?;
    assert_eq!(x.read()?, [&own[16..], &own[16..]].concat());
    Ok(())
}

#[test]
fn worlds_that_nothing_is_proven_for_are_refused() {
    for world in [0, 129, u32::MAX] {
        refused(Communicator::emulated(world), "ranks");
    }
}
