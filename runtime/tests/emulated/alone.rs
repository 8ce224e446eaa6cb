//! What ranks do without their peers, and in groups: ops that nobody waits for, a parent's tensors, errors that name the world.

use crate::schedules::{self, Sender};
use counterflow_runtime::{Communicator, Error};
use half::bf16;

const SIDE: usize = 64;

/// Only one rank builds and launches: the other would be missed by whatever is collective.
#[test]
fn an_op_that_waits_for_nobody_is_built_and_launched_without_the_peers() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    let program = schedules::product((64, 64));
    let rank = &ranks[1];
    let op = rank.op(&program).up_to(SIDE, SIDE, SIDE).first_options();
    assert_eq!(op.workspace()?.heap, 0);
    let op = op.build()?;
    let x = rank.zeros::<bf16>([SIDE, SIDE])?;
    x.write(&[bf16::ONE; SIDE * SIDE])?;
    let mut y = rank.zeros::<bf16>([SIDE, SIDE])?;
    let launch = op.on(rank).tensor("x", &x).tensor("w", &x);
    launch.tensor("y", &mut y).launch()?.wait()?;
    assert_eq!(y.read()?, [bf16::from_f32(SIDE as f32); SIDE * SIDE]);

    // Collective ops are numbered alike, whatever each rank has built by itself.
    Communicator::each(&ranks, |rank| {
        rank.reserve(2 << 20)?;
        let program = schedules::gather(Sender::Ctas(4));
        let op = rank
            .op(&program)
            .up_to(SIDE, SIDE, SIDE)
            .first_options()
            .build()?;
        let x = rank.allocate::<bf16>("x", [SIDE, SIDE])?;
        x.write(&[bf16::ONE; SIDE * SIDE])?;
        let w = rank.zeros::<bf16>([SIDE, SIDE])?;
        w.write(&[bf16::ONE; SIDE * SIDE])?;
        let mut y = rank.zeros::<bf16>([SIDE, SIDE])?;
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).launch()?.wait()?;
        assert_eq!(y.read()?[0], bf16::from_f32(SIDE as f32));
        Ok(())
    })?;
    Ok(())
}

#[test]
fn a_group_of_one_takes_tensors_of_its_parent_in_the_order_of_both() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        let alone = rank.split(rank.rank(), 0)?;
        let program = schedules::product((64, 64));
        let op = alone
            .op(&program)
            .up_to(SIDE, SIDE, SIDE)
            .first_options()
            .build()?;
        let x = rank.zeros::<bf16>([SIDE, SIDE])?;
        let mut y = rank.zeros::<bf16>([SIDE, SIDE])?;
        for round in 1..20u8 {
            // Written and read in the parent's stream, without a wait between.
            let number = bf16::from_f32(f32::from(round));
            x.write(&[number; SIDE * SIDE])?;
            let launch = op.on(&alone).tensor("x", &x).tensor("w", &x);
            launch.tensor("y", &mut y).launch()?;
            let wanted = bf16::from_f32(f32::from(round) * f32::from(round) * SIDE as f32);
            assert_eq!(y.read()?[7], wanted, "round {round}");
        }
        // Not where a peer is waited for, and not what is another rank's.
        let pair = rank.split(0, 0)?;
        pair.reserve(2 << 20)?;
        let program = schedules::gather(Sender::Ctas(4));
        let op = pair
            .op(&program)
            .up_to(SIDE, SIDE, SIDE)
            .first_options()
            .build()?;
        let gathered = pair.allocate::<bf16>("x", [SIDE, SIDE])?;
        pair.barrier()?;
        let launch = op.on(&pair).tensor("x", &gathered).tensor("w", &x);
        let told = launch.tensor("y", &mut y).launch().expect_err("refused");
        // Of its own, or because the peer was refused the same before.
        let told = told.to_string();
        assert!(told.contains("w is memory of another rank"), "{told}");
        Ok(())
    })?;
    Ok(())
}

#[test]
fn errors_of_a_group_say_which_ranks_of_the_world_it_has() -> Result<(), Error> {
    let ranks = Communicator::emulated(4)?;
    let told = Communicator::each(&ranks, |rank| {
        // 0 and 3, 1 and 2; of these the later one is the first.
        let color = u32::from(rank.rank() == 1 || rank.rank() == 2);
        let group = rank.split(color, 4 - rank.rank())?;
        let differs = match group.rank() {
            0 => group.barrier(),
            _ => group.reserve(1 << 21),
        };
        let differs = differs.expect_err("different calls").to_string();
        group.barrier()?;
        if rank.rank() == 2 {
            group.abort("no more");
        }
        rank.barrier()?;
        let ended = match color {
            1 => group.barrier().expect_err("ended").to_string(),
            _ => group.barrier().map(|()| String::new())?,
        };
        Ok((differs, ended))
    })?;
    let [outer, inner] = [(0, "3, 0"), (1, "2, 1")].map(|(color, ranks)| {
        format!("in the group of color {color}, whose ranks 0 to 1 are ranks {ranks} of the world")
    });
    for rank in [0, 3] {
        let (differs, ended) = &told[rank];
        assert!(
            differs.contains("rank 0 is at a barrier") && differs.ends_with(&format!("({outer})")),
            "{differs}"
        );
        assert_eq!(ended, "");
    }
    for rank in [1, 2] {
        let (differs, ended) = &told[rank];
        assert!(differs.ends_with(&format!("({inner})")), "{differs}");
        assert_eq!(
            *ended,
            format!("rank 0 ended the communicator: no more ({inner})")
        );
    }
    Ok(())
}

#[test]
fn the_refusal_of_a_gathered_tensor_says_who_knows_which_rows_a_rank_has() -> Result<(), Error> {
    let ranks = Communicator::emulated(3)?;
    Communicator::each(&ranks, |rank| {
        rank.reserve(2 << 20)?;
        let program = schedules::gather(Sender::Ctas(4));
        let op = rank
            .op(&program)
            .up_to(64, 64, 64)
            .first_options()
            .build()?;
        // As long as the launch, but shards of 22 rows are 66 together.
        let x = rank.allocate::<bf16>("x", [64, 64])?;
        let (w, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        let told = launch.tensor("y", &mut y).launch().expect_err("refused");
        if told.kind() == "usage" {
            let help = told.help().unwrap_or_default();
            assert!(
                help.contains("give 66 x 64") && help.contains("`Op::shard`"),
                "{help}"
            );
        }
        assert_eq!(op.shard("x", 2, 64)?, 44..64);
        assert_eq!(op.shard("x", 2, 64)?, rank.shard(2, 64));
        assert_eq!(
            op.shard("x", 3, 64).expect_err("no such rank").kind(),
            "usage"
        );
        Ok(())
    })?;
    Ok(())
}
