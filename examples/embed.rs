//! A program that owns its streams and tensors: two fused layers between steps of its own, one by one and as a graph.
//! `cargo run --release --example embed`, or by torchrun, mpirun or srun, with a process for each rank. Ranks share GPUs
//! where there are fewer; without any, the program's step is on the host, where no graph can record it.

use counterflow::cuda::{Arguments, Function, Gpu, LaunchConfig, Module};
use counterflow::driver::Stream;
use counterflow::jit::{Compiler, Source, Target};
use counterflow::prelude::bf16;
use counterflow::schedules::{AgGemmOp, GemmRsOp};
use counterflow::{Communicator, Device, Error, Tensor, UserBuffer, rendezvous::Job};

/// Rows over all ranks, and columns, which are the depth as well.
const SIZE: [usize; 2] = [512, 128];

/// The program's own kernel: negative numbers become zero, in place.
const RELU: &str = r#"extern "C" __global__ void relu(unsigned short* x, unsigned n) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        if (x[i] & 0x8000) x[i] = 0; }"#;

fn main() -> Result<(), Error> {
    let ranks = match Device::Cuda.open().and_then(|_| Gpu::count()) {
        Ok(_) if Job::from_env()?.is_some() => vec![Communicator::from_env_sharing()?],
        Ok(gpus) => Communicator::on(&[0, 1, 2, 3].map(|rank| rank % gpus), None)?,
        Err(_) if Job::from_env()?.is_some() => vec![Communicator::emulated_from_env()?],
        Err(_) => Communicator::emulated(4)?,
    };
    Communicator::each(&ranks, run)?;
    println!("{}: every number is right", ranks[0].gpu().name());
    Ok(())
}

fn run(rank: &Communicator) -> Result<(), Error> {
    let [m, side] = SIZE;
    rank.reserve(64 << 20)?; // `workspace()` of a builder says what its op needs
    let gather = rank.op_of::<AgGemmOp>().up_to(m, side, side).build()?;
    let scatter = rank.op_of::<GemmRsOp>().up_to(m, side, side).build()?;
    let on_gpu = !rank.gpu().is_emulated();
    let relu = on_gpu.then(|| relu(rank)).transpose()?;
    let x: UserBuffer<bf16> = rank.allocate("x", [m, side])?;
    let mut z: UserBuffer<bf16> = rank.allocate("z", [m / rank.world() as usize, side])?;
    let (w, mut y) = (rank.zeros([side, side])?, rank.zeros([m, side])?);
    w.write(&values(0..side, |row, column| f32::from(row == column)))?;
    x.write(&values(0..m, number))?;
    let stream = rank.gpu().stream()?;
    apply(relu.as_ref(), &stream, &y)?; // where ranks share a GPU, a stream's first work comes before all launches
    rank.synchronize().and_then(|()| rank.barrier())?;

    // y = relu(all_gather(x) · wᵀ) and z = reduce_scatter(y · wᵀ), in the order of the program's own stream.
    gather.on(&stream).x(&x).w(&w).y(&mut y).launch()?;
    apply(relu.as_ref(), &stream, &y)?;
    scatter.on(&stream).x(&y).w(&w).y(&mut z).launch()?.wait()?;
    right(rank, &z, 0.0)?;
    let graph = rank.capture(|s| {
        gather.on(s).x(&x).w(&w).y(&mut y).launch()?;
        // SAFETY: the graph keeps what launches use; `relu` and `y` outlive it.
        let on = relu.is_some().then(|| unsafe { s.stream() });
        on.map_or(Ok(()), |on| apply(relu.as_ref(), on, &y))?;
        scatter.on(s).x(&y).w(&w).y(&mut z).launch().map(drop)
    })?;
    rank.barrier()?; // every rank has its graph before one of them waits for another's replay
    (0..10).try_for_each(|_| graph.launch(&stream)?.wait())?;
    right(rank, &z, if relu.is_some() { 0.0 } else { f32::MIN })
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
    let mut arguments = Arguments::new();
    arguments.address(on.address());
    arguments.number(on.len() as u32);
    // SAFETY: the kernel stays inside the tensor, which the program keeps until it has waited for the stream.
    unsafe { relu.launch(stream.cuda()?, LaunchConfig::of(64, 256), &arguments) }
}

/// This rank's rows of the sum of what every rank has, which is `least` at least.
fn right(rank: &Communicator, z: &UserBuffer<bf16>, least: f32) -> Result<(), Error> {
    let (rows, me) = (z.shape()[0], rank.rank() as usize);
    let summed = |row, column| number(row, column).max(least) * rank.world() as f32;
    let wanted = values(rows * me..rows * (me + 1), summed);
    z.read().map(|z| assert!(z == wanted, "rank {me}"))
}

fn number(row: usize, column: usize) -> f32 {
    ((row * 31 + column * 7) % 61) as f32 - 30.0
}

fn values(rows: std::ops::Range<usize>, of: impl Fn(usize, usize) -> f32) -> Vec<bf16> {
    let (first, count) = (rows.start, rows.len() * SIZE[1]);
    let value = |at| bf16::from_f32(of(first + at / SIZE[1], at % SIZE[1]));
    (0..count).map(value).collect()
}
