//! A checked schedule with its plans, and where it runs: one body of every test for the emulator and for GPUs.

use crate::fine;
use crate::gpus::{World, dawdle};
use crate::halves;
use crate::memory::{self, Heap, Memory, Raw, Words};
use crate::parallel::in_parallel;
use counterflow::codegen::diag::Diagnostics;
use counterflow::codegen::interp::{
    self, Disagreement, Expected, Input, Numbers, Options, Outcome, Output, Policy,
};
use counterflow::codegen::kernel::{OpKind, visit};
use counterflow::codegen::lower::lower;
use counterflow::codegen::sm90;
use counterflow::codegen::value::{Binary, Body, Unary, Value};
use counterflow::codegen::verify;
use counterflow::codegen::warp::Pipeline;
use counterflow::jit::{Compiler, Probes};
use counterflow::launch::Loaded;
use counterflow::{
    Checked, Communicator, Dtype, Error, Kernel, Layout, Machine, Plan, Program, Series, Shape,
    Variant,
};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};

/// A schedule, checked, and its plans.
pub struct Case {
    pub kernel: Checked<Kernel>,
    pub pipeline: Checked<Pipeline>,
    pub series: Series,
    pub plans: Vec<Checked<Plan>>,
}

/// Where a case runs.
pub enum Device<'a> {
    Cpu,
    /// With kernels that the compiler makes, and ranks that come up to so many microseconds late.
    Gpus {
        world: &'a World,
        compiler: Compiler,
        late: u64,
    },
}

/// Fills a launch's inputs, one after another.
pub type Inputs = dyn FnMut(Input<'_>, &mut [f32]);

/// What inputs hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Between -1 and 1, compared within what rounding allows.
    Uniform(u64),
    /// So that every sum is exact. Compared bit for bit, unless a function of the schedule rounds: see [`Case::is_exact`].
    Integers(u64),
    /// Between -1 and 1, scales up to 1.25: the same for an element, or for a block, in whichever shard and on whichever rank it
    /// is, so that what is gathered is what a rank has by itself. Of that many blocks along K.
    Everywhere(u64, u32),
}

impl Fill {
    pub fn inputs(self) -> Box<Inputs> {
        match self {
            Fill::Uniform(seed) => Box::new(interp::uniform(seed)),
            Fill::Integers(seed) => Box::new(interp::integers(seed)),
            Fill::Everywhere(seed, blocks) => Box::new(everywhere(seed, blocks)),
        }
    }

    fn seed(self) -> u64 {
        match self {
            Fill::Uniform(seed) | Fill::Integers(seed) | Fill::Everywhere(seed, _) => seed,
        }
    }
}

fn everywhere(seed: u64, blocks: u32) -> impl FnMut(Input<'_>, &mut [f32]) {
    move |input, values| {
        let scale = input.name.ends_with(".scale");
        let name = (input.name.bytes()).fold(seed, |hash, byte| hash * 31 + u64::from(byte));
        let lines = values.chunks_mut(input.columns as usize);
        for (row, line) in (input.rows.start..).zip(lines) {
            for (column, value) in (0..).zip(line) {
                // Where scales of 1×128 travel, blocks are columns; elsewhere they are rows.
                let (row, column) = match scale && input.columns != blocks {
                    true => (column, row),
                    false => (row, column),
                };
                let at = u64::from(row) << 32 | u64::from(column);
                let drawn = Numbers::new(name ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).draw();
                let unit = (drawn >> 40) as f32 / (1u32 << 24) as f32;
                *value = if scale { 0.25 + unit } else { 2.0 * unit - 1.0 };
            }
        }
    }
}

impl Device<'_> {
    pub fn gpus(world: &World, probes: Probes, late: u64) -> Device<'_> {
        Device::Gpus {
            world,
            compiler: fine(Compiler::find()).with_probes(probes),
            late,
        }
    }

    /// For how many ranks a GPU's SMs are.
    fn sharing(&self) -> u32 {
        match self {
            Device::Cpu => 1,
            Device::Gpus { world, .. } => world.sharing,
        }
    }
}

/// For ranks of which so many share a GPU; an SM is left to what copies within it.
pub fn machine(kernel: &Kernel, sharing: u32) -> Machine {
    let machine = Machine::h200();
    let copied = sharing > 1 && kernel.roles.iter().any(|role| role.kind.sequential());
    Machine {
        sms: (machine.sms - u32::from(copied)) / sharing,
        ..machine
    }
}

/// What kernels of a schedule differ in.
pub type Kind = (Dtype, (u32, u32), Layout);

/// The same for a schedule whose items may have two products.
pub fn variant_of(program: &Program, world: u32, (dtype, tile, layout): Kind) -> Variant {
    if program.tunables.iter().any(|it| it.name == "tiles") {
        return variant(world, (dtype, halves::tile(program, tile), layout));
    }
    // What only moves data has none.
    Variant::new(world).dtype(dtype).layout(layout)
}

pub fn variant(world: u32, (dtype, tile, layout): Kind) -> Variant {
    let variant = Variant::new(world).dtype(dtype).layout(layout);
    variant.set("tiles", tile)
}

pub fn checked(program: &Program, variant: &Variant) -> (Checked<Kernel>, Checked<Pipeline>) {
    let name = &program.name;
    let kernel = lower(program, variant)
        .and_then(verify::kernel)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let pipeline = sm90::build(&kernel)
        .and_then(verify::pipeline)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    (kernel, pipeline)
}

/// Its launches, of ranks of which so many share a GPU.
pub fn plans(
    kernel: &Checked<Kernel>,
    shapes: &[Shape],
    sharing: u32,
) -> Result<(Series, Vec<Checked<Plan>>), Diagnostics> {
    let machine = machine(kernel, sharing);
    let most = shapes.iter().cloned().reduce(|a, b| a.covering(&b));
    let series = verify::series(kernel, &most.expect("a shape"), &machine)?;
    let plans = shapes.iter().map(|shape| series.plan(shape));
    let plans = plans.collect::<Result<_, _>>()?;
    Ok((series, plans))
}

impl Case {
    pub fn new(program: &Program, variant: &Variant, shapes: &[Shape], sharing: u32) -> Case {
        Case::of(checked(program, variant), shapes, sharing)
    }

    /// Of a kernel that is checked already.
    pub fn of(
        (kernel, pipeline): (Checked<Kernel>, Checked<Pipeline>),
        shapes: &[Shape],
        sharing: u32,
    ) -> Case {
        let (series, plans) = plans(&kernel, shapes, sharing)
            .unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
        Case {
            plans,
            pipeline,
            series,
            kernel,
        }
    }

    /// Every output of every launch, one after another, each with inputs of its own.
    pub fn run(&self, device: &Device<'_>, fill: Fill) -> Outcome {
        match device {
            Device::Cpu => {
                let plans: Vec<_> = self.plans.iter().collect();
                interp::run(
                    &self.series,
                    &plans,
                    &Options::seed(fill.seed()),
                    fill.inputs(),
                )
                .unwrap_or_else(|failure| panic!("{}: {failure}", self.kernel.name))
            }
            Device::Gpus {
                world,
                compiler,
                late,
            } => fine(self.attempt(&world.ranks, compiler, fill, *late)),
        }
    }

    /// The same on GPUs, where it may be refused.
    pub fn attempt(
        &self,
        ranks: &[Communicator],
        compiler: &Compiler,
        fill: Fill,
        late: u64,
    ) -> Result<Outcome, Error> {
        let each = |rank: &Communicator| self.on_rank(rank, Some(compiler), fill, late);
        Ok(outcome(Communicator::each(ranks, each)?))
    }

    /// The outputs of one rank. Emulated ranks need no compiler.
    pub fn on_rank(
        &self,
        rank: &Communicator,
        compiler: Option<&Compiler>,
        fill: Fill,
        late: u64,
    ) -> Result<Vec<Output>, Error> {
        let words = in_parallel(self.plans.len(), |launch| {
            self.words(rank.rank(), launch, fill)
        });
        let left = self.launches(rank, compiler, &words, fill, late)?;
        Ok(self.outputs(rank.rank(), &left))
    }

    /// What each rank's memory holds before each launch.
    pub fn filled(&self, fill: Fill) -> Vec<Vec<Words>> {
        let (ranks, launches) = (self.kernel.variant.world as usize, self.plans.len());
        let words = in_parallel(ranks * launches, |index| {
            self.words((index / launches) as u32, index % launches, fill)
        });
        let mut words = words.into_iter();
        let of_rank = |_| words.by_ref().take(launches).collect();
        (0..ranks).map(of_rank).collect()
    }

    /// What is left of what was filled so, on each rank after each launch. Only this needs the GPUs.
    pub fn launched(
        &self,
        world: &World,
        compiler: &Compiler,
        (filled, fill): (&[Vec<Words>], Fill),
        late: u64,
    ) -> Vec<Vec<Raw>> {
        let on_rank = |rank: &Communicator| {
            let words = &filled[rank.rank() as usize];
            self.launches(rank, Some(compiler), words, fill, late)
        };
        fine(Communicator::each(&world.ranks, on_rank))
    }

    /// That as numbers.
    pub fn outcome(&self, left: &[Vec<Raw>]) -> Outcome {
        outcome(in_parallel(left.len(), |rank| {
            self.outputs(rank as u32, &left[rank])
        }))
    }

    fn words(&self, rank: u32, launch: usize, fill: Fill) -> Words {
        Words::new(&self.kernel, &self.plans[launch], rank, launch, fill)
    }

    fn launches(
        &self,
        rank: &Communicator,
        compiler: Option<&Compiler>,
        words: &[Words],
        fill: Fill,
        late: u64,
    ) -> Result<Vec<Raw>, Error> {
        let plans: Vec<_> = self.plans.iter().collect();
        let heap = Heap::new(rank, &self.kernel, &plans)?;
        let loaded =
            Loaded::load(rank, compiler, &self.pipeline, &self.series)?.pdl_after_foreign_kernels();
        let mut numbers = Numbers::new(fill.seed() ^ u64::from(rank.rank()) << 32);
        let mut left = Vec::new();
        for (plan, words) in plans.iter().zip(words) {
            let memory = Memory::new(rank, &heap, words)?;
            // Nobody's kernel runs: nothing that a launch before left can pass for a result of this one.
            loaded.fill_scratch(rank, 0xff)?;
            memory.before()?;
            rank.synchronize()?;
            rank.barrier()?;
            dawdle(&mut numbers, late);
            loaded.launch(rank, plan, &memory.tensors())?;
            memory.after()?;
            rank.synchronize()?;
            rank.barrier()?;
            left.push(memory.raw()?);
        }
        Ok(left)
    }

    fn outputs(&self, rank: u32, left: &[Raw]) -> Vec<Output> {
        let of_launch = |(launch, raw): (usize, &Raw)| {
            let plan: &Plan = &self.plans[launch];
            memory::outputs(&self.kernel, plan, rank, launch, raw)
        };
        left.iter().enumerate().flat_map(of_launch).collect()
    }

    /// Whether a product multiplies what another one made. Its sums are no small integers any more, whatever the inputs.
    fn multiplies_products(&self) -> bool {
        let (mut stored, mut multiplied) = (HashSet::new(), HashSet::new());
        for role in &self.kernel.roles {
            visit(&role.body, &mut |op| match &op.kind {
                OpKind::Store { dst, .. } => stored.extend([dst.buffer]),
                OpKind::Dot { a, b, .. } => multiplied.extend([a.buffer, b.buffer]),
                _ => {}
            });
        }
        !stored.is_disjoint(&multiplied)
    }

    /// Whether this input gives a result that has one legal value, bit for bit: sums of integers do, but not SiLU of them, nor sums
    /// of rounded ones.
    pub fn is_exact(&self, fill: Fill) -> bool {
        let rounded = self.kernel.quantised_reduction().is_some();
        let integers = matches!(fill, Fill::Integers(_)) && !self.multiplies_products();
        integers && !rounded && !self.kernel.values.iter().any(rounds)
    }

    /// Compares an outcome with its reference; the largest error, by what rounding allows.
    pub fn agrees(
        &self,
        fill: Fill,
        outcome: &Outcome,
        expected: &Expected,
    ) -> Result<f64, Box<Disagreement>> {
        let compared = if self.is_exact(fill) {
            interp::compare_exactly(outcome, expected)
        } else {
            interp::compare(outcome, expected)
        };
        compared.map(|agreement| agreement.max_of_bound)
    }

    /// Compares every element of every output of a launch; the largest error, by what rounding allows.
    pub fn compare(&self, outcome: &Outcome, launch: usize, fill: Fill) -> f64 {
        self.compare_with(&self.reference(launch, fill), outcome, launch, fill)
    }

    /// The same for one rank's outputs.
    pub fn compare_own(&self, outcome: &Outcome, rank: u32, launch: usize, fill: Fill) -> f64 {
        let mut own = self.reference(launch, fill);
        own.tensors.retain(|tensor| tensor.rank == rank);
        self.compare_with(&own, outcome, launch, fill)
    }

    fn reference(&self, launch: usize, fill: Fill) -> Expected {
        interp::reference(&self.kernel, &self.plans[launch], launch, fill.inputs())
            .unwrap_or_else(|error| panic!("{}: {error}", self.kernel.name))
    }

    fn compare_with(
        &self,
        expected: &Expected,
        outcome: &Outcome,
        launch: usize,
        fill: Fill,
    ) -> f64 {
        let shape = &self.plans[launch].shape;
        self.agrees(fill, outcome, expected)
            .unwrap_or_else(|off| panic!("{} {shape} {fill:?}: {off}", self.kernel.name))
    }
}

/// Whether a function after the product has more than one legal value.
fn rounds(value: &Value) -> bool {
    use Unary::{Erf, Exp, Gelu, GeluTanh, Ln, Sigmoid, Silu, Sqrt, Tanh};
    let mut found = false;
    value.visit(&mut |part| {
        found |= match part {
            Value::Unary(function, _) => matches!(
                function,
                Exp | Ln | Sqrt | Tanh | Erf | Sigmoid | Gelu | GeluTanh | Silu
            ),
            Value::Binary(function, ..) => matches!(function, Binary::Div),
            Value::Call(function, _) => match &function.body {
                Body::Value(body) => rounds(body),
                Body::Foreign(_) => true,
            },
            Value::Acc(_)
            | Value::Arg(_)
            | Value::Const(_)
            | Value::Select(..)
            | Value::Cast(..) => false,
        };
    });
    found
}

/// What GPUs left, of all ranks.
fn outcome(outputs: Vec<Vec<Output>>) -> Outcome {
    Outcome {
        outputs: outputs.into_iter().flatten().collect(),
        steps: 0,
        policy: Policy::of_seed(0, 1, 1),
    }
}

/// References that kernels of one product have in common, whatever their tiles: worked out once.
#[derive(Default)]
pub struct References(Mutex<HashMap<String, Arc<OnceLock<Expected>>>>);

impl References {
    /// [`Case::compare`].
    pub fn compare(&self, case: &Case, outcome: &Outcome, launch: usize, fill: Fill) -> f64 {
        let (kernel, shape) = (&case.kernel, &case.plans[launch].shape);
        let variant = &kernel.variant;
        let what = (&kernel.name, &kernel.buffers, &kernel.values);
        let how = (variant.world, variant.layout, &variant.encodings);
        let key = format!("{what:?} {how:?} {shape:?} {launch} {fill:?}");
        let known = Arc::clone(self.0.lock().expect("no panic").entry(key).or_default());
        let expected = known.get_or_init(|| case.reference(launch, fill));
        case.compare_with(expected, outcome, launch, fill)
    }
}

/// Cases of a device have plans for as many SMs as a rank of it has.
pub fn on(device: &Device<'_>, program: &Program, variant: &Variant, shapes: &[Shape]) -> Case {
    Case::new(program, variant, shapes, device.sharing())
}
