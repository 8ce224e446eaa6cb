//! `mlp` in one launch beside its two fused halves, and beside NCCL and cuBLASLt: times, of launches in turns in one
//! process. It needs a GPU for each of two or four ranks.

use crate::fine;
use crate::gpus::{here, world};
use crate::host::Spread;
use crate::nvidia::skipped;
use counterflow::codegen::interp::Numbers;
use counterflow::codegen::variant::Layout;
use counterflow::driver::Event;
use counterflow::prelude::*;
use counterflow::{Communicator, Dtype, Error, Op, Program, Tensor, UserBuffer, schedules};
use counterflow_workbench::peers::{Blas, Fused, Matmul, Nccl, Operands, Problem};

/// The first half of `mlp` by itself.
#[schedule]
fn ag_gelu(x: Gathered<bf16>, w: Local<bf16>, y: Out<bf16>) {
    let chunks = x.chunks(rows = tune(128, 256));
    let tiles = y.tiles(tune((128, 256), (128, 160), (128, 128)));
    let arrived = counters(chunks);

    #[comm(ctas = tune(8, 4, 2))]
    for peer in ranks().before_me() {
        for c in chunks.of(me()) {
            x.on(peer)[c] = x[c];
            arrived.on(peer)[c].add(1);
        }
    }
    #[gemm]
    for shard in ranks().from_me() {
        for t in tiles.of(shard).grouped() {
            arrived[t.rows()].wait();
            y[t] = dot(x[t], w[t]).gelu();
        }
    }
}

/// Columns of Llama-3 70B, and between its layers.
const COLUMNS: usize = 8192;
const BETWEEN: usize = 28672;
const ROWS: [usize; 4] = [512, 2048, 4096, 8192];
/// Bytes of each rank's slot: what is between the layers, and partial sums, of ops that take turns.
const HEAP: u64 = 4 << 30;
const ROUNDS: usize = 30;
const WARM: usize = 10;
const LAUNCHES: u32 = 4;

/// What is measured of `mlp` and of its halves: the default choice, and tiles and CTAs by hand.
const CHOICES: [Option<((u32, u32), u32)>; 4] = [
    None,
    Some(((128, 256), 8)),
    Some(((128, 256), 4)),
    Some(((128, 160), 4)),
];

fn built(
    rank: &Communicator,
    program: &Program,
    choice: Option<((u32, u32), u32)>,
    [m, n, k]: [usize; 3],
) -> Result<Op, Error> {
    let open = counterflow::tuned::choices(program);
    let mut builder = rank.op(program).dtype(Dtype::Bf16).up_to(m, n, k);
    if let Some((tiles, ctas)) = choice {
        builder = builder.set("tiles", tiles).first_options();
        if open.contains_key("comm.ctas") {
            builder = builder.set("comm.ctas", ctas);
        }
    }
    builder.build()
}

/// Normal numbers of that deviation: as many as a prime, over and over.
fn normal(seed: u64, deviation: f32, count: usize) -> Vec<bf16> {
    const PRIME: usize = 1_000_003;
    let mut numbers = Numbers::new(seed);
    let mut one = || {
        let sum: u64 = (0..12).map(|_| numbers.below(1 << 20)).sum();
        sum as f32 / (1 << 20) as f32 - 6.0
    };
    let some: Vec<bf16> = (0..PRIME.min(count))
        .map(|_| bf16::from_f32(one() * deviation))
        .collect();
    some.iter().copied().cycle().take(count).collect()
}

/// A rank's tensors.
struct Layers {
    x: UserBuffer<bf16>,
    up: Tensor<bf16>,
    down: Tensor<bf16>,
    /// What is between the layers, for who does not fuse them.
    hidden: Tensor<bf16>,
    y: UserBuffer<bf16>,
    /// For NCCL: all rows of `x`, the product before it is reduced, and what is left of it.
    whole: Tensor<bf16>,
    product: Tensor<bf16>,
    reduced: Tensor<bf16>,
}

impl Layers {
    fn new(rank: &Communicator, m: usize) -> Result<Layers, Error> {
        let (world, me) = (rank.world() as usize, rank.rank() as usize);
        let (between, own) = (BETWEEN / world, m / world);
        // Tensors, and what the ops' scratch needs: its pool grows with each.
        rank.reserve(HEAP)?;
        let layers = Layers {
            x: rank.allocate("x", [m, COLUMNS])?,
            up: rank.zeros([between, COLUMNS])?,
            down: rank.zeros([COLUMNS, between])?,
            hidden: rank.zeros([m, between])?,
            y: rank.allocate("y", [own, COLUMNS])?,
            whole: rank.zeros([m, COLUMNS])?,
            product: rank.zeros([m, COLUMNS])?,
            reduced: rank.zeros([own, COLUMNS])?,
        };
        let seed = 7 * rank.rank() as u64;
        let rows = normal(seed, 1.0, own * COLUMNS);
        layers.x.rows(me * own..(me + 1) * own)?.write(&rows)?;
        layers.whole.rows(me * own..(me + 1) * own)?.write(&rows)?;
        let deviation = 1.0 / (COLUMNS as f32).sqrt();
        layers
            .up
            .write(&normal(seed + 1, deviation, between * COLUMNS))?;
        let deviation = 1.0 / (BETWEEN as f32).sqrt();
        layers
            .down
            .write(&normal(seed + 2, deviation, between * COLUMNS))?;
        Ok(layers)
    }

    fn whole(&mut self, op: &Op, rank: &Communicator) -> Result<(), Error> {
        let launching = op.on(rank).tensor("x", &self.x).tensor("up", &self.up);
        let launching = launching.tensor("down", &self.down);
        launching.tensor("y", &mut self.y).launch().map(drop)
    }

    fn halves(&mut self, [first, second]: &[Op; 2], rank: &Communicator) -> Result<(), Error> {
        let launching = first.on(rank).tensor("x", &self.x).tensor("w", &self.up);
        launching.tensor("y", &mut self.hidden).launch()?;
        let launching = second.on(rank).tensor("x", &self.hidden);
        let launching = launching.tensor("w", &self.down);
        launching.tensor("y", &mut self.y).launch().map(drop)
    }

    fn products(&self, [first, second]: &[Matmul<'_>; 2]) -> Result<(), Error> {
        let [up, down] = self.operands();
        first.run(&up)?;
        second.run(&down)
    }

    fn operands(&self) -> [Operands; 2] {
        let hidden = self.hidden.address();
        let up = Operands {
            x: self.whole.address(),
            w: self.up.address(),
            c: None,
            y: hidden,
            scales: [None; 2],
            of_result: [None; 2],
        };
        let down = Operands {
            x: hidden,
            w: self.down.address(),
            c: None,
            y: self.product.address(),
            scales: [None; 2],
            of_result: [None; 2],
        };
        [up, down]
    }

    fn with_nccl(
        &self,
        rank: &Communicator,
        nccl: &Nccl,
        products: &[Matmul<'_>; 2],
    ) -> Result<(), Error> {
        let count = self.reduced.len() as u64;
        let own = self
            .whole
            .address()
            .plus(2 * count * u64::from(rank.rank()));
        nccl.all_gather(own, self.whole.address(), count, Dtype::Bf16)?;
        self.products(products)?;
        let (product, reduced) = (self.product.address(), self.reduced.address());
        nccl.reduce_scatter(product, reduced, count, Dtype::Bf16)
    }
}

/// Microseconds of a launch of each contender, round by round.
fn times(
    rank: &Communicator,
    contenders: usize,
    mut launch: impl FnMut(usize) -> Result<(), Error>,
) -> Result<Vec<Vec<f64>>, Error> {
    let mut took = vec![Vec::new(); contenders];
    for round in 0..WARM + ROUNDS {
        for at in 0..contenders {
            let which = (at + round) % contenders;
            rank.synchronize()?;
            rank.barrier()?;
            let start = Event::record(rank.stream())?;
            for _ in 0..LAUNCHES {
                launch(which)?;
            }
            let end = Event::record(rank.stream())?;
            end.wait()?;
            if round >= WARM {
                took[which].push(end.since(&start)?.as_secs_f64() * 1e6 / f64::from(LAUNCHES));
            }
        }
    }
    Ok(took)
}

/// The distance of two results over the length of the second. NaN stays NaN.
fn distance(got: &[bf16], want: &[bf16]) -> f64 {
    let pairs = || {
        got.iter()
            .zip(want)
            .map(|(got, want)| (got.to_f64(), want.to_f64()))
    };
    let apart: f64 = pairs().map(|(got, want)| (got - want).powi(2)).sum();
    let long: f64 = pairs().map(|(_, want)| want.powi(2)).sum();
    (apart / long).sqrt()
}

fn problem(size: [usize; 3], gelu: bool) -> Problem {
    Problem {
        size: size.map(|size| size as u32),
        dtypes: [Dtype::Bf16; 2],
        scaled: None,
        result: Dtype::Bf16,
        fused: Fused {
            gelu,
            ..Fused::default()
        },
        layout: Layout::Nt,
    }
}

/// A measurement: `--ignored --exact mlp::beside_its_halves_and_nccl --nocapture`. It asserts that all results agree.
#[test]
#[ignore = "a measurement, of GPUs with a rank each"]
fn beside_its_halves_and_nccl() {
    let Some(gpus) = here() else { return };
    if gpus < 2 {
        skipped("a rank for each of two GPUs");
        return;
    }
    let Some(world) = world(if gpus < 4 { 2 } else { 4 }) else {
        return;
    };
    let stream = |rank: &Communicator| {
        let stream = rank.stream().cuda()?.clone();
        Ok::<_, Error>((rank.gpu().cuda()?.clone(), stream))
    };
    let streams: Result<Vec<_>, Error> = world.ranks.iter().map(stream).collect();
    let nccl = fine(Nccl::all(&fine(streams)));
    println!(
        "{}: microseconds, median [p10, p90] of {ROUNDS}, slowest rank",
        world.told()
    );
    for m in ROWS {
        let measured = fine(Communicator::each(&world.ranks, |rank| {
            measure(rank, &nccl[rank.rank() as usize], m)
        }));
        let names = &measured[0].0;
        for (at, name) in names.iter().enumerate() {
            let slowest = |round: usize| {
                let each = measured.iter().map(|(_, took)| took[at][round]);
                each.fold(0.0, f64::max)
            };
            let spread = Spread::of((0..ROUNDS).map(slowest).collect());
            println!("  M = {m:5}  {spread}  {name}");
        }
    }
}

type Measured = (Vec<String>, Vec<Vec<f64>>);

fn measure(rank: &Communicator, nccl: &Nccl, m: usize) -> Result<Measured, Error> {
    let between = BETWEEN / rank.world() as usize;
    let sizes = [[m, between, COLUMNS], [m, COLUMNS, between]];
    let mut layers = Layers::new(rank, m)?;
    let whole = CHOICES.map(|choice| built(rank, &schedules::mlp(), choice, sizes[0]));
    let whole: Vec<Op> = whole.into_iter().collect::<Result<_, _>>()?;
    let halves = CHOICES.map(|choice| {
        let first = built(rank, &ag_gelu(), choice, sizes[0])?;
        Ok([first, built(rank, &schedules::gemm_rs(), choice, sizes[1])?])
    });
    let halves: Vec<[Op; 2]> = halves.into_iter().collect::<Result<_, Error>>()?;
    let blas = Blas::open(rank.gpu(), rank.stream())?;
    let [up, down] = layers.operands();
    let products = [
        blas.product(problem(sizes[0], true), &[up])?,
        blas.product(problem(sizes[1], false), &[down])?,
    ];
    rank.synchronize()?;
    rank.barrier()?;
    // GELU is by tanh at cuBLASLt, and sums are rounded more often there.
    layers.with_nccl(rank, nccl, &products)?;
    rank.synchronize()?;
    rank.barrier()?;
    let want = layers.reduced.read()?;
    let compare = |layers: &mut Layers,
                   name: &str,
                   launch: &mut dyn FnMut(&mut Layers) -> Result<(), Error>| {
        layers.y.fill(0xff)?;
        rank.synchronize()?;
        rank.barrier()?;
        launch(layers)?;
        rank.synchronize()?;
        rank.barrier()?;
        let apart = distance(&layers.y.read()?, &want);
        assert!(apart < 1e-2, "{name}, M = {m}: {apart} apart");
        Ok::<(), Error>(())
    };
    for op in &whole {
        compare(&mut layers, "mlp", &mut |layers| layers.whole(op, rank))?;
    }
    for ops in &halves {
        compare(&mut layers, "halves", &mut |layers| {
            layers.halves(ops, rank)
        })?;
    }
    let names = (whole
        .iter()
        .map(|op| format!("mlp, one launch, {}", op.variant())))
    .chain(
        halves
            .iter()
            .map(|[first, _]| format!("halves, {}", first.variant())),
    )
    .chain([
        "NCCL, two of cuBLASLt's, NCCL".into(),
        "cuBLASLt's two products alone".into(),
    ])
    .collect::<Vec<String>>();
    let took = times(rank, names.len(), |which| {
        match (
            which.checked_sub(whole.len()),
            which.checked_sub(whole.len() + halves.len()),
        ) {
            (None, _) => layers.whole(&whole[which], rank),
            (Some(which), None) => layers.halves(&halves[which], rank),
            (_, Some(0)) => layers.with_nccl(rank, nccl, &products),
            (_, Some(_)) => layers.products(&products),
        }
    })?;
    rank.synchronize()?;
    rank.barrier()?;
    Ok((names, took))
}
