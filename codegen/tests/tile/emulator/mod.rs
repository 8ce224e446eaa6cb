//! The emulator on whole schedules: right ones agree with their reference in every order, broken ones are caught.

mod broken;
mod foreign;
mod meaning;
mod multicast;
mod planes;
mod products;
mod whole;

use crate::fixtures::wide::{in_turn, sampled, wide};
use crate::fixtures::{library, small as schedules};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Program, TensorId};
use counterflow_codegen::shape::{Extent, Shape};
use counterflow_codegen::variant::{Arch, Layout, Variant};
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_emulator::{self as interp, Expected, Input, Options};

fn checked(program: &Program, variant: &Variant) -> Checked<Kernel> {
    let kernel = lower(program, &variant.clone().arch(Arch::Cpu));
    let kernel = kernel.unwrap_or_else(|error| panic!("{error}"));
    verify::kernel(kernel).unwrap_or_else(|error| panic!("{error}"))
}

/// A shape whose lines are padded to the 16 bytes that memory needs, and a little more.
fn padded(kernel: &Kernel, m: u32, n: u32, k: u32) -> Shape {
    let mut shape = Shape::new(m, n, k);
    for buffer in kernel
        .buffers
        .iter()
        .filter(|buffer| !buffer.usage.is_scale())
    {
        let (rows, columns) = (
            &kernel.dims[buffer.rows.0 as usize],
            &kernel.dims[buffer.columns.0 as usize],
        );
        let size = |name: &str| match name {
            "m" => m,
            "n" => n,
            "k" => k,
            name if name.ends_with("rows") => m,
            _ => k,
        };
        let line = if buffer.mn_major {
            let shards = if rows.sharded {
                kernel.variant.world
            } else {
                1
            };
            size(&rows.name).div_ceil(shards)
        } else {
            size(&columns.name)
        };
        // Whole 16 bytes, of every type.
        let unit = (16 / buffer.dtype.bytes()).max(8);
        shape = shape.ld(&buffer.name, line.next_multiple_of(unit) + unit);
    }
    shape
}

struct Case {
    kernel: Checked<Kernel>,
    series: Series,
    plans: Vec<Checked<Plan>>,
}

impl Case {
    fn new(program: &Program, variant: &Variant, rows: &[u32], n: u32, k: u32) -> Case {
        let kernel = checked(program, variant);
        let most = rows.iter().copied().max().unwrap_or(1);
        let series = verify::series(&kernel, &Shape::new(most, n, k), &Machine::h200())
            .unwrap_or_else(|error| panic!("{} {}: {error}", kernel.name, kernel.variant));
        let plans = rows.iter().map(|m| {
            let shape = padded(&kernel, *m, n, k);
            series.plan(&shape).unwrap_or_else(|error| {
                panic!("{} {} {shape}: {error}", kernel.name, kernel.variant)
            })
        });
        let plans = plans.collect();
        Case {
            kernel,
            series,
            plans,
        }
    }

    fn launches(&self) -> Vec<&Checked<Plan>> {
        self.plans.iter().collect()
    }

    fn expected<F: FnMut(Input<'_>, &mut [f32])>(&self, inputs: impl Fn() -> F) -> Vec<Expected> {
        let launches = self.plans.iter().enumerate();
        launches
            .map(|(launch, plan)| {
                interp::reference(&self.kernel, plan, launch, inputs())
                    .unwrap_or_else(|error| panic!("{error}"))
            })
            .collect()
    }

    /// Every launch of every rank agrees with the reference, for each seed.
    fn agrees(&self, seeds: std::ops::Range<u64>, exactly: bool) {
        let check = |seed: u64, expected: &[Expected], outcome: interp::Outcome| {
            for expected in expected {
                let result = if exactly {
                    interp::compare_exactly(&outcome, expected)
                } else {
                    interp::compare(&outcome, expected)
                };
                let agreement = result.unwrap_or_else(|error| {
                    panic!(
                        "{} {} seed {seed}: {error}",
                        self.kernel.name, self.kernel.variant
                    )
                });
                assert!(agreement.elements > 0);
            }
        };
        if exactly {
            let expected = self.expected(|| interp::integers(7));
            for seed in seeds {
                let outcome = self.run(seed, interp::integers(7));
                check(seed, &expected, outcome);
            }
        } else {
            let expected = self.expected(|| interp::uniform(7));
            for seed in seeds {
                let outcome = self.run(seed, interp::uniform(7));
                check(seed, &expected, outcome);
            }
        }
    }

    fn run(&self, seed: u64, inputs: impl FnMut(Input<'_>, &mut [f32])) -> interp::Outcome {
        interp::run(&self.series, &self.launches(), &Options::seed(seed), inputs).unwrap_or_else(
            |failure| panic!("{} {}: {failure}", self.kernel.name, self.kernel.variant),
        )
    }
}

/// What has no exact integer reference: a transcendental epilogue.
fn inexact(name: &str) -> bool {
    name == "gated"
}

#[test]
fn every_schedule_agrees_with_its_reference_in_every_world() {
    let seeds = if wide() { 6 } else { 3 };
    for (at, (name, schedule)) in schedules::ALL.into_iter().enumerate() {
        for world in in_turn([[1, 5], [2, 6], [3, 7], [4, 8]], at).flatten() {
            let case = Case::new(&schedule(), &Variant::new(world), &[29, 7, 1], 24, 16);
            case.agrees(0..seeds, !inexact(name));
        }
    }
}

#[test]
fn ragged_rows_layouts_and_types() {
    let kinds = Layout::ALL.map(|layout| Dtype::ALL.map(|dtype| (layout, dtype)));
    let kinds: Vec<_> = (0..).zip(kinds.into_iter().flatten()).collect();
    let all = schedules::ALL.into_iter();
    let all = all.flat_map(|schedule| kinds.iter().map(move |kind| (schedule, *kind)));
    for ((name, schedule), (seed, (layout, dtype))) in sampled(all, 11) {
        let variant = Variant::new(3).layout(layout).dtype(dtype);
        let case = Case::new(&schedule(), &variant, &[7, 127, 10], 40, 20);
        case.agrees(0..2, !inexact(name));
        case.agrees(seed..seed + 1, false);
    }
}

#[test]
fn many_rows() {
    for schedule in [schedules::ag_gemm, schedules::gemm_rs] {
        let case = Case::new(&schedule(), &Variant::new(4), &[1000, 127], 24, 32);
        case.agrees(0..2, true);
    }
}

/// The reference itself, against loops anybody can check.
#[test]
fn the_reference_is_the_plain_sum() {
    let (m, n, k) = (7u32, 16u32, 8u32);
    let case = Case::new(&schedules::gemm_rs(), &Variant::new(3), &[m], n, k);
    let expected = case.expected(|| interp::integers(5)).remove(0);
    let fill = |rank: u32, tensor: u16, name: &str, rows: u32, columns: u32| {
        let mut values = vec![0.0; (rows * columns) as usize];
        let input = Input {
            launch: 0,
            rank,
            tensor: TensorId(tensor),
            name,
            rows: Extent {
                start: 0,
                end: rows,
            },
            columns,
        };
        interp::integers(5)(input, &mut values);
        values
    };
    for tensor in &expected.tensors {
        let bias = fill(tensor.rank, 2, "bias", 1, n);
        for (index, value) in tensor.values.iter().enumerate() {
            let (row, column) = (tensor.rows.start + index as u32 / n, index as u32 % n);
            let mut sum = bias[column as usize];
            for rank in 0..3 {
                let (x, w) = (fill(rank, 0, "x", m, k), fill(rank, 1, "w", n, k));
                for at in 0..k {
                    sum += x[(row * k + at) as usize] * w[(column * k + at) as usize];
                }
            }
            assert_eq!(*value, f64::from(sum), "[{row}, {column}]");
        }
    }
}

/// 256 + 1 + 1 in bf16: added up in f32 it is 258; added at the destination, every sum rounds back to 256.
#[test]
fn every_reduce_add_rounds_at_the_destination() {
    for (schedule, sum) in [
        (schedules::gemm_rs as schedules::Schedule, 258.0),
        (schedules::gemm_rs_add, 256.0),
    ] {
        let case = Case::new(&schedule(), &Variant::new(3), &[3], 8, 8);
        let outcome = case.run(0, |input, values| {
            let columns = input.columns as usize;
            for (index, value) in values.iter_mut().enumerate() {
                let (row, first) = (index / columns, index % columns == 0);
                *value = match input.name {
                    "bias" => 0.0,
                    // One product an element: 256 from the owner of the row, 1 from the others.
                    "x" if first && row == input.rank as usize => 256.0,
                    _ => f32::from(u8::from(first)),
                };
            }
        });
        assert_eq!(outcome.outputs.len(), 3);
        for output in &outcome.outputs {
            assert!(
                output.values.iter().all(|value| *value == sum),
                "{output:?}"
            );
        }
    }
}

/// The library as it is, with tiles and chunks of real size.
#[test]
fn the_library() {
    for (at, program) in library::all().into_iter().enumerate() {
        let case = Case::new(&program, &Variant::new(3), &[520, 100], 264, 64);
        for seed in in_turn([0, 1], at) {
            case.agrees(seed..seed + 1, seed == 0);
        }
    }
}

/// The emulator knows more than the verifier: a multicast of my rows rewrites nothing of mine, and without any dot
/// what a rank contributes to a sum is its input.
#[test]
fn beyond_the_verifier() {
    for schedule in [schedules::multicast, schedules::reduce_scatter] {
        for world in 1..=4 {
            let variant = Variant::new(world).arch(Arch::Cpu);
            let kernel = lower(&schedule(), &variant).expect("a schedule");
            let shape = padded(&kernel, 13, 16, 8);
            let plan = Plan::new(&kernel, &shape, &Machine::h200()).expect("a shape");
            let launches = [vec![&plan], vec![&plan]];
            for seed in 0..6 {
                let options = Options::seed(seed);
                let outcome = interp::provoke(&kernel, &launches, &options, interp::integers(3))
                    .unwrap_or_else(|failure| panic!("{failure}"));
                for launch in 0..2 {
                    let expected = interp::reference(&kernel, &plan, launch, interp::integers(3));
                    let expected = expected.expect("a reference");
                    interp::compare_exactly(&outcome, &expected).expect("agreement");
                }
            }
        }
    }
}
