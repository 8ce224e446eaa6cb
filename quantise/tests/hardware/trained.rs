//! Steps of delayed scaling whose amaxes a product writes: each step's results are quantised by what earlier steps saw, and
//! measured in the same launch.

use crate::{emulated, fine, on_gpu};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::value::Value;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::{sm90, verify};
use counterflow_emitter::{self as cuda, CudaSource};
use counterflow_emulator::Numbers;
use counterflow_quantise::{
    Delayed, Fp8, Granularity, History, Matrix, Quantiser, Recipe, ScaleRule, Scaling, twin,
};
use counterflow_runtime::op::{Launch, Op};
use counterflow_runtime::{Communicator, Error, Pending, QuantTensor, Tensor};
use float8::{F8E4M3, F8E5M2};
use half::bf16;

/// Rows and columns of the product, and its depth: no tile is full.
const SHAPE: [usize; 2] = [301, 208];
const K: usize = 144;

/// y = f(x · wᵀ + b), for a function that makes something of zero: what is beyond the end must not be measured.
fn product(y: Dtype, tile: (u32, u32)) -> Program {
    let mut s = ScheduleBuilder::new("trained");
    let (x, w) = (s.local("x", Dtype::Bf16), s.local("w", Dtype::Bf16));
    let (b, y) = (s.vector("b", Dtype::F32), s.out("y", y));
    let tiles = s.tiles("tiles", y, tile);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let b = s.load(b);
            let sum: Value = product.bias(b);
            s.store(y.at(t), sum + Value::from(-3.0));
        });
    });
    s.finish()
}

const TILES: [(u32, u32); 4] = [(128, 128), (256, 128), (128, 256), (80, 128)];
const TYPES: [Fp8; 2] = [Fp8::E4M3, Fp8::E5M2];

fn variant(to: Fp8) -> Variant {
    Variant::new(1).output(to.dtype()).amax(true)
}

/// What GPUs run of it.
pub fn kernels() -> Vec<CudaSource> {
    let emitted = |(program, variant): (Program, Variant)| {
        let kernel = lower(&program, &variant).and_then(verify::kernel);
        let pipeline = kernel.and_then(|kernel| sm90::build(&kernel));
        let checked = pipeline.and_then(verify::pipeline);
        cuda::emit(&checked.unwrap_or_else(|error| panic!("{error}")))
    };
    let measured = TILES
        .into_iter()
        .flat_map(|tile| TYPES.map(|to| (product(Dtype::Bf16, tile), variant(to))));
    let plain = TILES.map(|tile| (product(Dtype::F32, tile), Variant::new(1)));
    measured.chain(plain).map(emitted).collect()
}

/// The results of a product, of either type.
pub enum Codes {
    E4M3(Tensor<F8E4M3>),
    E5M2(Tensor<F8E5M2>),
}

impl Codes {
    pub fn new(rank: &Communicator, to: Fp8, shape: [usize; 2]) -> Result<Codes, Error> {
        Ok(match to {
            Fp8::E4M3 => Codes::E4M3(rank.zeros(shape)?),
            Fp8::E5M2 => Codes::E5M2(rank.zeros(shape)?),
        })
    }

    /// As an output of a launch that is given a scale and measures.
    pub fn measured(
        &self,
        launch: Launch<'_>,
        (scale, amax): (&Tensor<f32>, &Tensor<f32>),
    ) -> Result<Pending, Error> {
        let (scale, amax) = (scale.clone(), amax.clone());
        match self {
            Codes::E4M3(codes) => {
                let mut y = QuantTensor::output(codes.clone(), scale)?.with_amax(amax)?;
                launch.tensor("y", &mut y).launch()
            }
            Codes::E5M2(codes) => {
                let mut y = QuantTensor::output(codes.clone(), scale)?.with_amax(amax)?;
                launch.tensor("y", &mut y).launch()
            }
        }
    }

    /// As an output of a launch that makes its scales of 1×128.
    pub fn made(&self, launch: Launch<'_>, scales: &Tensor<f32>) -> Result<Pending, Error> {
        let (by, scales) = (Granularity::BLOCK_1X128, scales.clone());
        match self {
            Codes::E4M3(codes) => {
                let mut y = QuantTensor::new(codes.clone(), scales, by)?;
                launch.tensor("y", &mut y).launch()
            }
            Codes::E5M2(codes) => {
                let mut y = QuantTensor::new(codes.clone(), scales, by)?;
                launch.tensor("y", &mut y).launch()
            }
        }
    }

    pub fn read(&self) -> Result<Vec<u8>, Error> {
        Ok(match self {
            Codes::E4M3(codes) => codes.read()?.iter().map(F8E4M3::to_bits).collect(),
            Codes::E5M2(codes) => codes.read()?.iter().map(F8E5M2::to_bits).collect(),
        })
    }
}

/// A launch.
struct Step<'a> {
    x: &'a Tensor<bf16>,
    w: &'a Tensor<bf16>,
    b: &'a Tensor<f32>,
}

impl Step<'_> {
    /// Into codes, by a scale, with the amax of them.
    fn measured(
        &self,
        (rank, op): (&Communicator, &Op),
        codes: &mut Codes,
        (scale, amax): (&Tensor<f32>, &mut Tensor<f32>),
    ) -> Result<(), Error> {
        let launch = op.on(rank).tensor("x", self.x).tensor("w", self.w);
        let launch = launch.tensor("b", self.b);
        codes.measured(launch, (scale, amax)).map(drop)
    }

    /// Into f32.
    fn plain(&self, (rank, op): (&Communicator, &Op)) -> Result<Vec<f32>, Error> {
        let mut y = rank.zeros::<f32>(SHAPE)?;
        let launch = op.on(rank).tensor("x", self.x).tensor("w", self.w);
        let launch = launch.tensor("b", self.b).tensor("y", &mut y);
        launch.launch()?.wait()?;
        y.read()
    }
}

/// The numbers of a step: of another size in each.
fn numbers(step: usize, count: usize) -> Vec<bf16> {
    let mut numbers = Numbers::new(step as u64 + 1);
    let size = [1.0, 0.01, 30.0, 0.0, 4.0][step % 5];
    let number = |_| bf16::from_f32((numbers.below(2001) as f32 / 1000.0 - 1.0) * size);
    (0..count).map(number).collect()
}

fn trained(rank: &Communicator) -> Result<(), Error> {
    let mut launches = 0;
    for (at, tile) in TILES.into_iter().enumerate() {
        let to = TYPES[at % 2];
        let [m, n] = SHAPE;
        let [narrow, wide] = [product(Dtype::Bf16, tile), product(Dtype::F32, tile)];
        let op = rank.op(&narrow).output(to.dtype()).amax().up_to(m, n, K);
        let (op, plain) = (op.build()?, rank.op(&wide).up_to(m, n, K).build()?);
        let recipe = Recipe::new(
            ScaleRule::transformer_engine(to),
            Scaling::Delayed,
            Dtype::Bf16,
        );
        let quantiser = Quantiser::build(rank, recipe, [1, 16])?;
        let delayed = Delayed {
            length: [1, 3][at / 2],
            ..Delayed::transformer_engine(to)
        };
        let (mut history, mut wanted) = (quantiser.history(delayed)?, History::new(delayed));
        let (x, w) = (rank.zeros::<bf16>([m, K])?, rank.zeros::<bf16>([n, K])?);
        let b = rank.zeros::<f32>([n])?;
        w.write(&numbers(0, n * K))?;
        b.write(
            &numbers(9, n)
                .into_iter()
                .map(bf16::to_f32)
                .collect::<Vec<_>>(),
        )?;
        let step = Step {
            x: &x,
            w: &w,
            b: &b,
        };
        let mut codes = Codes::new(rank, to, SHAPE)?;
        for number in 0..6 {
            let what = format!("{to:?}, tiles of {tile:?}, step {number}");
            x.write(&numbers(number, m * K))?;
            let (scale, mut amax) = (history.multiplier(), history.amax());
            step.measured((rank, &op), &mut codes, (&scale, &mut amax))?;
            let amax = amax.read()?;
            quantiser.next_step(rank, &mut history)?;
            let y = step.plain((rank, &plain))?;
            let y = Matrix::new(&y, SHAPE, Dtype::F32);
            let by = wanted.scale().multiplier;
            assert!(codes.read()? == twin::cast(&y, to, by), "{what}: by {by}");
            let of_twin = twin::amax(&y, &ScaleRule::transformer_engine(to));
            assert_eq!(amax, [of_twin], "{what}");
            wanted.saw(of_twin);
            wanted.update();
            assert_eq!(history.read()?, wanted, "{what}");
            assert_eq!(history.stored().read()?, [wanted.scale().stored], "{what}");
            launches += 1;
        }
        // An amax does not hide NaN. The history has it, and goes on with the scale of what else it has.
        let mut broken = numbers(0, m * K);
        broken[(m - 1) * K + 5] = bf16::NAN;
        x.write(&broken)?;
        let (scale, mut amax) = (history.multiplier(), history.amax());
        step.measured((rank, &op), &mut codes, (&scale, &mut amax))?;
        assert!(amax.read()?[0].is_nan());
        quantiser.next_step(rank, &mut history)?;
        let after = history.read()?;
        assert!(after.amaxes().last().is_some_and(|amax| amax.is_nan()) || delayed.length == 1);
        assert!(after.scale().multiplier.is_finite(), "{:?}", after.scale());
        launches += 1;
    }
    println!(
        "  {launches} launches right: products that are quantised by delayed scaling and measured, {}",
        rank.gpu().name()
    );
    Ok(())
}

#[test]
fn products_on_a_gpu_are_quantised_and_measured_as_by_the_twin() {
    let Some(rank) = on_gpu() else { return };
    fine(trained(&rank));
}

#[test]
fn products_on_an_emulated_rank_are_quantised_and_measured_as_by_the_twin() {
    fine(trained(&emulated()));
}
