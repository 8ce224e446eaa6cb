//! A shard on each rank, quantised by its own amax alone, then gathered with its scale and multiplied: no rank knows the amax
//! of another.

use crate::fine;
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me, ranks};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::{sm90, verify};
use counterflow_emitter::{self as cuda, CudaSource};
use counterflow_emulator::Numbers;
use counterflow_quantise::{Fp8, Granularity, Quantiser, Recipe, ScaleRule, Scaling};
use counterflow_runtime::{Communicator, Error, QuantTensor};
use float8::F8E4M3;
use half::bf16;
use std::sync::PoisonError;

/// Columns of the product, and its depth.
const N: usize = 64;
const K: usize = 272;
/// Ranks that share a GPU.
const MOST_RANKS: u32 = 4;

/// What ranks do with the shards that they quantised.
fn gather() -> Program {
    gather_of("shards", [Dtype::E4M3, Dtype::Bf16], (128, 64))
}

/// y = all_gather(x) · wᵀ, of these types of operands and result.
pub fn gather_of(name: &str, [of, to]: [Dtype; 2], tile: (u32, u32)) -> Program {
    let mut s = ScheduleBuilder::new(name);
    let (x, w, y) = (s.gathered("x", of), s.local("w", of), s.out("y", to));
    let (pieces, tiles) = (s.chunks("chunks", x, 128), s.tiles("tiles", y, tile));
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks().from_me(), |s, shard| {
            s.for_items("t", tiles.of(&shard), |s, t| {
                s.wait(arrived.at(t.rows()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    s.finish()
}

/// What GPUs run of it, in as many ranks as share one.
pub fn kernels() -> Vec<CudaSource> {
    let source = |(world, scales)| {
        let variant = Variant::new(world).scales(scales);
        let kernel = lower(&gather(), &variant).and_then(verify::kernel);
        let pipeline = kernel.and_then(|kernel| sm90::build(&kernel));
        let checked = pipeline.and_then(verify::pipeline);
        cuda::emit(&checked.unwrap_or_else(|error| panic!("{error}")))
    };
    let kinds = [Scales::PerRow, Scales::Blocks1d2d, Scales::Blocks2d1d];
    let worlds = (1..=MOST_RANKS).flat_map(|world| kinds.map(|scales| (world, scales)));
    worlds.map(source).collect()
}

/// Integers up to `most` either way: e4m3 has them and products of a few hundred of them exactly.
fn integers(count: usize, most: u64, seed: u64) -> Vec<f32> {
    let mut numbers = Numbers::new(seed);
    let number = |_| numbers.below(2 * most + 1) as f32 - most as f32;
    (0..count).map(number).collect()
}

/// A launch on each rank, of so many rows. Powers of two as scales leave every product exact, so each element has one value.
fn shards(all: &[Communicator], m: usize) -> Result<(), Error> {
    let shard = m.div_ceil(all.len());
    let full = shard * all.len();
    let rule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
    let recipe = Recipe::new(rule, Scaling::Current(Granularity::PerTensor), Dtype::Bf16);
    // Numbers of a rank are 32 times those of the one before it.
    let all_x: Vec<f32> = integers(m * K, 8, 3)
        .into_iter()
        .enumerate()
        .map(|(at, value)| value * 2f32.powi(5 * (at / K / shard) as i32 - 9))
        .collect();
    let all_w = integers(N * K, 2, 4);
    let program = &gather();
    Communicator::each(all, |rank| {
        rank.reserve(4 << 20)?;
        let op = rank
            .op(program)
            .scales(Scales::PerRow)
            .up_to(m, N, K)
            .build()?;
        let gathered = QuantTensor::allocate::<F8E4M3>(rank, "x", &op.needs("x")?)?;
        assert_eq!(gathered.codes().shape(), [full, K]);
        let w = QuantTensor::zeros::<F8E4M3>(rank, &op.needs("w")?)?;
        let mut y = rank.zeros::<bf16>([m, N])?;
        w.codes().write(
            &all_w
                .iter()
                .map(|value| F8E4M3::from_f32(*value))
                .collect::<Vec<_>>(),
        )?;
        w.scales().write(&[1.0; N])?;
        gathered.codes().fill(0xff)?;
        gathered.scales().fill(0xff)?;
        y.fill(0xff)?;
        rank.barrier()?;

        let first = (rank.rank() as usize * shard).min(m);
        let mine = first..(first + shard).min(m);
        let x = rank.zeros::<bf16>([mine.len(), K])?;
        let own = &all_x[mine.start * K..mine.end * K];
        x.write(
            &own.iter()
                .map(|value| bf16::from_f32(*value))
                .collect::<Vec<_>>(),
        )?;
        let quantiser = Quantiser::build(rank, recipe.with_scale_in_each_row(), [shard, K])?;
        let mut own = gathered.rows(mine.clone())?;
        let launch = quantiser.on(rank, [mine.len(), K]).x(&x);
        launch.to(&mut own).launch()?;
        // What allocates, or launches a kernel for the first time, may wait for all kernels on its GPU, and so for one that waits.
        rank.barrier()?;
        let launch = op
            .on(rank)
            .tensor("x", &gathered)
            .tensor("w", &w)
            .tensor("y", &mut y);
        launch.rows(m).launch()?.wait()?;

        // The numbers of each rank had a scale of their own, here as there.
        let scales = &gathered.scales().read()?[..m];
        for (row, scale) in scales.iter().enumerate() {
            assert_eq!(*scale, scales[row / shard * shard], "row {row}");
        }
        for shard in (shard..m).step_by(shard) {
            assert!(scales[shard] > scales[shard - 1], "{scales:?}");
        }
        for (at, got) in y.read()?.into_iter().enumerate() {
            let (row, column) = (at / N, at % N);
            let terms =
                (0..K).map(|k| f64::from(all_x[row * K + k]) * f64::from(all_w[column * K + k]));
            let wanted = bf16::from_f64(terms.sum());
            assert!(
                got == wanted,
                "row {row}, column {column}: {got}, not {wanted}"
            );
        }
        rank.barrier()
    })?;
    println!(
        "  {} launches right: shards with a scale each, {}",
        all.len(),
        all[0].gpu().name()
    );
    Ok(())
}

/// The same by blocks: a rank quantises the rows that it has into its shard's plane of the heap, whose lines are as long as a
/// full shard.
fn shards_of_blocks(all: &[Communicator], scales: Scales, m: usize) -> Result<(), Error> {
    let rule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
    let recipe = |pieces| Recipe::new(rule, Scaling::Current(pieces), Dtype::Bf16);
    // Numbers of a row and of 128 of K are of a size of their own.
    let sized = |values: Vec<f32>, by: usize| -> Vec<f32> {
        let each = values.into_iter().enumerate();
        each.map(|(at, value)| {
            value * 2f32.powi(((at / K * by + at % K / 128 * 3) % 11) as i32 - 5)
        })
        .collect()
    };
    let (by_x, by_w, of_x, of_w) = match scales {
        Scales::Blocks1d2d => (1, 0, Granularity::BLOCK_1X128, Granularity::BLOCK_128X128),
        _ => (0, 1, Granularity::BLOCK_128X128, Granularity::BLOCK_1X128),
    };
    let all_x = &sized(integers(m * K, 8, 3), by_x);
    let all_w = &sized(integers(N * K, 2, 4), by_w);
    let program = &gather();
    let bf16s = |values: &[f32]| -> Vec<bf16> {
        values.iter().map(|value| bf16::from_f32(*value)).collect()
    };
    Communicator::each(all, |rank| {
        rank.reserve(8 << 20)?;
        let op = rank.op(program).scales(scales).up_to(m, N, K).build()?;
        let gathered = QuantTensor::allocate::<F8E4M3>(rank, "x", &op.needs("x")?)?;
        let shard = gathered.codes().shape()[0] / all.len();
        let mut w = QuantTensor::zeros::<F8E4M3>(rank, &op.needs("w")?)?;
        let mut y = rank.zeros::<bf16>([m, N])?;
        gathered.codes().fill(0xff)?;
        gathered.scales().fill(0xff)?;
        y.fill(0xff)?;
        rank.barrier()?;

        let mine = op.shard("x", rank.rank(), m)?;
        let x = rank.zeros::<bf16>([mine.len(), K])?;
        x.write(&bf16s(&all_x[mine.start * K..mine.end * K]))?;
        let quantiser = Quantiser::build(rank, recipe(of_x), [shard, K])?;
        let mut own = gathered.rows(mine.clone())?;
        let launch = quantiser.on(rank, [mine.len(), K]).x(&x);
        launch.to(&mut own).launch()?;
        let source = rank.zeros::<bf16>([N, K])?;
        source.write(&bf16s(all_w))?;
        let quantiser = Quantiser::build(rank, recipe(of_w), [N, K])?;
        let launch = quantiser.on(rank, [N, K]).x(&source);
        launch.to(&mut w).launch()?;
        // As above: ranks share a GPU.
        rank.barrier()?;
        let launch = op.on(rank).tensor("x", &gathered).tensor("w", &w);
        let launch = launch.tensor("y", &mut y);
        launch.rows(m).launch()?.wait()?;

        for (at, got) in y.read()?.into_iter().enumerate() {
            let (row, column) = (at / N, at % N);
            let terms =
                (0..K).map(|k| f64::from(all_x[row * K + k]) * f64::from(all_w[column * K + k]));
            let wanted = bf16::from_f64(terms.sum());
            assert!(
                got == wanted,
                "row {row}, column {column}: {got}, not {wanted}"
            );
        }
        rank.barrier()
    })?;
    println!(
        "  {} launches right: shards with scales {}, {}",
        all.len(),
        scales.name(),
        all[0].gpu().name()
    );
    Ok(())
}

#[test]
fn ranks_that_share_a_gpu_quantise_a_shard_by_blocks_each() {
    if !crate::has_gpu() {
        return;
    }
    let _alone = crate::GPU.write().unwrap_or_else(PoisonError::into_inner);
    for world in 1..=MOST_RANKS {
        for scales in [Scales::Blocks1d2d, Scales::Blocks2d1d] {
            for m in [512, 301] {
                fine(shards_of_blocks(
                    &fine(Communicator::loopback(world)),
                    scales,
                    m,
                ));
            }
        }
    }
}

#[test]
fn emulated_ranks_quantise_a_shard_by_blocks_each() {
    let wide = crate::wide::wide();
    for (kind, scales) in [Scales::Blocks1d2d, Scales::Blocks2d1d]
        .into_iter()
        .enumerate()
    {
        let cases = [(1, 40), (1, 301), (2, 300), (3, 301), (4, 5)].into_iter();
        // Without `WIDE=1` each case has one kind, in turn.
        for (at, (world, m)) in cases.enumerate() {
            if !wide && at % 2 != kind {
                continue;
            }
            fine(shards_of_blocks(
                &fine(Communicator::emulated(world)),
                scales,
                m,
            ));
        }
    }
}

#[test]
fn ranks_that_share_a_gpu_quantise_a_shard_each() {
    if !crate::has_gpu() {
        return;
    }
    let _alone = crate::GPU.write().unwrap_or_else(PoisonError::into_inner);
    for world in 1..=MOST_RANKS {
        for m in [512, 301] {
            fine(shards(&fine(Communicator::loopback(world)), m));
        }
    }
}

#[test]
fn emulated_ranks_quantise_a_shard_each() {
    for (world, m) in [(1, 40), (2, 300), (3, 301), (4, 130), (8, 29), (4, 5)] {
        fine(shards(&fine(Communicator::emulated(world)), m));
    }
}
