//! Two layers over emulated ranks, with the numbers of candle's own products. With the feature `cuda` the same on GPUs.

use candle_core::{DType, Device, Tensor};
use counterflow::Communicator;
use counterflow_candle::{ColumnParallel, RowParallel};
use std::sync::Arc;

type Anything = Box<dyn std::error::Error + Send + Sync>;

/// Hidden columns over all ranks, and columns of the model.
const HIDDEN: usize = 96;
const SIDE: usize = 64;
/// The most rows over all ranks.
const MOST: usize = 40;

/// Small integers, mostly zeros: every sum is exact in bf16.
fn numbers(rows: usize, columns: usize, seed: usize) -> candle_core::Result<Tensor> {
    let number = |at: usize| match (at * 7919 + seed * 104_729) % 13 {
        0 => 1.0f32,
        5 => -1.0,
        _ => 0.0,
    };
    let all: Vec<f32> = (0..rows * columns).map(number).collect();
    Tensor::from_vec(all, (rows, columns), &Device::Cpu)
}

/// The layers as one process computes them.
fn alone(x: &Tensor, up: &Tensor, down: &Tensor) -> candle_core::Result<Tensor> {
    x.matmul(&up.t()?)?.relu()?.matmul(&down.t()?)
}

fn of_rank(rank: &Arc<Communicator>, device: &Device) -> Result<(), Anything> {
    let (me, world) = (rank.rank() as usize, rank.world() as usize);
    let part = HIDDEN / world;
    rank.reserve(8 << 20)?;
    let first = ColumnParallel::new(rank, MOST, part, SIDE)?;
    let second = RowParallel::new(rank, MOST, SIDE, part)?;
    let [up, down] = [numbers(HIDDEN, SIDE, 1)?, numbers(SIDE, HIDDEN, 2)?];
    let here = |all: Tensor| all.to_dtype(DType::BF16)?.contiguous()?.to_device(device);
    let own_up = here(up.narrow(0, me * part, part)?)?;
    let own_down = here(down.narrow(1, me * part, part)?)?;
    for (round, rows) in [MOST, 7, world, MOST, 1 + world].into_iter().enumerate() {
        let x = numbers(rows, SIDE, 3 + round)?;
        let shard = rank.shard(rank.rank(), rows);
        let own = here(x.narrow(0, shard.start, shard.len())?)?;
        let hidden = first.forward(&own, &own_up, rows)?.relu()?;
        assert_eq!(hidden.dims(), [rows, part]);
        let z = second.forward(&hidden, &own_down, rows)?;
        let wanted = alone(&x, &up, &down)?;
        let largest = wanted.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(
            largest > 1.0 && largest < 256.0,
            "{largest}: a test of exact sums"
        );
        let wanted = wanted.narrow(0, shard.start, shard.len())?;
        let z = z.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        assert_eq!(
            z.to_vec2::<f32>()?,
            wanted.to_vec2::<f32>()?,
            "rank {me}, {rows} rows"
        );
    }
    // What does not fit is refused before anything is launched.
    let wrong = here(numbers(3, SIDE, 9)?)?;
    let shard = rank.shard(rank.rank(), MOST).len();
    let told = first
        .forward(&wrong, &own_up, MOST)
        .expect_err("another shard");
    assert!(
        told.to_string()
            .contains(&format!("give x {shard} x {SIDE}")),
        "{told}"
    );
    let told = first
        .forward(&own_up.t()?, &own_up, MOST)
        .expect_err("a transpose");
    assert!(told.to_string().contains("x is"), "{told}");
    Ok(())
}

fn on(ranks: Vec<Communicator>, device: impl Fn(usize) -> Device + Sync) {
    let ranks: Vec<_> = ranks.into_iter().map(Arc::new).collect();
    std::thread::scope(|scope| {
        let device = &device;
        let run = |rank: &Arc<Communicator>| {
            let done = of_rank(rank, &device(rank.rank() as usize));
            done.inspect_err(|error| rank.abort(error))
        };
        let threads: Vec<_> = ranks
            .iter()
            .map(|rank| scope.spawn(move || run(rank)))
            .collect();
        for thread in threads {
            thread
                .join()
                .expect("no panic")
                .unwrap_or_else(|error| panic!("{error}"));
        }
    });
}

#[test]
fn emulated_ranks_have_the_numbers_of_one_process() {
    for world in [1, 2, 3, 4] {
        on(Communicator::emulated(world).expect("ranks"), |_| {
            Device::Cpu
        });
    }
}

#[cfg(feature = "cuda")]
#[test]
fn gpus_have_the_numbers_of_one_process() {
    let gpus = counterflow::cuda::Gpu::count().expect("GPUs") as usize;
    for world in [1, 2, 4] {
        let all: Vec<u32> = (0..world).map(|rank| (rank % gpus) as u32).collect();
        let ranks = Communicator::on(&all, None).expect("ranks");
        on(ranks, |rank| Device::new_cuda(rank % gpus).expect("a GPU"));
    }
}
