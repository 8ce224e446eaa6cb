//! What the verifier says of a case, and whether the case is right when it runs.
//!
//! A run is right if the emulator has nothing against it, and its numbers are those of the outputs' types: a gathered
//! tensor is the ranks' shards one after another, of inputs or of products; a sum over ranks is that of their products or inputs,
//! with its addend once; a product whose columns the ranks divide is that with all shards; anything else is what the statements say one after another. None of this asks the verifier.

use super::{Addend, Case, Meant, Product, Summed};
use counterflow_codegen::diag::{Diagnostic, Diagnostics};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{AtEnd, TensorId, Usage};
use counterflow_codegen::shape::{Extent, Shape};
use counterflow_codegen::variant::{Arch, Scales, Variant};
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_emulator::{self as interp, Failure, Input, Options, Outcome};

/// What the verifier says.
pub enum Verdict {
    /// Nothing: lowering refuses it.
    Unplaced,
    /// A rank or slot that does not exist: it cannot even be unrolled.
    Outside,
    Rejected(Kernel, Vec<Plan>, Box<Diagnostic>),
    Accepted(Kernel, Vec<Plan>, Series, Vec<Checked<Plan>>),
}

fn variant(case: &Case) -> Variant {
    let variant = Variant::new(case.world).arch(Arch::Cpu);
    let kinds = [Scales::PerRow, Scales::Blocks1d2d, Scales::Blocks1d1d];
    let scales = kinds[case.world as usize % kinds.len()];
    match case.scaled {
        true => variant.dtype(Dtype::E4M3).scales(scales),
        false => variant,
    }
}

fn machine() -> Machine {
    Machine::h200()
}

/// A shape with those further dimensions that the kernel has.
fn of_kernel(kernel: &Kernel, mut shape: Shape) -> Shape {
    let has = |name: &String| kernel.dims.iter().any(|dim| dim.name == *name);
    shape.dims.retain(|name, _| has(name));
    shape
}

/// The verifier's word for all launches of a case.
///
/// # Panics
/// If a series accepts what the rules refuse, or counts other arrivals.
pub fn verdict(case: &Case) -> Verdict {
    let Ok(kernel) = lower(&case.program, &variant(case)) else {
        return Verdict::Unplaced;
    };
    let most = of_kernel(&kernel, case.most()).most(&kernel);
    let plans = case.launches.iter().map(|shape| {
        let shape = of_kernel(&kernel, shape.clone());
        Plan::within(&kernel, &shape, &most, &machine())
    });
    let Ok(plans) = plans.collect::<Result<Vec<Plan>, _>>() else {
        return Verdict::Outside;
    };
    let mut found = verify::kernel_findings(&kernel);
    for plan in &plans {
        found.extend(verify::plan_findings(&kernel, plan, None));
    }
    // A series may look at one column of tiles only, and at more than these launches.
    match in_series(&kernel, &most, &plans) {
        Ok((series, checked)) => {
            assert!(found.is_empty(), "a series of what the rules refuse");
            for (checked, plan) in checked.iter().zip(&plans) {
                assert_eq!(&*checked.arrivals, &*plan.arrivals);
            }
            Verdict::Accepted(kernel, plans, series, checked)
        }
        Err(refused) => {
            let first = found.into_iter().next();
            let refused = first.unwrap_or_else(|| refused.first().clone());
            Verdict::Rejected(kernel, plans, Box::new(refused))
        }
    }
}

fn in_series(
    kernel: &Kernel,
    most: &Shape,
    plans: &[Plan],
) -> Result<(Series, Vec<Checked<Plan>>), Diagnostics> {
    let series = verify::series(&verify::kernel(kernel.clone())?, most, &machine())?;
    let checked: Result<_, _> = plans.iter().map(|plan| series.plan(&plan.shape)).collect();
    checked.map(|checked| (series, checked))
}

/// The plans of a case's launches, each of a series of its own.
pub fn apart(kernel: &Kernel, plans: &[Plan]) -> Option<(Series, Vec<Checked<Plan>>)> {
    let kernel = verify::kernel(kernel.clone()).ok()?;
    let mut last = None;
    let mut apart = Vec::new();
    for plan in plans {
        let series = verify::series(&kernel, &plan.shape, &machine()).ok()?;
        apart.push(series.plan(&plan.shape).ok()?);
        last = Some(series);
    }
    last.map(|last| (last, apart))
}

fn options(seed: u64) -> Options {
    Options {
        step_limit: 1 << 20,
        ..Options::seed(seed)
    }
}

/// How many runs without numbers have nothing against them.
///
/// # Errors
/// The first that has.
pub fn provoke(
    kernel: &Kernel,
    plans: &[Plan],
    seeds: std::ops::Range<u64>,
) -> Result<u32, Failure> {
    let launches: Vec<Vec<&Plan>> = plans.iter().map(|plan| vec![plan]).collect();
    let mut runs = 0;
    for seed in seeds {
        interp::provoke(kernel, &launches, &options(seed).tags_only(), |_, _| {})?;
        runs += 1;
    }
    Ok(runs)
}

/// Small whole numbers, so that every sum of the cases is exact: products of -1, 0 and 1; what is added is 1 to 7.
fn fill(input: Input<'_>, values: &mut [f32]) {
    let (count, times, plus) = match input.name {
        "b" | "r" => (7, 1.0, 1.0),
        "x.scale" | "w.scale" => (4, 0.5, 0.0),
        _ => (3, 1.0, -1.0),
    };
    let of_launch = hashed(0xcbf2_9ce4_8422_2325, input.name.as_bytes());
    let of_launch = hashed(of_launch, &(input.launch as u32).to_le_bytes());
    let of_rank = hashed(of_launch, &input.rank.to_le_bytes());
    let lines = values.chunks_mut(input.columns.max(1) as usize);
    for (row, line) in (input.rows.start..).zip(lines) {
        let of_row = hashed(of_rank, &row.to_le_bytes());
        for (column, value) in (0u32..).zip(line) {
            let drawn = (hashed(of_row, &column.to_le_bytes()) >> 33) as u8;
            *value = f32::from(drawn % count) * times + plus;
        }
    }
}

fn hashed(before: u64, bytes: &[u8]) -> u64 {
    let mut hash = before;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

/// What is wrong with the numbers of a run, if anything is.
pub fn wrong_numbers(case: &Case, kernel: &Kernel, plans: &[Plan]) -> Option<String> {
    let launches: Vec<Vec<&Plan>> = plans.iter().map(|plan| vec![plan]).collect();
    let outcome = match interp::provoke(kernel, &launches, &options(1), fill) {
        Ok(outcome) => outcome,
        Err(failure) => return Some(failure.to_string()),
    };
    let wrong = |launch| {
        let promised = Promised {
            case,
            kernel,
            plan: &plans[launch],
            launch,
        };
        promised.broken(&outcome)
    };
    (0..plans.len()).find_map(wrong)
}

/// What is wrong with the numbers of a run beside those that `interp::reference` has for every output.
pub fn unlike_reference(kernel: &Kernel, plans: &[Plan]) -> Option<String> {
    let launches: Vec<Vec<&Plan>> = plans.iter().map(|plan| vec![plan]).collect();
    let outcome = interp::provoke(kernel, &launches, &options(2), fill);
    let outcome = outcome.map_err(|failure| failure.to_string());
    let compared = outcome.and_then(|outcome| {
        plans.iter().enumerate().try_for_each(|(launch, plan)| {
            let expected = interp::reference(kernel, plan, launch, fill);
            let expected = expected.map_err(|none| none.to_string())?;
            let agreed = interp::compare(&outcome, &expected);
            agreed.map(|_| ()).map_err(|off| off.to_string())
        })
    });
    compared.err()
}

/// What the outputs of a launch are by their types.
struct Promised<'a> {
    case: &'a Case,
    kernel: &'a Kernel,
    plan: &'a Plan,
    launch: usize,
}

impl Promised<'_> {
    fn broken(&self, outcome: &Outcome) -> Option<String> {
        let buffers = self.kernel.buffers.iter().enumerate();
        let said = buffers.clone().find_map(|(index, buffer)| {
            let id = TensorId(index as u16);
            let broken = match (buffer.usage.at_end, self.case.meant) {
                (AtEnd::Gathered, _) => self.gathered(outcome, id),
                (AtEnd::Computed, _) => self.gathered_result(outcome, id),
                (AtEnd::Sum { .. }, Some(meant)) => self.summed(outcome, id, meant),
                (AtEnd::Own, _) if buffer.usage.is_output() => {
                    let product = self.case.divided;
                    product.and_then(|product| self.divided(outcome, id, product))
                }
                _ => None,
            };
            broken.map(|what| format!("launch {}: {} {what}", self.launch, buffer.name))
        });
        said.or_else(|| self.unlike_statements(outcome))
    }

    /// An input as a rank has it.
    fn input(&self, name: &str, rank: u32, rows: Extent) -> Vec<f32> {
        let mut buffers = self.kernel.buffers.iter();
        let index = buffers.position(|buffer| buffer.name == name);
        let index = index.unwrap_or_else(|| panic!("there is a {name}"));
        let buffer = &self.kernel.buffers[index];
        let columns = self.plan.geometry.size(buffer.columns);
        let mut values = vec![0.0; (rows.len() * columns) as usize];
        let input = Input {
            launch: self.launch,
            rank,
            tensor: TensorId(index as u16),
            name,
            rows,
            columns,
        };
        fill(input, &mut values);
        values
    }

    /// Every rank has every rank's shard of the tensor itself.
    fn gathered(&self, outcome: &Outcome, id: TensorId) -> Option<String> {
        let buffer = &self.kernel.buffers[id.index()];
        let shards = (0..self.case.world).flat_map(|rank| {
            let rows = self.plan.geometry.shard(buffer.rows, rank);
            self.input(&buffer.name, rank, rows)
        });
        let all: Vec<f32> = shards.collect();
        let differs = |rank: &u32| {
            let output = outcome.output(self.launch, *rank, id);
            output.is_none_or(|output| output.values != all)
        };
        let rank = (0..self.case.world).find(differs)?;
        Some(format!("on rank {rank} is not what it gathers"))
    }

    /// Every rank has every rank's rows of that rank's own product.
    fn gathered_result(&self, outcome: &Outcome, id: TensorId) -> Option<String> {
        let buffer = &self.kernel.buffers[id.index()];
        let columns = self.plan.geometry.size(buffer.columns);
        let shards = (0..self.case.world).flat_map(|owner| {
            let rows = self.plan.geometry.shard(buffer.rows, owner);
            let product = self.contribution(Summed::Products, owner);
            product[(rows.start * columns) as usize..(rows.end * columns) as usize].to_vec()
        });
        let relu = self.case.gathers_relu;
        let all: Vec<f32> = shards
            .map(|value: f32| if relu { value.max(0.0) } else { value })
            .collect();
        let differs = |rank: &u32| {
            let output = outcome.output(self.launch, *rank, id);
            output.is_none_or(|output| output.values != all)
        };
        let rank = (0..self.case.world).find(differs)?;
        Some(format!("on rank {rank} is not what the ranks compute"))
    }

    /// A rank's product with every rank's shard, each in its columns.
    fn divided(&self, outcome: &Outcome, id: TensorId, product: Product) -> Option<String> {
        let shards = (0..self.case.world).flat_map(|owner| {
            let buffer = self.kernel.buffers.iter().find(|buffer| buffer.name == "w");
            let rows = buffer.map(|w| self.plan.geometry.shard(w.rows, owner));
            self.input("w", owner, rows.expect("there is a w"))
        });
        let w: Vec<f32> = shards.collect();
        let whole = |rows| Extent {
            start: 0,
            end: rows,
        };
        let Shape { m, n, .. } = self.plan.shape;
        let times = if product.minus { -1.0 } else { 1.0 };
        let right = |rank: u32| -> Vec<f32> {
            let products = self.products(&self.input("x", rank, whole(m)), &w);
            let addends = self.addends(product.addend, rank, n);
            let sums = products.iter().zip(addends);
            let sums = sums.map(|(product, addend)| product + times * addend);
            sums.map(|sum| if product.relu { sum.max(0.0) } else { sum })
                .collect()
        };
        let differs = |rank: &u32| {
            let output = outcome.output(self.launch, *rank, id);
            output.is_none_or(|output| output.values != right(*rank))
        };
        let rank = (0..self.case.world).find(differs)?;
        Some(format!(
            "on rank {rank} is not its product with every shard"
        ))
    }

    /// What a rank adds, over all rows and columns.
    fn addends(&self, addend: Addend, rank: u32, columns: u32) -> Vec<f32> {
        let m = self.plan.shape.m;
        let whole = |rows| Extent {
            start: 0,
            end: rows,
        };
        match addend {
            Addend::Nothing => vec![0.0; (m * columns) as usize],
            Addend::Bias => self.input("b", rank, whole(1)).repeat(m as usize),
            Addend::Residual => self.input("r", rank, whole(m)),
        }
    }

    /// `x · wᵀ` of all rows of both.
    fn products(&self, x: &[f32], w: &[f32]) -> Vec<f32> {
        let k = self.plan.shape.k as usize;
        let product = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| x * w).sum();
        let rows = x.chunks(k);
        rows.flat_map(|x| w.chunks(k).map(move |w| product(x, w)))
            .collect()
    }

    /// What a rank contributes to a sum, over all rows.
    fn contribution(&self, of: Summed, rank: u32) -> Vec<f32> {
        let Shape { m, n, .. } = self.plan.shape;
        let whole = |rows| Extent {
            start: 0,
            end: rows,
        };
        let x = self.input("x", rank, whole(m));
        if of == Summed::Inputs {
            return x;
        }
        let w = self.input("w", rank, whole(n));
        self.products(&x, &w)
    }

    /// Every element is the sum of what all ranks contribute, and has the addend of one rank.
    fn summed(&self, outcome: &Outcome, id: TensorId, meant: Meant) -> Option<String> {
        let m = self.plan.shape.m;
        let columns = self
            .plan
            .geometry
            .size(self.kernel.buffers[id.index()].columns);
        let nothing = || vec![0.0; (m * columns) as usize];
        let plus = |a: &[f32], b: &[f32], times: f32| -> Vec<f32> {
            assert_eq!(a.len(), b.len());
            a.iter().zip(b).map(|(a, b)| a + times * b).collect()
        };
        let total = |of: &[Vec<f32>]| of.iter().fold(nothing(), |all, more| plus(&all, more, 1.0));
        let ranks = 0..self.case.world;
        let contributions: Vec<_> = ranks
            .clone()
            .map(|rank| self.contribution(meant.of, rank))
            .collect();
        let addends: Vec<Vec<f32>> = ranks
            .map(|rank| self.addends(meant.addend, rank, columns))
            .collect();
        let contributed = total(&contributions);
        let times = if meant.minus { -1.0 } else { 1.0 };
        let mut sums: Vec<Vec<f32>> = addends
            .iter()
            .map(|addend| plus(&contributed, addend, times))
            .collect();
        // Where nothing is multiplied, what every rank adds is a contribution, and what one rank adds is its addend:
        // whichever of the two tensors that is.
        if meant.of == Summed::Inputs && meant.addend == Addend::Residual {
            let all = total(&addends);
            sums.push(plus(&contributed, &all, 1.0));
            for own in &contributions {
                sums.extend([1.0, -1.0].map(|times| plus(&all, own, times)));
            }
        }
        let holds = |at: usize, got: f32| {
            sums.iter().any(|sum| {
                let sum = sum[at];
                got == if meant.relu { sum.max(0.0) } else { sum }
            })
        };
        for rank in 0..self.case.world {
            let output = outcome.output(self.launch, rank, id)?;
            let first = (output.rows.start * columns) as usize;
            let mut elements = output.values.iter().enumerate();
            if let Some((at, got)) = elements.find(|(at, got)| !holds(first + at, **got)) {
                let (at, sum) = (first + at, contributed[first + at]);
                return Some(format!(
                    "on rank {rank} is {got} at element {at}, where contributions come to {sum}"
                ));
            }
        }
        None
    }

    /// What no type determines is what the statements say.
    fn unlike_statements(&self, outcome: &Outcome) -> Option<String> {
        // With its scales.
        let program = &*self.kernel.program;
        let shape = &self.plan.shape;
        let mut said = match interp::meaning(program, &variant(self.case), shape, self.launch, fill)
        {
            Ok(said) => said,
            Err(none) => return Some(none.to_string()),
        };
        said.tensors.retain(|tensor| {
            let kind = program.tensors[tensor.tensor.index()].usage;
            [Usage::OUT, Usage::ACCUMULATED].contains(&kind)
        });
        let compared = interp::compare(outcome, &said);
        compared
            .err()
            .map(|off| format!("unlike its statements: {off}"))
    }
}
