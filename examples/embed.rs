//! A program that owns its streams and tensors: two fused layers between steps of its own, one by one and as a graph.
//! `cargo run --release --example embed`. Without four GPUs the ranks are emulated; these take its steps on the host,
//! and record no graphs.

use counterflow::cuda::{Arguments, Function, LaunchConfig, Module};
use counterflow::driver::Stream;
use counterflow::jit::{Compiler, Source, Target};
use counterflow::prelude::bf16;
use counterflow::schedules::{AgGemmOp, GemmRsOp};
use counterflow::{Communicator, Device, Error, Tensor, UserBuffer};
use std::ops::Range;

/// Rows over all ranks, and columns, which are the depth as well.
const SIZE: [usize; 2] = [512, 128];

/// The program's own kernel: negative numbers become zero, in place.
const RELU: &str = r#"extern "C" __global__ void relu(unsigned short* x, unsigned n) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        if (x[i] & 0x8000) x[i] = 0;
}"#;

fn main() -> Result<(), Error> {
    let gpus = Device::Cuda.open().and_then(|_| Communicator::local(4));
    let ranks = gpus.or_else(|_| Communicator::emulated(4))?;
    Communicator::each(&ranks, run)?;
    println!("{}: every number is right", ranks[0].gpu().name());
    Ok(())
}

fn run(rank: &Communicator) -> Result<(), Error> {
    let [m, side] = SIZE;
    rank.reserve(64 << 20)?; // `workspace()` of a builder says what its op needs
    let gather = rank.op_of::<AgGemmOp>().up_to(m, side, side).build()?;
    let scatter = rank.op_of::<GemmRsOp>().up_to(m, side, side).build()?;
    let emulated = rank.gpu().is_emulated();
    let relu = (!emulated).then(|| relu(rank)).transpose()?;

    let chunk = m / rank.world() as usize;
    let x: UserBuffer<bf16> = rank.allocate("x", [m, side])?;
    let mut z: UserBuffer<bf16> = rank.allocate("z", [chunk, side])?;
    let (w, mut y) = (rank.zeros([side, side])?, rank.zeros([m, side])?);
    let unit = |row, column| f32::from(u8::from(row == column));
    w.write(&values(0..side, unit))?;
    x.write(&values(0..m, number))?;
    rank.synchronize()?;
    rank.barrier()?;

    // y = relu(all_gather(x) · wᵀ) and z = reduce_scatter(y · wᵀ), in the order of the program's own stream.
    let stream = rank.gpu().stream()?;
    gather.on(&stream).x(&x).w(&w).y(&mut y).launch()?;
    apply(relu.as_ref(), &stream, &y)?;
    scatter.on(&stream).x(&y).w(&w).y(&mut z).launch()?.wait()?;
    let first = rank.rank() as usize * chunk;
    let summed = |row, column| number(row, column).max(0.0) * rank.world() as f32;
    let wanted = values(first..first + chunk, summed);
    assert!(z.read()? == wanted, "rank {}", rank.rank());

    if relu.is_some() {
        let graph = rank.capture(|s| {
            gather.on(s).x(&x).w(&w).y(&mut y).launch()?;
            // SAFETY: launches are kept by the graph; `relu` and `y` outlive it.
            apply(relu.as_ref(), unsafe { s.stream() }, &y)?;
            scatter.on(s).x(&y).w(&w).y(&mut z).launch().map(drop)
        })?;
        (0..9).try_for_each(|_| graph.launch(&stream).map(drop))?;
        graph.launch(&stream)?.wait()?;
        assert!(z.read()? == wanted, "rank {}, by a graph", rank.rank());
    }
    rank.barrier()
}

fn relu(rank: &Communicator) -> Result<Function, Error> {
    let relu = Compiler::find()?.compile(&Source::new("relu", RELU), Target::Sm90a)?;
    Module::load(rank.gpu().cuda()?, &relu)?.function("relu", 0)
}

/// The program's own step.
fn apply(relu: Option<&Function>, stream: &Stream, on: &Tensor<bf16>) -> Result<(), Error> {
    let Some(relu) = relu else {
        let positive = |value: bf16| value.max(bf16::ZERO);
        return on.write(&on.read()?.into_iter().map(positive).collect::<Vec<_>>());
    };
    let grid = LaunchConfig::of(64, 256);
    let mut arguments = Arguments::new();
    arguments.address(on.address());
    arguments.number(on.len() as u32);
    // SAFETY: the kernel stays inside the tensor, which the program keeps until it has waited for the stream.
    unsafe { relu.launch(stream.cuda()?, grid, &arguments) }
}

fn number(row: usize, column: usize) -> f32 {
    ((row * 31 + column * 7) % 61) as f32 - 30.0
}

fn values(rows: Range<usize>, of: impl Fn(usize, usize) -> f32) -> Vec<bf16> {
    let (first, count) = (rows.start, rows.len() * SIZE[1]);
    let value = |at| bf16::from_f32(of(first + at / SIZE[1], at % SIZE[1]));
    (0..count).map(value).collect()
}
