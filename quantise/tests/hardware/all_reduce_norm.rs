//! All-reduces with a norm behind them, bit for bit against the host and within rounding of f64: every result, ragged sizes, NaN and
//! infinities, launches of other rows one after another, graphs.

mod ends;

use crate::{fine, has_gpu};
use counterflow_codegen::dtype::Dtype;
use counterflow_emulator::Numbers;
use counterflow_quantise::{
    AllReduceNorm, Delayed, Fp8, Granularity, Matrix, Quantiser, Recipe, ScaleRule, Scaling, twin,
};
use counterflow_runtime::driver::Element;
use counterflow_runtime::op::Code;
use counterflow_runtime::{Communicator, Error, QuantTensor, Tensor};
use float8::{F8E4M3, F8E5M2};
use half::bf16;
use std::sync::PoisonError;

const EPS: f32 = 1e-5;
/// Bytes that no result has in so many places.
const POISON: u8 = 0xa5;

/// Ranks that share a GPU, alone on it.
fn on_gpu(worlds: impl IntoIterator<Item = u32>, test: impl Fn(&[Communicator])) {
    if !has_gpu() {
        return;
    }
    let _alone = crate::GPU.write().unwrap_or_else(PoisonError::into_inner);
    for world in worlds {
        test(&fine(Communicator::loopback(world)));
    }
}

/// Rows of a rank in a launch. Some seeds have NaN of every kind, infinities, zeros of both signs and large numbers.
fn rows_of(rank: usize, [rows, columns]: [usize; 2], seed: u64) -> Vec<bf16> {
    let mut numbers = Numbers::new(seed * 64 + rank as u64);
    let odd = [
        0xffff, 0x7fff, 0xff80, 0x7f80, 0x8000, 0x0000, 0x0001, 0x7f7f, 0xff81,
    ];
    let wild = seed % 3 == 2;
    let number = |at: usize| {
        let value = numbers.below(1 << 16) as f32 / 8192.0 - 4.0;
        match numbers.below(16) {
            // A whole pair, and in some rows nothing else.
            0 if wild => bf16::from_bits(odd[at / 2 * 7 % odd.len()]),
            _ if wild && at / columns % 5 == 4 => bf16::from_bits(odd[at / columns % odd.len()]),
            _ => bf16::from_f32(value),
        }
    };
    (0..rows * columns).map(number).collect()
}

/// What a launch has on the host: the residual, and the rows normalised.
fn wanted(x: &[Vec<bf16>], residual: &[bf16], gamma: &[bf16]) -> [Vec<bf16>; 2] {
    let columns = gamma.len();
    let mut all = [Vec::new(), Vec::new()];
    for (row, before) in residual.chunks(columns).enumerate() {
        let of_row = |x: &'_ Vec<bf16>| x[row * columns..][..columns].to_vec();
        let partials: Vec<Vec<bf16>> = x.iter().map(of_row).collect();
        let partials: Vec<&[bf16]> = partials.iter().map(Vec::as_slice).collect();
        let [after, y] = AllReduceNorm::row(&partials, before, gamma, EPS);
        all[0].extend(after);
        all[1].extend(y);
    }
    all
}

/// A number is NaN where the reference is, and within rounding of it elsewhere.
fn near(what: &str, got: bf16, reference: f64, allowed: f64) {
    let got = got.to_f64();
    let same = got.is_nan() && reference.is_nan() || got == reference;
    // Infinite, or beyond bf16 after rounding.
    let large =
        got.is_infinite() && got.signum() == reference.signum() && reference.abs() > 3.38e38;
    let fine = same || large || (got - reference).abs() <= allowed;
    assert!(fine, "{what} is {got}, not {reference} ± {allowed:e}");
}

/// Holds what the host computes to f64.
fn against_f64(x: &[Vec<bf16>], residual: &[bf16], gamma: &[bf16], [after, y]: &[Vec<bf16>; 2]) {
    let columns = gamma.len();
    for (at, got) in after.iter().enumerate() {
        let terms = x
            .iter()
            .map(|x| x[at].to_f64())
            .chain([residual[at].to_f64()]);
        // Exact, but for f32's end: a sum beyond it is infinite whatever comes then.
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size): (f64, f64), x| {
            let next = sum + x;
            let ends = next.abs() > f64::from(f32::MAX);
            let next = if ends {
                next.signum() * f64::INFINITY
            } else {
                next
            };
            (next, size + x.abs())
        });
        let allowed = sum.abs() / 256.0 + size * x.len() as f64 / f64::from(1 << 23) + 1e-38;
        near(&format!("element {at} of the residual"), *got, sum, allowed);
    }
    for (row, (values, y)) in after.chunks(columns).zip(y.chunks(columns)).enumerate() {
        let squares: f64 = values.iter().map(|x| x.to_f64().powi(2)).sum();
        let mean = squares / columns as f64 + f64::from(EPS);
        // f32 ends there.
        let mean = if mean > f64::from(f32::MAX) {
            f64::INFINITY
        } else {
            mean
        };
        for (at, got) in y.iter().enumerate() {
            let reference = values[at].to_f64() / mean.sqrt() * gamma[at].to_f64();
            let allowed = reference.abs() * (1.0 / 256.0 + 1e-4) + 1e-38;
            near(
                &format!("element {at} of row {row}"),
                *got,
                reference,
                allowed,
            );
        }
    }
}

fn bits(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Asserts the first rows of a tensor, and that nothing wrote the others.
fn only(what: &str, got: &Tensor<bf16>, wanted: &[bf16]) -> Result<(), Error> {
    let got = bits(&got.read()?);
    let wanted = bits(wanted);
    let differs = got
        .iter()
        .zip(&wanted)
        .position(|(got, wanted)| got != wanted);
    let [rows, columns] = [got.len(), wanted.len()];
    assert_eq!(differs, None, "{what}, of {columns} elements");
    let untouched = u16::from_le_bytes([POISON; 2]);
    assert!(
        got[wanted.len()..].iter().all(|got| *got == untouched),
        "{what} beyond {columns} of {rows}"
    );
    Ok(())
}

/// Launches of other rows one after another, without a wait between them; then all of them are looked at.
fn launches(all: &[Communicator], columns: usize, rows: &[usize], seed: u64) {
    let most = rows.iter().copied().max().unwrap_or(1).max(1);
    let gamma = rows_of(99, [1, columns], 3 * seed);
    let of = |launch: usize| seed + launch as u64;
    fine(Communicator::each(all, |rank| {
        let own = rank.rank() as usize;
        let norm = AllReduceNorm::of(rank).eps(EPS).up_to(most, columns);
        rank.reserve(norm.workspace()?.heap + (2 << 20))?;
        let norm = norm.build()?;
        let of_gamma = rank.zeros::<bf16>([columns])?;
        of_gamma.write(&gamma)?;
        let mut tensors = Vec::new();
        for (launch, rows) in rows.iter().enumerate() {
            let all = [(); 3].map(|()| rank.zeros::<bf16>([most, columns]));
            let [x, residual, y] = all;
            let (x, residual, y) = (x?, residual?, y?);
            for poisoned in [&x, &residual, &y] {
                poisoned.fill(POISON)?;
            }
            let shape = [*rows, columns];
            if *rows > 0 {
                x.rows(0..*rows)?.write(&rows_of(own, shape, of(launch)))?;
                let before = rows_of(98, shape, of(launch));
                residual.rows(0..*rows)?.write(&before)?;
            }
            tensors.push((x, residual, y));
        }
        rank.synchronize()?;
        rank.barrier()?;
        for ((x, residual, y), rows) in tensors.iter_mut().zip(rows) {
            let launch = norm.on(rank).x(&*x).residual(residual).gamma(&of_gamma);
            launch.y(y).rows(*rows).launch()?;
        }
        rank.synchronize()?;
        for (launch, (rows, (x, residual, y))) in rows.iter().zip(&tensors).enumerate() {
            let shape = [*rows, columns];
            let each = |rank| rows_of(rank, shape, of(launch));
            let given: Vec<_> = (0..rank.world() as usize).map(each).collect();
            let before = rows_of(98, shape, of(launch));
            let wanted = wanted(&given, &before, &gamma);
            let what = format!("rank {own}, launch {launch} of {rows} rows");
            only(&format!("x of {what}"), x, &given[own])?;
            only(&format!("residual of {what}"), residual, &wanted[0])?;
            only(&format!("y of {what}"), y, &wanted[1])?;
            if own == 0 {
                against_f64(&given, &before, &gamma, &wanted);
            }
        }
        rank.barrier()
    }));
}

/// Rows that change from launch to launch, none among them.
const ROWS: [usize; 8] = [5, 1, 13, 0, 2, 2, 7, 13];

const RAGGED: [(usize, u64); 5] = [(8, 0), (136, 1), (264, 2), (1000, 4), (2056, 5)];

fn ragged(all: &[Communicator]) {
    for (columns, seed) in RAGGED {
        launches(all, columns, &ROWS, seed);
    }
}

/// Rows as models have them, and the longest.
const LONG: [(usize, [usize; 3]); 3] = [
    (6144, [138, 6, 300]),
    (8192, [64, 1, 130]),
    (24576, [3, 40, 2]),
];

#[test]
fn emulated_ranks_sum_and_normalise_rows_of_every_size() {
    // Without `WIDE=1` each world has one number of columns, in turn.
    for world in 1..=8 {
        for (columns, seed) in crate::wide::in_turn(RAGGED, world as usize) {
            launches(&fine(Communicator::emulated(world)), columns, &ROWS, seed);
        }
    }
    // Rows that threads hold in several pieces, and as a model has them.
    let wide = crate::wide::wide();
    let long = [(3, 8192), (2, 6144), (2, 12296)].into_iter();
    for (world, columns) in long.take(if wide { 3 } else { 1 }) {
        launches(&fine(Communicator::emulated(world)), columns, &[2, 3, 1], 8);
    }
    // Without `WIDE=1` one in each world.
    for seed in (0..24).step_by(if wide { 1 } else { 3 }) {
        let ranks = fine(Communicator::emulated(1 + seed as u32 % 8));
        launches(&ranks, 8 * (1 + seed as usize * 5 % 31), &ROWS, seed);
    }
}

#[test]
fn ranks_that_share_a_gpu_sum_and_normalise_rows_of_every_size() {
    on_gpu(1..=8, ragged);
    on_gpu([1, 2, 4], |all| {
        for (columns, rows) in LONG {
            launches(all, columns, &rows, 8);
        }
    });
    on_gpu([2, 3], |all| {
        for seed in 6..30 {
            let (columns, _) = RAGGED[seed as usize % RAGGED.len()];
            launches(all, columns, &ROWS, seed);
        }
    });
}

#[test]
fn ranks_with_a_gpu_each_sum_and_normalise_rows() {
    if !has_gpu() || fine(counterflow_runtime::cuda::Gpu::count()) < 2 {
        return crate::nvidia::skipped("two GPUs");
    }
    let _alone = crate::GPU.write().unwrap_or_else(PoisonError::into_inner);
    let all = fine(Communicator::local(2));
    ragged(&all);
    launches(&all, 6144, &[138, 6, 300, 1, 138], 8);
}

/// Codes and scales are those of the quantiser, of rows in bf16.
fn quantised<C: Code + Element>(
    all: &[Communicator],
    recipe: Recipe,
    columns: usize,
    bits: fn(&C) -> u8,
) {
    let (most, rows) = (13, [13, 1, 6]);
    let gamma = rows_of(99, [1, columns], 0);
    fine(Communicator::each(all, |rank| {
        let own = rank.rank() as usize;
        let norm = AllReduceNorm::of(rank)
            .eps(EPS)
            .quantised(recipe)
            .up_to(most, columns);
        rank.reserve(norm.workspace()?.heap + (2 << 20))?;
        let norm = norm.build()?;
        let quantiser = Quantiser::build(rank, recipe, [most, columns])?;
        let history = quantiser.history(Delayed::transformer_engine(recipe.rule.to))?;
        let (given, multiplier) = (recipe.scaling == Scaling::Delayed, 37.5f32);
        history.multiplier().write(&[multiplier])?;
        let of_gamma = rank.zeros::<bf16>([columns])?;
        of_gamma.write(&gamma)?;
        let all = [(); 2].map(|()| rank.zeros::<bf16>([most, columns]));
        let [x, mut residual] = all.map(fine);
        let codes = rank.zeros::<C>([most, columns])?;
        let lines = most.next_multiple_of(4);
        let planes = match recipe.scaling {
            Scaling::Current(Granularity::BLOCK_1X128) => [columns.div_ceil(128), lines],
            _ => [most, 1],
        };
        let scales = rank.zeros::<f32>(planes)?;
        let mut y = match given {
            true => QuantTensor::output(codes.clone(), history.multiplier())?
                .with_amax(history.amax())?,
            false => QuantTensor::new(codes.clone(), scales.clone(), recipe.granularity())?,
        };
        rank.synchronize()?;
        rank.barrier()?;
        let mut amax = 0f32;
        for (seed, rows) in (1..).zip(rows) {
            let shape = [rows, columns];
            x.rows(0..rows)?.write(&rows_of(own, shape, seed))?;
            residual.rows(0..rows)?.write(&rows_of(98, shape, seed))?;
            codes.fill(POISON)?;
            scales.fill(POISON)?;
            rank.synchronize()?;
            rank.barrier()?;
            let launch = norm.on(rank).x(&x).residual(&mut residual).gamma(&of_gamma);
            launch.y(&mut y).rows(rows).launch()?.wait()?;
            let partials: Vec<_> = (0..rank.world() as usize)
                .map(|rank| rows_of(rank, shape, seed))
                .collect();
            let [_, normed] = wanted(&partials, &rows_of(98, shape, seed), &gamma);
            let values: Vec<f32> = normed.iter().map(|y| y.to_f32()).collect();
            let matrix = Matrix::new(&values, shape, Dtype::Bf16);
            let what = format!("rank {own}, {recipe}, {rows} rows of {columns}");
            let got: Vec<u8> = codes.read()?.iter().map(bits).collect();
            assert!(
                got[rows * columns..].iter().all(|code| *code == POISON),
                "beyond {what}"
            );
            let got = &got[..rows * columns];
            if given {
                let codes = twin::cast(&matrix, recipe.rule.to, multiplier);
                assert!(got == codes, "codes of {what}");
                amax = values
                    .iter()
                    .fold(amax, |amax, value| amax.max(value.abs()));
                assert_eq!(history.amax().read()?, [amax], "amax of {what}");
                continue;
            }
            let made = twin::quantise(&matrix, &recipe.rule, recipe.granularity());
            assert!(got == made.codes, "codes of {what}");
            let held: Vec<u32> = scales.read()?.iter().map(|scale| scale.to_bits()).collect();
            let [down, across] = made.pieces.count(shape);
            for (at, scale) in made.scales.iter().enumerate() {
                let (row, block) = (at / across, at % across);
                assert_eq!(
                    held[block * planes[1] + row],
                    scale.to_bits(),
                    "scale {at} of {what}"
                );
            }
            let padding = |block: usize| &held[block * planes[1] + down..(block + 1) * planes[1]];
            if planes[1] > 1 {
                assert!(
                    (0..across).all(|block| padding(block).iter().all(|none| *none == 0)),
                    "padding of {what}"
                );
            }
        }
        rank.barrier()
    }));
}

const QUANTISED: [usize; 3] = [16, 144, 1040];

/// Every kind of result that is quantised.
fn recipes() -> Vec<Recipe> {
    let (theirs, deep) = (ScaleRule::transformer_engine, ScaleRule::deep_gemm());
    let [rows, blocks] = [Granularity::PerRow, Granularity::BLOCK_1X128].map(Scaling::Current);
    let all = [
        (theirs(Fp8::E4M3), Scaling::Delayed),
        (theirs(Fp8::E4M3), rows),
        (deep, rows),
        (deep, blocks),
        (deep.powers_of_two(), blocks),
        (theirs(Fp8::E4M3).powers_of_two(), blocks),
        (theirs(Fp8::E5M2), Scaling::Delayed),
        (theirs(Fp8::E5M2), blocks),
    ];
    let recipe = |(rule, scaling)| Recipe::new(rule, scaling, Dtype::Bf16);
    all.map(recipe).to_vec()
}

fn every_result(all: &[Communicator]) {
    for columns in QUANTISED {
        for recipe in recipes() {
            match recipe.rule.to {
                Fp8::E4M3 => quantised::<F8E4M3>(all, recipe, columns, |code| code.to_bits()),
                Fp8::E5M2 => quantised::<F8E5M2>(all, recipe, columns, |code| code.to_bits()),
            }
        }
    }
}

/// The texts of all kernels that these tests launch on a GPU.
pub fn texts() -> Vec<String> {
    let mut texts = Vec::new();
    for world in 1..=8 {
        let ranks = fine(Communicator::emulated(world));
        let norm = AllReduceNorm::of(&ranks[0]).eps(EPS);
        let columns = RAGGED.iter().map(|(columns, _)| *columns);
        let columns = columns.chain(LONG.map(|(columns, _)| columns));
        texts.extend(columns.map(|columns| norm.text(columns)));
        for recipe in recipes() {
            let norm = norm.clone().quantised(recipe);
            texts.extend(QUANTISED.map(|columns| norm.text(columns)));
        }
    }
    texts
}

#[test]
fn emulated_ranks_quantise_what_they_normalise() {
    for world in [1, 2, 3] {
        every_result(&fine(Communicator::emulated(world)));
    }
}

#[test]
fn ranks_that_share_a_gpu_quantise_what_they_normalise() {
    on_gpu([1, 2, 3], every_result);
}

/// Replays between launches of other rows. Each adds to the residual again, so that none may be missing or come twice.
fn replays(all: &[Communicator], rounds: usize) {
    let (columns, most) = (264, 9);
    let gamma = vec![bf16::ONE; columns];
    fine(Communicator::each(all, |rank| {
        let norm = AllReduceNorm::of(rank).eps(EPS).up_to(most, columns);
        rank.reserve(norm.workspace()?.heap + (2 << 20))?;
        let norm = norm.build()?;
        let all = [(); 2].map(|()| rank.zeros::<bf16>([most, columns]));
        let [mut residual, mut y] = all.map(fine);
        let of_gamma = rank.zeros::<bf16>([columns])?;
        of_gamma.write(&gamma)?;
        // Other rows in each: words that a launch before left would be seen.
        let given = |rank: usize, which: u64| rows_of(rank, [most, columns], 3 * which);
        let xs = [0, 1, 2].map(|which| {
            let x = fine(rank.zeros::<bf16>([most, columns]));
            fine(x.write(&given(rank.rank() as usize, which)));
            x
        });
        let mut launch = |on: counterflow_runtime::op::Caller<'_>,
                          (which, rows): (usize, usize)| {
            let launch = norm
                .on(on)
                .x(&xs[which])
                .residual(&mut residual)
                .gamma(&of_gamma);
            launch.y(&mut y).rows(rows).launch().map(drop)
        };
        let graphs = [vec![(0, 9)], vec![(1, 4), (0, 0), (1, 2)]].map(|all| {
            let graph = rank.capture(|recording| {
                all.iter()
                    .try_for_each(|made| launch(recording.into(), *made))
            });
            (fine(graph), all)
        });
        rank.synchronize()?;
        rank.barrier()?;
        let mut made = Vec::new();
        for round in 0..rounds {
            let (graph, all) = &graphs[round % 2];
            graph.launch(rank)?;
            made.extend(all);
            let eager = (2, 1 + round * 5 % most);
            launch(rank.into(), eager)?;
            made.push(eager);
        }
        rank.synchronize()?;
        let ranks = 0..rank.world() as usize;
        let of_ranks = |which| ranks.clone().map(|rank| given(rank, which)).collect();
        let given: [Vec<_>; 3] = [0, 1, 2].map(of_ranks);
        let mut after = vec![bf16::ZERO; most * columns];
        let mut normed = vec![bf16::ZERO; most * columns];
        for (which, rows) in made {
            let [sums, y] = wanted(&given[which], &after[..rows * columns], &gamma);
            after[..rows * columns].copy_from_slice(&sums);
            normed[..rows * columns].copy_from_slice(&y);
        }
        assert!(bits(&residual.read()?) == bits(&after), "residual");
        assert!(bits(&y.read()?) == bits(&normed), "y");
        rank.barrier()
    }));
}

/// A graph is all that is left of what it was recorded of.
fn replays_alone(all: &[Communicator]) {
    let shape = [4, 264];
    fine(Communicator::each(all, |rank| {
        let norm = AllReduceNorm::of(rank).eps(EPS).up_to(shape[0], shape[1]);
        rank.reserve(norm.workspace()?.heap + (2 << 20))?;
        let norm = norm.build()?;
        let [x, mut residual, mut y] = [(); 3].map(|()| fine(rank.zeros::<bf16>(shape)));
        let gamma = rank.zeros::<bf16>([shape[1]])?;
        gamma.write(&vec![bf16::ONE; shape[1]])?;
        let given = |rank: usize| rows_of(rank, shape, 3);
        x.write(&given(rank.rank() as usize))?;
        let graph = rank.capture(|recording| {
            let launch = norm.on(recording).x(&x).residual(&mut residual);
            launch.gamma(&gamma).y(&mut y).launch().map(drop)
        })?;
        drop((norm, x));
        rank.synchronize()?;
        rank.barrier()?;
        graph.launch(rank)?.wait()?;
        let given: Vec<_> = (0..rank.world() as usize).map(given).collect();
        let zeros = vec![bf16::ZERO; shape[0] * shape[1]];
        let [sums, normed] = wanted(&given, &zeros, &vec![bf16::ONE; shape[1]]);
        assert!(bits(&residual.read()?) == bits(&sums), "residual");
        assert!(bits(&y.read()?) == bits(&normed), "y");
        rank.barrier()
    }));
}

#[test]
fn an_emulated_graph_keeps_what_its_launches_need() {
    for world in [1, 2] {
        replays_alone(&fine(Communicator::emulated(world)));
    }
}

#[test]
fn a_graph_on_a_gpu_keeps_the_kernel() {
    on_gpu([1, 2], replays_alone);
}

#[test]
fn emulated_replays_take_turns_with_launches_of_other_rows() {
    for world in [1, 2, 3] {
        replays(&fine(Communicator::emulated(world)), 12);
    }
}

#[test]
fn replays_on_a_gpu_take_turns_with_launches_of_other_rows() {
    on_gpu([1, 2, 4], |all| replays(all, 100));
}

/// What holds launches to f64 sees one number that is off by more than rounding, and one that should be NaN.
#[test]
fn a_wrong_number_is_seen() {
    let (x, gamma) = (
        vec![rows_of(0, [1, 64], 0), rows_of(1, [1, 64], 0)],
        vec![bf16::ONE; 64],
    );
    let right = wanted(&x, &x[0], &gamma);
    against_f64(&x, &x[0], &gamma, &right);
    for (which, value) in [(0, bf16::from_f32(100.0)), (1, bf16::NAN), (1, bf16::ZERO)] {
        let mut wrong = right.clone();
        wrong[which][7] = value;
        let seen = std::panic::catch_unwind(|| against_f64(&x, &x[0], &gamma, &wrong));
        assert!(seen.is_err(), "{value} in {which}");
    }
}
