//! The case matrix of TransformerEngine's C++ suites of products, which are those of a library of fused kernels: their shapes, types, layouts
//! and bounds, for every element, on four ranks.

use super::each;
use super::products::{Absent, Count, values};
use super::reference::{Matrix, OF_BF16, OF_F32};
use crate::wide::wide;
use counterflow::prelude::{bf16, e4m3, e5m2};
use counterflow::{
    Communicator, Dtype, Error, Layout, Program, QuantTensor, Scales, Tensor, op, schedules,
};
use half::f16;
use ndarray::{Array2, s};
use std::ops::Range;
use std::sync::Arc;

/// An element of the C++ suites.
trait Number: op::Element + Copy + PartialEq + Into<f64> {
    const DTYPE: Dtype;
    /// Rounding changes a number by at most this part of it.
    const ROUNDED: f64;
    fn of(value: f64) -> Self;
}

impl Number for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
    const ROUNDED: f64 = OF_BF16;
    fn of(value: f64) -> Self {
        bf16::from_f64(value)
    }
}

impl Number for f16 {
    const DTYPE: Dtype = Dtype::F16;
    const ROUNDED: f64 = 1.0 / 2048.0;
    fn of(value: f64) -> Self {
        f16::from_f64(value)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Suite {
    AgGemm,
    GemmRs,
    GemmAr,
}

/// Their shapes, as rows, columns and depth of a result in row-major order, over all ranks.
const fn shape(suite: Suite) -> [usize; 3] {
    match suite {
        Suite::AgGemm => [128, 256, 64],
        Suite::GemmRs => [128, 64, 256],
        Suite::GemmAr => [256, 64, 256],
    }
}

/// Rows of a matrix as they are stored: each column a row where the layout says so.
fn stored<T: Number>(
    of: &Matrix,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
    turned: bool,
) -> Vec<T> {
    let at = |row: usize, column: usize| T::of(of.values[row * of.columns + column]);
    match turned {
        false => rows
            .flat_map(|row| columns.clone().map(move |column| at(row, column)))
            .collect(),
        true => columns
            .flat_map(|column| rows.clone().map(move |row| at(row, column)))
            .collect(),
    }
}

/// One case of a suite on four ranks, against what they compare with: the product of all at once, or each rank's product as the type has
/// it, added in f32.
fn suite<T: Number>(
    rank: &Arc<Communicator>,
    suite: Suite,
    layout: Layout,
    most: f64,
) -> Result<(), Error> {
    let [m, n, k] = shape(suite);
    let (world, me) = (rank.world() as usize, rank.rank() as usize);
    let uniform = |rows, columns, seed| {
        let mut of = Matrix::random(rows, columns, 1.0, seed);
        of.values
            .iter_mut()
            .for_each(|value| *value = T::of(value.abs()).into());
        of
    };
    let (x, w) = (uniform(m, k, 12), uniform(n, k, 13));
    let (program, [n_own, k_own]): (Program, _) = match suite {
        Suite::AgGemm => (schedules::ag_gemm(), [n / world, k]),
        Suite::GemmRs => (schedules::gemm_rs(), [n, k / world]),
        Suite::GemmAr => (schedules::gemm_ar(), [n, k / world]),
    };
    let [x_turned, w_turned] = layout.mn_major();
    let (features, depth) = match suite {
        Suite::AgGemm => (n_own * me..n_own * (me + 1), 0..k),
        Suite::GemmRs | Suite::GemmAr => (0..n, k_own * me..k_own * (me + 1)),
    };
    let shaped = |rows, columns, turned| {
        if turned {
            [columns, rows]
        } else {
            [rows, columns]
        }
    };
    let weight = rank.zeros::<T>(shaped(n_own, k_own, w_turned))?;
    weight.write(&stored::<T>(&w, features.clone(), depth.clone(), w_turned))?;
    let built = rank
        .op(&program)
        .dtype(T::DTYPE)
        .layout(layout)
        .first_options()
        .up_to(m, n_own, k_own)
        .build()?;
    let shard = rank.shard(rank.rank(), m);
    let launch = built.on(&**rank).tensor("w", &weight);
    let (found, rows): (Vec<T>, _) = match suite {
        Suite::AgGemm => {
            let all = rank.allocate::<T>("x", shaped(m, k, x_turned))?;
            let part = stored::<T>(&x, shard.clone(), 0..k, x_turned);
            all.rows(shard)?.write(&part)?;
            let mut y = rank.zeros::<T>([m, n_own])?;
            launch
                .tensor("x", &all)
                .tensor("y", &mut y)
                .launch()?
                .wait()?;
            (y.read()?, 0..m)
        }
        Suite::GemmRs | Suite::GemmAr => {
            let own = rank.zeros::<T>(shaped(m, k_own, x_turned))?;
            own.write(&stored::<T>(&x, 0..m, depth, x_turned))?;
            let rows = if suite == Suite::GemmRs { shard } else { 0..m };
            let mut y = rank.allocate::<T>("y", [rows.len(), n])?;
            launch
                .tensor("x", &own)
                .tensor("y", &mut y)
                .launch()?
                .wait()?;
            (y.read()?, rows)
        }
    };
    let product = |of: Range<usize>| {
        let [x, w] = [&x, &w].map(|all| {
            Array2::from_shape_vec((all.rows(), k), all.values.clone()).expect("rows of the depth")
        });
        x.slice(s![.., of.clone()]).dot(&w.slice(s![.., of]).t())
    };
    let golden: Vec<f64> = match suite {
        Suite::AgGemm => {
            let whole = rank.zeros::<T>(shaped(m, k, x_turned))?;
            whole.write(&stored::<T>(&x, 0..m, 0..k, x_turned))?;
            let alone = schedules::gemm();
            let alone = rank
                .op(&alone)
                .dtype(T::DTYPE)
                .layout(layout)
                .first_options()
                .up_to(m, n_own, k)
                .build()?;
            let mut y = rank.zeros::<T>([m, n_own])?;
            let launch = alone.on(&**rank).tensor("x", &whole).tensor("w", &weight);
            launch.tensor("y", &mut y).launch()?.wait()?;
            let found = values(&y.read()?);
            let exact = product(0..k);
            for (at, found) in found.iter().enumerate() {
                let exact = exact[[at / n_own, features.start + at % n_own]];
                let bound = (T::ROUNDED + 2.0 * k as f64 * OF_F32) * exact;
                assert!(
                    (found - exact).abs() <= bound,
                    "the product alone: {found}, not {exact}"
                );
            }
            found
        }
        Suite::GemmRs | Suite::GemmAr => {
            let each = rows
                .clone()
                .flat_map(|row| (0..n).map(move |column| (row, column)));
            let part = |part: usize| product(k_own * part..k_own * (part + 1));
            let parts: Vec<_> = (0..world).map(part).collect();
            let of = |at: (usize, usize)| {
                let sent = parts.iter().map(|part| T::of(part[at]).into());
                T::of(sent.sum()).into()
            };
            each.map(of).collect()
        }
    };
    assert_eq!(found.len(), rows.len() * features.len());
    assert_eq!(found.len(), golden.len());
    for (at, (found, wanted)) in found.into_iter().zip(golden).enumerate() {
        let found: f64 = found.into();
        let near = (found - wanted).abs() <= most;
        assert!(
            near,
            "{suite:?} {layout:?} [{at}] is {found}, not {wanted} ± {most}"
        );
    }
    Ok(())
}

/// A code of FP8.
trait CodeNumber: op::Code + Copy {
    fn of(value: f64) -> Self;
}

impl CodeNumber for e4m3 {
    fn of(value: f64) -> Self {
        e4m3::from_f64(value)
    }
}

impl CodeNumber for e5m2 {
    fn of(value: f64) -> Self {
        e5m2::from_f64(value)
    }
}

/// A matrix of codes, in plain numbers, of which ranks have parts.
struct Codes<T> {
    all: Vec<T>,
    depth: usize,
}

impl<T: CodeNumber> Codes<T> {
    fn new(rows: usize, depth: usize, seed: u64) -> Codes<T> {
        let all = Matrix::random(rows, depth, 1.0, seed).values;
        let all = all.iter().map(|value| T::of(value.abs())).collect();
        Codes { all, depth }
    }

    fn part(&self, rows: Range<usize>, depth: Range<usize>) -> Vec<T> {
        let row = |row: usize| &self.all[row * self.depth..][depth.clone()];
        rows.flat_map(row).copied().collect()
    }

    /// A part of it on a rank, with a scale of 1.
    fn on(
        &self,
        rank: &Communicator,
        rows: Range<usize>,
        depth: Range<usize>,
    ) -> Result<QuantTensor<Tensor<T>>, Error> {
        let codes = rank.zeros::<T>([rows.len(), depth.len()])?;
        codes.write(&self.part(rows, depth))?;
        QuantTensor::new(codes, one(rank)?, op::Granularity::PerTensor)
    }
}

fn one(rank: &Communicator) -> Result<Tensor<f32>, Error> {
    let one = rank.zeros::<f32>([1, 1])?;
    one.write(&[1.0])?;
    Ok(one)
}

/// One case of a suite with codes, on four ranks, against what they compare with: products by the same unit. Theirs give f16, and so do
/// gathered ones here; sums of FP8 are bf16 here.
fn coded_suite<X: CodeNumber, W: CodeNumber>(
    rank: &Arc<Communicator>,
    suite: Suite,
    most: f64,
) -> Result<(), Error> {
    let [m, n, k] = match suite {
        Suite::AgGemm | Suite::GemmRs => shape(suite),
        Suite::GemmAr => [512, 128, 512],
    };
    let (world, me) = (rank.world() as usize, rank.rank() as usize);
    let (x, w) = (Codes::<X>::new(m, k, 12), Codes::<W>::new(n, k, 13));
    let (program, [n_own, k_own]): (Program, _) = match suite {
        Suite::AgGemm => (schedules::ag_gemm(), [n / world, k]),
        Suite::GemmRs => (schedules::gemm_rs(), [n, k / world]),
        Suite::GemmAr => (schedules::gemm_ar(), [n, k / world]),
    };
    let depth_of = |part: usize| k_own * part..k_own * (part + 1);
    let built = |program: &Program| {
        let op = rank.op(program).dtype(X::TENSOR.expect("FP8"));
        let op = match X::TENSOR == W::TENSOR {
            true => op,
            false => op.rhs_dtype(W::TENSOR.expect("FP8")),
        };
        let op = op.scales(Scales::PerTensor).first_options();
        let op = match suite {
            Suite::AgGemm => op.output(Dtype::F16),
            Suite::GemmRs | Suite::GemmAr => op,
        };
        op.up_to(m, n_own, k_own).build()
    };
    let (op, alone) = (built(&program)?, built(&schedules::gemm())?);
    let shard = rank.shard(rank.rank(), m);
    let (found, golden) = match suite {
        Suite::AgGemm => {
            let weight = w.on(rank, n_own * me..n_own * (me + 1), 0..k)?;
            let all = rank.allocate::<X>("x", [m, k])?;
            all.rows(shard.clone())?.write(&x.part(shard, 0..k))?;
            let all = QuantTensor::new(all, one(rank)?, op::Granularity::PerTensor)?;
            let (mut y, mut by_itself) = (rank.zeros::<f16>([m, n_own])?, rank.zeros([m, n_own])?);
            let launch = op.on(&**rank).tensor("w", &weight).tensor("x", &all);
            launch.tensor("y", &mut y).launch()?.wait()?;
            let whole = x.on(rank, 0..m, 0..k)?;
            let launch = alone.on(&**rank).tensor("w", &weight).tensor("x", &whole);
            launch.tensor("y", &mut by_itself).launch()?.wait()?;
            (values(&y.read()?), values::<f16>(&by_itself.read()?))
        }
        Suite::GemmRs | Suite::GemmAr => {
            let mut terms = Vec::new();
            let product = |part: usize| {
                let depth = depth_of(part);
                Ok::<_, Error>((x.on(rank, 0..m, depth.clone())?, w.on(rank, 0..n, depth)?))
            };
            for part in 0..world {
                let (x, w) = product(part)?;
                let mut y = rank.zeros::<bf16>([m, n])?;
                let launch = alone.on(&**rank).tensor("w", &w).tensor("x", &x);
                launch.tensor("y", &mut y).launch()?.wait()?;
                terms.push(values(&y.read()?));
            }
            let (x, w) = product(me)?;
            let rows = if suite == Suite::GemmRs { shard } else { 0..m };
            let mut y = rank.allocate::<bf16>("y", [rows.len(), n])?;
            let launch = op.on(&**rank).tensor("w", &w).tensor("x", &x);
            launch.tensor("y", &mut y).launch()?.wait()?;
            let sum = |at: usize| terms.iter().map(|term| term[at]).sum();
            let sums = (rows.start * n..rows.end * n).map(sum);
            let golden: Vec<f64> = sums.map(|sum| bf16::from_f64(sum).into()).collect();
            (values(&y.read()?), golden)
        }
    };
    assert_eq!(found.len(), golden.len());
    for (at, (found, wanted)) in found.into_iter().zip(golden).enumerate() {
        let near = (found - wanted).abs() <= most;
        assert!(
            near && wanted > 0.0,
            "[{at}] is {found}, not {wanted} ± {most}"
        );
    }
    Ok(())
}

/// Their layouts NN, NT and TN of column-major operands, as ours of row-major ones.
const LAYOUTS: [Layout; 3] = [Layout::Nn, Layout::Tn, Layout::Nt];

#[test]
fn gathered_and_summed_products() {
    let mut counts = [Count::default(), Count::default(), Count::default()];
    let all = [Suite::AgGemm, Suite::GemmRs, Suite::GemmAr];
    for (at, (which, count)) in all.into_iter().zip(&mut counts).enumerate() {
        // Absolute, of f16 and of bf16.
        let [of_f16, of_bf16] = match which {
            Suite::AgGemm => [1e-3, 1e-3],
            Suite::GemmRs | Suite::GemmAr => [7e-2, 6e-1],
        };
        let layouts = if which == Suite::GemmAr {
            &LAYOUTS[2..]
        } else {
            &LAYOUTS
        };
        for (turn, layout) in layouts.iter().enumerate() {
            for (is_f16, most) in [(true, of_f16), (false, of_bf16)] {
                if *layout == Layout::Tn {
                    count.absent(Absent::Turned);
                    continue;
                }
                // One case of each suite, unless all are asked for.
                if !wide() && (turn, is_f16) != (2 * (at % 2) % layouts.len(), at != 1) {
                    count.absent(Absent::Wide);
                    continue;
                }
                let done = each(4, |rank| {
                    rank.reserve(8 << 20)?;
                    match is_f16 {
                        true => suite::<f16>(rank, which, *layout, most),
                        false => suite::<bf16>(rank, which, *layout, most),
                    }
                });
                done.unwrap_or_else(|error| {
                    panic!("{which:?} {layout:?}: {error}: {:?}", error.help())
                });
                count.here += 1;
            }
        }
        // e4m3 by itself, and either side in e5m2.
        let bounds = match which {
            Suite::AgGemm => [1e-3; 3],
            Suite::GemmRs => [1e-1, 7e-2, 7e-2],
            Suite::GemmAr => [1.5e-1; 3],
        };
        for (turn, most) in bounds.into_iter().enumerate() {
            if !wide() && turn != at {
                count.absent(Absent::Wide);
                continue;
            }
            let done = each(4, |rank| {
                rank.reserve(8 << 20)?;
                match turn {
                    0 => coded_suite::<e4m3, e4m3>(rank, which, most),
                    1 => coded_suite::<e4m3, e5m2>(rank, which, most),
                    _ => coded_suite::<e5m2, e4m3>(rank, which, most),
                }
            });
            done.unwrap_or_else(|error| {
                panic!("{which:?}, codes {turn}: {error}: {:?}", error.help())
            });
            count.here += 1;
        }
    }
    let of = |all: usize, turned| Count {
        turned,
        ..Count::ran(2, all + 3)
    };
    assert_eq!(counts, [of(4, 2), of(4, 2), of(2, 0)]);
}

/// Not silently another product.
#[test]
fn rows_that_lie_in_columns_are_not_gathered() {
    let rank = Communicator::emulated(2).expect("ranks").remove(0);
    let program = schedules::ag_gemm();
    let told = rank
        .op(&program)
        .layout(Layout::Tn)
        .up_to(128, 64, 64)
        .workspace();
    let told = told.map(drop).expect_err("refused").to_string();
    assert!(
        told.contains("#[comm] moves `x`, which is MN-major"),
        "{told}"
    );
}
