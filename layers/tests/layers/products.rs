//! The case matrix of TransformerEngine's tests of products alone, as data: those of its Python runner, and of its fusible ops.
//! Every element is held to the bound that its roundings have, and to theirs. NaN fails.
//!
//! A case that does not run is counted by its reason. They run each case twice: with userbuffers, and with cuBLASMp. One fused kernel does
//! both here, so the second run of a case calls it by the name of an atomic product. The Python runner has 2048 rows, 1536 columns and 6144
//! features; here each is divided by 32.

use super::cases::{NONE, USUAL};
use super::fp8::of_sum;
use super::one::{Held, linear, own, own_part};
use super::reference::{Matrix, Wanted};
use super::{each, userbuffers_of};
use crate::wide::wide;
use counterflow::op::Granularity;
use counterflow::prelude::{bf16, e4m3};
use counterflow::quantise::{self, twin};
use counterflow::rule::{Fp8, ScaleRule};
use counterflow::{Communicator, Dtype, Error, Layout, QuantTensor, Tensor};
use counterflow_layers::overlap::{Comm, Parallel, Settings};
use counterflow_layers::{
    Autocast, CommOverlap, CommOverlapP2P, DelayedScaling, Destination, Float8CurrentScaling,
    LinearConfig, Operand, QuantizationMode, Recipe,
};
use std::sync::Arc;

/// Why a case is not run here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absent {
    /// Its operands are FP8 by name alone: their runner makes them bf16.
    Fp8,
    /// Of Blackwell's GPUs.
    Mxfp8,
    /// A setting of the driver.
    Gpu,
    /// Rows that ranks divide are columns in memory: no schedule gathers or scatters those with SMs.
    Turned,
    /// It runs with `WIDE=1` alone.
    Wide,
}

/// How many cases ran, and how many did not, by their reasons.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Count {
    pub here: usize,
    pub fp8: usize,
    pub mxfp8: usize,
    pub gpu: usize,
    pub turned: usize,
    pub wide: usize,
}

impl Count {
    /// So many that ran, of so many that run with `WIDE=1`.
    pub fn ran(here: usize, all: usize) -> Count {
        let here = if wide() { all } else { here };
        Count {
            here,
            wide: all - here,
            ..Count::default()
        }
    }

    pub fn absent(&mut self, why: Absent) {
        match why {
            Absent::Fp8 => self.fp8 += 1,
            Absent::Mxfp8 => self.mxfp8 += 1,
            Absent::Gpu => self.gpu += 1,
            Absent::Turned => self.turned += 1,
            Absent::Wide => self.wide += 1,
        }
    }
}

const ROWS: usize = 64;
const HIDDEN: usize = 48;
const FFN: usize = 192;
/// Uniform numbers of the same deviation as theirs, which is 0.023.
const LARGEST: f32 = 0.04;
/// Relative and absolute: an element fails there if it is beyond both.
const THEIRS: [f64; 2] = [0.02, 0.002];
const THEIRS_FP8: [f64; 2] = [0.125, 0.0625];

pub fn values<T: Copy + Into<f64>>(of: &[T]) -> Vec<f64> {
    of.iter().map(|value| (*value).into()).collect()
}

/// Fails where an element is beyond both of their bounds. NaN is.
fn within(what: &str, found: &[f64], wanted: impl Iterator<Item = f64>, [part, least]: [f64; 2]) {
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let far = (found - wanted).abs();
        let near = far <= f64::max(least, part * wanted.abs());
        assert!(near, "{what}[{at}] is {found}, not {wanted}");
    }
}

/// a · bᵀ as bf16 has it, of terms that are sums of so many ranks.
fn product(a: &Matrix, b: &Matrix, parts: usize) -> Wanted {
    let at = |of: &Matrix, row: usize, column: usize| of.values[row * of.columns + column];
    let sizes = [a.rows(), b.rows(), a.columns];
    Wanted::product(sizes, parts, |m, k| at(a, m, k), |k, n| at(b, n, k)).rounded()
}

/// Rows of what a rank found, against both bounds.
fn check(what: &str, wanted: &Wanted, rows: std::ops::Range<usize>, found: &[bf16]) {
    let found = values(found);
    let columns = wanted.values.columns;
    wanted.check(what, rows.clone(), 0..columns, &found);
    let part = &wanted.values.values[rows.start * columns..rows.end * columns];
    within(what, &found, part.iter().copied(), THEIRS);
}

fn random(rows: usize, columns: usize, seed: u64) -> Matrix {
    Matrix::random(rows, columns, LARGEST, seed)
}

type Codes = QuantTensor<Tensor<e4m3>>;

/// A rank's part of a matrix, as e4m3 with the one scale of the whole, and what the codes of all stand for.
fn codes(rank: &Communicator, of: &Matrix, shape: [usize; 2]) -> Result<(Codes, Matrix), Error> {
    let rule = ScaleRule::transformer_engine(Fp8::E4M3);
    let values: Vec<f32> = of.values.iter().map(|value| *value as f32).collect();
    let whole = quantise::Matrix::new(&values, [of.rows(), of.columns], Dtype::Bf16);
    let scale = rule.of_tensor(twin::amax(&whole, &rule));
    let all = twin::cast(&whole, rule.to, scale.multiplier);
    let [rows, columns] = own_part(rank, of, shape);
    let own = rows.flat_map(|row| all[row * of.columns..][columns.clone()].to_vec());
    let (tensor, one) = (rank.zeros::<e4m3>(shape)?, rank.zeros::<f32>([1, 1])?);
    tensor.write(&own.map(e4m3::from_bits).collect::<Vec<_>>())?;
    one.write(&[scale.stored])?;
    let value = |code: &u8| f64::from(rule.to.value(*code)) * f64::from(scale.stored);
    let stand = Matrix {
        columns: of.columns,
        values: all.iter().map(value).collect(),
    };
    Ok((
        QuantTensor::new(tensor, one, Granularity::PerTensor)?,
        stand,
    ))
}

/// As `check`, of products of codes, against their bounds for FP8.
fn check_codes([a, b]: [&Matrix; 2], parts: usize, rows: std::ops::Range<usize>, found: &[bf16]) {
    let at = |of: &Matrix, row: usize, column: usize| of.values[row * of.columns + column];
    let (sizes, sum) = ([a.rows(), b.rows(), a.columns], of_sum(a.columns / parts));
    let wanted = Wanted::product_off(sizes, (parts, sum), |m, k| at(a, m, k), |k, n| at(b, n, k));
    let (wanted, found) = (wanted.rounded(), values(found));
    wanted.check("y", rows.clone(), 0..b.rows(), &found);
    let part = &wanted.values.values[rows.start * b.rows()..rows.end * b.rows()];
    within("y", &found, part.iter().copied(), THEIRS_FP8);
}

/// A product of rows that are gathered as codes.
fn split_ag_of_codes(rank: &Arc<Communicator>, aggregate: bool, atomic: bool) -> Result<(), Error> {
    let settings = Settings {
        aggregate: Some(aggregate),
        ..Settings::default()
    };
    let overlap = CommOverlapP2P::new(rank, [ROWS, HIDDEN], Comm::AllGather, &settings)?;
    let (x, features) = (random(ROWS, HIDDEN, 42), FFN / rank.world() as usize);
    let w = random(features, HIDDEN, 43 + u64::from(rank.rank()));
    let shard = rank.shard(rank.rank(), ROWS);
    let (x_own, x) = codes(rank, &x, [shard.len(), HIDDEN])?;
    let (weight, w) = codes(rank, &w, [features, HIDDEN])?;
    overlap.copy_into_buffer(ROWS, &x_own, true)?;
    let operand = Operand {
        tensor: (&weight).into(),
        bias: None,
        layout: Layout::Nt,
    };
    let mut y = rank.zeros([ROWS, features])?;
    match atomic {
        true => overlap.atomic_gemm_overlap_ag(ROWS, operand, &mut y, None)?,
        false => overlap.split_overlap_ag(ROWS, operand, &mut y, None)?,
    }
    check_codes([&x, &w], 1, 0..ROWS, &y.read()?);
    Ok(())
}

/// A product of codes that is summed over ranks.
fn split_rs_of_codes(rank: &Arc<Communicator>, p2p: bool, atomic: bool) -> Result<(), Error> {
    let (settings, shape) = (Settings::default(), [ROWS, HIDDEN]);
    let world = rank.world() as usize;
    let (x, w) = (random(ROWS, FFN, 42), random(HIDDEN, FFN, 43));
    let depth = FFN / world;
    let (x_own, x) = codes(rank, &x, [ROWS, depth])?;
    let (w_own, w) = codes(rank, &w, [HIDDEN, depth])?;
    let operand = Operand {
        tensor: (&w_own).into(),
        bias: None,
        layout: Layout::Nt,
    };
    let shard = rank.shard(rank.rank(), ROWS);
    let mut y = rank.zeros([shard.len(), HIDDEN])?;
    if p2p {
        let overlap = CommOverlapP2P::new(rank, shape, Comm::ReduceScatter, &settings)?;
        match atomic {
            true => overlap.atomic_gemm_overlap_rs(ROWS, &x_own, operand, &mut y)?,
            false => overlap.split_overlap_rs(ROWS, &x_own, operand, &mut y)?,
        }
    } else {
        let overlap = CommOverlap::new(rank, shape, &settings)?;
        match atomic {
            true => overlap.atomic_gemm_overlap_rs(ROWS, &x_own, operand, &mut y)?,
            false => overlap.split_overlap_rs(ROWS, &x_own, operand, &mut y)?,
        }
    }
    check_codes([&x, &w], world, shard, &y.read()?);
    Ok(())
}

/// A product of rows that are gathered: with larger steps or not, by either name.
fn split_ag(rank: &Arc<Communicator>, aggregate: bool, atomic: bool) -> Result<(), Error> {
    let settings = Settings {
        aggregate: Some(aggregate),
        ..Settings::default()
    };
    let overlap = CommOverlapP2P::new(rank, [ROWS, HIDDEN], Comm::AllGather, &settings)?;
    let (x, features) = (random(ROWS, HIDDEN, 42), FFN / rank.world() as usize);
    let w = random(features, HIDDEN, 43 + u64::from(rank.rank()));
    let shard = rank.shard(rank.rank(), ROWS);
    overlap.copy_into_buffer(ROWS, &own(rank, &x, [shard.len(), HIDDEN])?, true)?;
    let weight = own(rank, &w, [features, HIDDEN])?;
    let operand = Operand {
        tensor: (&weight).into(),
        bias: None,
        layout: Layout::Nt,
    };
    let mut y = rank.zeros([ROWS, features])?;
    match atomic {
        true => overlap.atomic_gemm_overlap_ag(ROWS, operand, &mut y, None)?,
        false => overlap.split_overlap_ag(ROWS, operand, &mut y, None)?,
    }
    check("y", &product(&x, &w, 1), 0..ROWS, &y.read()?);
    Ok(())
}

/// A product that is summed over ranks, by each of the two classes and names.
fn split_rs(rank: &Arc<Communicator>, p2p: bool, atomic: bool) -> Result<(), Error> {
    let (settings, shape) = (Settings::default(), [ROWS, HIDDEN]);
    let world = rank.world() as usize;
    let (x, w) = (random(ROWS, FFN, 42), random(HIDDEN, FFN, 43));
    let depth = FFN / world;
    let (x_own, w_own) = (
        own(rank, &x, [ROWS, depth])?,
        own(rank, &w, [HIDDEN, depth])?,
    );
    let operand = Operand {
        tensor: (&w_own).into(),
        bias: None,
        layout: Layout::Nt,
    };
    let shard = rank.shard(rank.rank(), ROWS);
    let mut y = rank.zeros([shard.len(), HIDDEN])?;
    if p2p {
        let overlap = CommOverlapP2P::new(rank, shape, Comm::ReduceScatter, &settings)?;
        match atomic {
            true => overlap.atomic_gemm_overlap_rs(ROWS, &x_own, operand, &mut y)?,
            false => overlap.split_overlap_rs(ROWS, &x_own, operand, &mut y)?,
        }
    } else {
        let overlap = CommOverlap::new(rank, shape, &settings)?;
        match atomic {
            true => overlap.atomic_gemm_overlap_rs(ROWS, &x_own, operand, &mut y)?,
            false => overlap.split_overlap_rs(ROWS, &x_own, operand, &mut y)?,
        }
    }
    check("y", &product(&x, &w, world), shard, &y.read()?);
    Ok(())
}

/// A product beside the communication of another tensor.
fn bulk(rank: &Arc<Communicator>, comm: Comm) -> Result<(), Error> {
    let settings = Settings {
        num_sm: Some(2),
        ..Settings::default()
    };
    let overlap = CommOverlap::new(rank, [ROWS, HIDDEN], &settings)?;
    let (a, b) = (random(ROWS, FFN, 42), random(HIDDEN, FFN, 43));
    let (a_own, b_own) = (own(rank, &a, [ROWS, FFN])?, own(rank, &b, [HIDDEN, FFN])?);
    let shard = rank.shard(rank.rank(), ROWS);
    let term = |rank: u32| random(ROWS, HIDDEN, 50 + u64::from(rank));
    let mut d = rank.zeros([ROWS, HIDDEN])?;
    let (into, both) = (Destination::Written(&mut d), [&a_own, &b_own]);
    match comm {
        Comm::AllGather => {
            let all = term(100);
            overlap.copy_into_buffer(ROWS, &own(rank, &all, [shard.len(), HIDDEN])?, true)?;
            overlap.bulk_overlap(ROWS, both, Layout::Nt, into, comm, None)?;
            let buffer = overlap.get_buffer(ROWS, HIDDEN, false)?.read()?;
            assert_eq!(buffer, all.part(0..ROWS, 0..HIDDEN), "gathered");
        }
        Comm::ReduceScatter => {
            overlap.copy_into_buffer(
                ROWS,
                &own(rank, &term(rank.rank()), [ROWS, HIDDEN])?,
                false,
            )?;
            let mut r = rank.zeros([shard.len(), HIDDEN])?;
            overlap.bulk_overlap(ROWS, both, Layout::Nt, into, comm, Some(&mut r))?;
            let terms: Vec<Matrix> = (0..rank.world()).map(term).collect();
            let sum = |at: usize| terms.iter().map(|term| term.values[at]).sum();
            let mut sums = Wanted::exactly(0.0, [ROWS, HIDDEN]);
            sums.values.values = (0..ROWS * HIDDEN).map(sum).collect();
            check("r", &sums.rounded(), shard, &r.read()?);
        }
    }
    check("d", &product(&a, &b, 1), 0..ROWS, &d.read()?);
    Ok(())
}

/// As bf16, as codes, and as what does not exist here.
const QUANTISED: [Result<bool, Absent>; 3] = [Ok(false), Ok(true), Err(Absent::Mxfp8)];

/// Runs a case on 2 ranks, and with `WIDE=1` on 3, too.
fn on_ranks(what: &str, run: impl Fn(&Arc<Communicator>) -> Result<(), Error> + Sync) {
    for world in if wide() { vec![2, 3] } else { vec![2] } {
        let done = each(world, |rank| {
            rank.reserve(32 << 20)?;
            run(rank)
        });
        done.unwrap_or_else(|error| panic!("{what}, {world} ranks: {error}"));
    }
}

#[test]
fn split_gathers_and_sums() {
    let mut counts = [Count::default(), Count::default()];
    for quantised in QUANTISED {
        for (first, atomic) in [(false, false), (true, false), (false, true), (true, true)] {
            match quantised {
                Ok(false) => {
                    on_ranks("split AG", |rank| split_ag(rank, first, atomic));
                    on_ranks("split RS", |rank| split_rs(rank, first, atomic));
                }
                Ok(true) => {
                    on_ranks("split AG", |rank| split_ag_of_codes(rank, first, atomic));
                    on_ranks("split RS", |rank| split_rs_of_codes(rank, first, atomic));
                }
                Err(why) => {
                    counts.iter_mut().for_each(|count| count.absent(why));
                    continue;
                }
            }
            counts.iter_mut().for_each(|count| count.here += 1);
        }
    }
    let wanted = Count {
        here: 8,
        mxfp8: 4,
        ..Count::default()
    };
    assert!(counts.iter().all(|count| *count == wanted), "{counts:?}");
}

#[test]
fn bulk_products() {
    let mut count = Count::default();
    let cases = [
        (Comm::AllGather, None),
        (Comm::ReduceScatter, None),
        (Comm::ReduceScatter, Some(Absent::Fp8)),
    ];
    // One queue of the driver, or eight, which emulated ranks have neither of.
    for (comm, quantised) in cases {
        for queues in [None, Some(Absent::Gpu)] {
            // `comm_overlap` has it every time.
            let wide = (comm == Comm::AllGather && !wide()).then_some(Absent::Wide);
            match quantised.or(queues).or(wide) {
                Some(why) => count.absent(why),
                None => {
                    on_ranks("bulk", |rank| bulk(rank, comm));
                    count.here += 1;
                }
            }
        }
    }
    let wanted = Count {
        fp8: 2,
        gpu: 2,
        ..Count::ran(1, 2)
    };
    assert_eq!(count, wanted);
}

/// Theirs for bf16, of each element.
const FUSIBLE: [f64; 2] = [1.6e-2, 1e-5];
/// And for e4m3.
const FUSIBLE_FP8: [f64; 2] = [0.125, 0.0675];

/// A linear layer of positive numbers, so that no terms cancel: output and gradients against f64.
fn fusible(rank: &Arc<Communicator>, config: &LinearConfig) -> Result<(), Error> {
    let world = rank.world() as usize;
    let [input, output] = [config.in_features, config.out_features];
    let positive = |rows, columns, seed| {
        let mut of = Matrix::random(rows, columns, 1.0, seed);
        of.values.iter_mut().for_each(|value| *value = value.abs());
        of
    };
    let (x, dy) = (positive(ROWS, input, 1), positive(ROWS, output, 2));
    let (w, bias) = (positive(output, input, 3), positive(1, output, 4));
    let mode = config
        .fp8
        .map_or(QuantizationMode::None, |_| QuantizationMode::Fp8);
    let shape = [ROWS, input.max(output)];
    let buffers = userbuffers_of(rank, shape, "", vec![mode])?;
    let step = config.fp8.map(|_| buffers.autocast(None)).transpose()?;
    let mut held = Held::new(&buffers, config, &w, config.bias.then_some(&bias))?;
    let products = held.layer.products();
    assert!(
        products.iter().any(|product| product.overlaps),
        "{products:?}"
    );
    let (y, saved) = held.forward(rank, &x)?;
    let dx = held.backward(rank, saved, &dy)?;
    let at = |of: &Matrix, row: usize, column: usize| of.values[row * of.columns + column];
    let parts = |parallel| {
        if config.parallel == parallel {
            world
        } else {
            1
        }
    };
    let sum = |sizes, parts, a: &dyn Fn(usize, usize) -> f64, b: &dyn Fn(usize, usize) -> f64| {
        Wanted::product(sizes, parts, a, b)
    };
    let y_wanted = sum(
        [ROWS, output, input],
        parts(Parallel::Row),
        &|m, k| at(&x, m, k),
        &|k, n| at(&w, n, k),
    );
    let y_wanted = match config.bias {
        true => y_wanted.plus(&bias.values),
        false => y_wanted,
    };
    let dx_wanted = sum(
        [ROWS, input, output],
        parts(Parallel::Column),
        &|m, k| at(&dy, m, k),
        &|k, n| at(&w, k, n),
    );
    let dw_wanted = sum([output, input, ROWS], 1, &|m, k| at(&dy, k, m), &|k, n| {
        at(&x, k, n)
    });
    let shard = rank.shard(rank.rank(), ROWS);
    let features =
        |all: usize| all / world * rank.rank() as usize..all / world * (rank.rank() as usize + 1);
    let (inputs, outputs, rows_in, rows_out) = match config.parallel {
        Parallel::Column => (0..input, features(output), shard, 0..ROWS),
        Parallel::Row => (features(input), 0..output, 0..ROWS, shard),
    };
    let check = |what: &str,
                 wanted: &Wanted,
                 [rows, columns]: [std::ops::Range<usize>; 2],
                 found: &[f64]| {
        // Codes have a test of their own.
        let [part, least] = match config.fp8 {
            Some(_) => FUSIBLE_FP8,
            None => {
                wanted.check(what, rows.clone(), columns.clone(), found);
                FUSIBLE
            }
        };
        let each = rows.flat_map(|row| columns.clone().map(move |column| (row, column)));
        let exact = each.map(|(row, column)| at(&wanted.values, row, column));
        for (at, (found, wanted)) in found.iter().zip(exact).enumerate() {
            let near = (found - wanted).abs() <= least + part * wanted.abs();
            assert!(near, "{what}[{at}] is {found}, not {wanted}");
        }
    };
    check(
        "y",
        &y_wanted.rounded(),
        [rows_out, outputs.clone()],
        &values(&y.read()?),
    );
    check(
        "dx",
        &dx_wanted.rounded(),
        [rows_in, inputs.clone()],
        &values(&dx.read()?),
    );
    let found = values(&held.of_weight.read()?);
    match config.frozen {
        true => assert!(
            found.iter().all(|value| *value == 0.0),
            "a frozen weight's gradient"
        ),
        false => check("dw", &dw_wanted, [outputs, inputs], &found),
    }
    step.map_or(Ok(()), Autocast::end)
}

#[test]
fn fusible_ops() {
    let (mut turn, mut count) = (0, Count::default());
    let recipes: [Result<Option<Recipe>, Absent>; 4] = [
        Ok(None),
        Ok(Some(DelayedScaling::default().into())),
        Ok(Some(Float8CurrentScaling::default().into())),
        Err(Absent::Mxfp8),
    ];
    for recipe in recipes {
        for (bias, frozen) in [(false, false), (false, true), (true, false), (true, true)] {
            for (parallel, features) in [
                (Parallel::Column, [HIDDEN, FFN]),
                (Parallel::Row, [FFN, HIDDEN]),
            ] {
                let fp8 = match recipe {
                    Ok(fp8) => fp8,
                    Err(why) => {
                        count.absent(why);
                        continue;
                    }
                };
                turn += 1;
                if !wide() && turn % 5 != 1 {
                    count.absent(Absent::Wide);
                    continue;
                }
                let config = LinearConfig {
                    bias,
                    frozen,
                    fp8,
                    ..linear(parallel, features, USUAL)
                };
                on_ranks("a fusible op", |rank| fusible(rank, &config));
                count.here += 1;
            }
        }
    }
    let wanted = Count {
        mxfp8: 8,
        ..Count::ran(5, 24)
    };
    assert_eq!(count, wanted);
    assert_ne!(USUAL, NONE);
}
