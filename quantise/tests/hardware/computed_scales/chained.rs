//! Scales that a launch makes, read by the next one: on a rank alone, behind a gather, and before one.

use super::{K, MOST_RANKS, NEXT, chained_rule, gather, holds, next, of_twin, plain, product};
use crate::fine;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::variant::Scales;
use counterflow_quantise::{Granularity, Matrix, RowsLast, SquarePadded, twin};
use counterflow_runtime::op::Launch;
use counterflow_runtime::{Communicator, Error, QuantTensor};
use float8::F8E4M3;
use half::bf16;
use proptest::prelude::*;
use std::sync::PoisonError;

/// The next product's second operand, of so much depth, quantised by 128×128.
fn second(rank: &Communicator, depth: usize) -> Result<QuantTensor, Error> {
    let v: Vec<f32> = plain(NEXT * depth, 11)
        .into_iter()
        .map(bf16::to_f32)
        .collect();
    let v = Matrix::new(&v, [NEXT, depth], Dtype::F32);
    let v = twin::quantise(&v, &chained_rule(), Granularity::BLOCK_128X128);
    let plane = v.plane::<SquarePadded>();
    let (codes, scales) = (
        rank.zeros([NEXT, depth])?,
        rank.zeros(Granularity::BLOCK_128X128.scales([NEXT, depth]))?,
    );
    codes.write(&of_bits(&v.codes))?;
    scales.write(plane.values())?;
    QuantTensor::new(codes, scales, Granularity::BLOCK_128X128)
}

fn of_bits(codes: &[u8]) -> Vec<F8E4M3> {
    codes.iter().map(|code| F8E4M3::from_bits(*code)).collect()
}

/// A launch of ranks that wait for each other: beside it, none that shares the GPU allocates or copies, which may wait for all
/// kernels there.
fn alone(rank: &Communicator, launch: Launch<'_>) -> Result<(), Error> {
    rank.barrier()?;
    launch.launch()?.wait()?;
    rank.barrier()
}

/// A product behind a gather makes scales, and each rank's next product reads them: the bits of quantising in between.
fn chained(all: &[Communicator], m: usize, n: usize) -> Result<(), Error> {
    let rule = chained_rule();
    let [narrow, wide] = [Dtype::Bf16, Dtype::F32].map(|y| gather(Dtype::Bf16, y));
    let (all_x, all_w) = (plain(m * K, 3), plain(n * K, 4));
    let after = next();
    Communicator::each(all, |rank| {
        rank.reserve(4 << 20)?;
        let op = rank
            .op(&narrow)
            .output_scales(rule)
            .up_to(m, n, K)
            .build()?;
        let plain = rank.op(&wide).up_to(m, n, K).build()?;
        let next = rank
            .op(&after)
            .scales(Scales::Blocks1d2d)
            .up_to(m, NEXT, n)
            .build()?;
        let [full, _] = op.needs("x")?.shape;
        let shard = full / all.len();
        let x = rank.allocate::<bf16>("x", [full, K])?;
        let w = rank.zeros::<bf16>([n, K])?;
        w.write(&all_w)?;
        let me = rank.rank() as usize;
        let mine = (me * shard).min(m)..((me + 1) * shard).min(m);
        x.rows(mine.clone())?
            .write(&all_x[mine.start * K..mine.end * K])?;
        let mut wanted = rank.zeros::<f32>([m, n])?;
        let launch = plain.on(rank).tensor("x", &x).tensor("w", &w);
        alone(rank, launch.tensor("y", &mut wanted))?;
        let wanted = of_twin(&wanted.read()?, [m, n], &rule);
        let mut ours = QuantTensor::zeros::<F8E4M3>(rank, &op.needs("y")?)?;
        ours.scales().fill(0xff)?;
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        alone(rank, launch.tensor("y", &mut ours))?;
        let read: Vec<u8> = ours.codes().read()?.iter().map(F8E4M3::to_bits).collect();
        let scales = ours.scales().read()?;
        holds(&format!("{m} rows of {n}"), &read, &scales, &wanted);

        let second = second(rank, n)?;
        let after = |x: &QuantTensor| -> Result<Vec<u16>, Error> {
            let mut z = rank.zeros::<bf16>([m, NEXT])?;
            let launch = next.on(rank).tensor("x", x).tensor("w", &second);
            launch.tensor("y", &mut z).launch()?.wait()?;
            Ok(z.read()?.iter().map(|value| value.to_bits()).collect())
        };
        let theirs = QuantTensor::zeros::<F8E4M3>(rank, &next.needs("x")?)?;
        theirs.codes().write(&of_bits(&wanted.codes))?;
        theirs.scales().write(wanted.plane::<RowsLast>().values())?;
        let (ours, theirs) = (after(&ours)?, after(&theirs)?);
        assert!(ours == theirs, "{m} rows of {n}, then {NEXT}");
        assert!(ours.iter().any(|bits| *bits != 0));
        rank.barrier()
    })?;
    println!(
        "  {} launches right: products whose scales the next one reads, {}",
        all.len(),
        all[0].gpu().name()
    );
    Ok(())
}

/// A product of a rank's own rows writes codes and scales where the next launch gathers them from.
fn gathered(all: &[Communicator], rows: usize, n: usize) -> Result<(), Error> {
    let (rule, m) = (chained_rule(), rows * all.len());
    let (narrow, wide) = (
        product(Dtype::Bf16, (128, 128), false),
        gather(Dtype::E4M3, Dtype::Bf16),
    );
    let (all_x, all_w) = (plain(m * K, 5), plain(n * K, 6));
    let after = next();
    Communicator::each(all, |rank| {
        rank.reserve(8 << 20)?;
        let op = rank
            .op(&narrow)
            .output_scales(rule)
            .up_to(rows, n, K)
            .build()?;
        let gather = rank
            .op(&wide)
            .scales(Scales::Blocks1d2d)
            .up_to(m, NEXT, n)
            .build()?;
        let whole = rank
            .op(&after)
            .scales(Scales::Blocks1d2d)
            .up_to(m, NEXT, n)
            .build()?;
        let gathered = QuantTensor::allocate::<F8E4M3>(rank, "x", &gather.needs("x")?)?;
        let (lines, shard) = match gathered.scales().shape() {
            [lines, shard] => (*lines, *shard),
            other => panic!("{other:?}"),
        };
        let lines = lines / all.len();
        let me = rank.rank() as usize;
        let (x, w) = (rank.zeros::<bf16>([rows, K])?, rank.zeros::<bf16>([n, K])?);
        x.write(&all_x[me * rows * K..(me + 1) * rows * K])?;
        w.write(&all_w)?;
        let mut own = gathered.rows(me * rows..(me + 1) * rows)?;
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut own).launch()?.wait()?;
        let second = second(rank, n)?;
        let mut z = rank.zeros::<bf16>([m, NEXT])?;
        let launch = gather.on(rank).tensor("x", &gathered).tensor("w", &second);
        alone(rank, launch.tensor("y", &mut z))?;

        // All rows on one rank, with the same codes and scales in one plane.
        let local = QuantTensor::zeros::<F8E4M3>(rank, &whole.needs("x")?)?;
        local.codes().write(&gathered.codes().read()?[..m * n])?;
        let of_ranks = gathered.scales().read()?;
        let [_, padded] = local.scales().shape();
        let mut together = vec![0.0; lines * padded];
        for (line, row) in (0..lines).flat_map(|line| (0..m).map(move |row| (line, row))) {
            together[line * padded + row] =
                of_ranks[(row / rows * lines + line) * shard + row % rows];
        }
        local.scales().write(&together)?;
        let mut wanted = rank.zeros::<bf16>([m, NEXT])?;
        let launch = whole.on(rank).tensor("x", &local).tensor("w", &second);
        launch.tensor("y", &mut wanted).launch()?.wait()?;
        let of = |y: Vec<bf16>| y.into_iter().map(bf16::to_bits).collect::<Vec<_>>();
        let (z, wanted) = (of(z.read()?), of(wanted.read()?));
        assert!(
            z == wanted && z.iter().any(|bits| *bits != 0),
            "{m} rows of {n}"
        );
        rank.barrier()
    })?;
    Ok(())
}

#[test]
fn ranks_that_share_a_gpu_chain_products() {
    if !crate::has_gpu() {
        return;
    }
    let _alone = crate::GPU.write().unwrap_or_else(PoisonError::into_inner);
    for world in 1..=MOST_RANKS {
        for (m, n) in [(512, 256), (301, 464)] {
            fine(chained(&fine(Communicator::loopback(world)), m, n));
        }
        fine(gathered(&fine(Communicator::loopback(world)), 132, 272));
    }
}

#[test]
fn emulated_ranks_gather_what_they_wrote() {
    for (world, rows, n) in [(1, 4, 16), (2, 132, 272), (3, 20, 128)] {
        fine(gathered(&fine(Communicator::emulated(world)), rows, n));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if crate::wide::wide() { 12 } else { 5 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Worlds of 1 to 8, with shards that are short or empty, and rows of every number of blocks.
    #[test]
    fn emulated_ranks_chain_products(world in 1u32..=8, m in 1usize..200, sixteens in 1usize..24) {
        fine(chained(&fine(Communicator::emulated(world)), m, 16 * sixteens));
    }
}
