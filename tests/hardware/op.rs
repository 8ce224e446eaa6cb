//! Ops: launches on the caller's stream, what they are given, and what dropping does.

use crate::fine;
use crate::gpus::{World, both_ways, loopback};
use crate::wide::wide;
use counterflow::codegen::{lower::lower, program::TensorId, verify};
use counterflow::driver::Stream;
use counterflow::launch::Loaded;
use counterflow::prelude::bf16;
use counterflow::{Checked, Machine, Plan, Shape, Variant};
use counterflow::{Communicator, Dtype, Error, Op, Program, Tensor, UserBuffer, schedules};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Rows, columns, which are the depth as well.
pub const SIZE: [usize; 2] = [1024, 256];

/// A number that bf16 has exactly, unlike its neighbours.
fn number(row: usize, column: usize) -> bf16 {
    bf16::from_f32(((row * 31 + column * 7) % 251) as f32)
}

/// The kernels of the other tests' first kind.
pub fn built(rank: &Communicator, program: &Program) -> Result<Op, Error> {
    let [m, side] = SIZE;
    let builder = rank.op(program).dtype(Dtype::Bf16).up_to(m, side, side);
    let builder = builder.set("tiles", (128, 256)).first_options();
    rank.reserve((m * side * 4) as u64 + 2 * builder.workspace()?.heap + (8 << 20))?;
    builder.build()
}

/// y = x · wᵀ, where w moves every column on by one.
pub struct Operands {
    pub x: UserBuffer<bf16>,
    pub w: Tensor<bf16>,
    pub y: Tensor<bf16>,
}

impl Operands {
    /// This rank's rows of x, and nothing elsewhere.
    pub fn new(rank: &Communicator) -> Result<Operands, Error> {
        let [m, side] = SIZE;
        let x = rank.allocate("x", [m, side])?;
        let w = Operands::moves(rank)?;
        let y = rank.zeros([m, side])?;
        y.fill(0xff)?;
        Ok(Operands { x, w, y })
    }

    /// w, which moves every column on by one.
    pub fn moving() -> Vec<bf16> {
        let [_, side] = SIZE;
        let mut moves = vec![bf16::ZERO; side * side];
        for row in 0..side {
            moves[row * side + (row + 1) % side] = bf16::ONE;
        }
        moves
    }

    /// The same on the GPU.
    pub fn moves(rank: &Communicator) -> Result<Tensor<bf16>, Error> {
        let w = rank.zeros([SIZE[1], SIZE[1]])?;
        w.write(&Operands::moving())?;
        Ok(w)
    }

    /// All of x. Nothing optimises tests: it is worked out once.
    pub fn all() -> &'static [bf16] {
        static ALL: OnceLock<Vec<bf16>> = OnceLock::new();
        let [m, side] = SIZE;
        let each = (0..m).flat_map(|row| (0..side).map(move |column| number(row, column)));
        ALL.get_or_init(|| each.collect())
    }

    /// `x` as this rank has it before a launch: its own rows are there, those of its peers are nothing.
    pub fn given(rank: &Communicator, m: usize) -> Vec<bf16> {
        let [most, side] = SIZE;
        let (shard, me) = (m.div_ceil(rank.world() as usize), rank.rank() as usize);
        let own = (shard * me).min(m) * side..(shard * (me + 1)).min(m) * side;
        let mut given = vec![bf16::NAN; most * side];
        given[own.clone()].copy_from_slice(&Operands::all()[own]);
        given
    }
}

/// Ranks on GPUs, if there are any, and emulated ones.
pub struct Ranks {
    pub ranks: Vec<Communicator>,
    pub told: String,
    _world: Option<World>,
}

pub fn ranks(world: u32) -> impl Iterator<Item = Ranks> {
    let emulated = std::iter::once_with(move || Ranks {
        ranks: fine(Communicator::emulated(world)),
        told: format!("{world} emulated ranks"),
        _world: None,
    });
    emulated.chain(both_ways(world).map(|mut world| Ranks {
        told: world.told(),
        ranks: std::mem::take(&mut world.ranks),
        _world: Some(world),
    }))
}

pub fn right(y: &[bf16], m: usize) {
    let [most, side] = SIZE;
    for (row, values) in y[..m * side].chunks(side).enumerate() {
        let x = &Operands::all()[row * side..][..side];
        let same = values[..side - 1] == x[1..] && values[side - 1] == x[0];
        assert!(same, "row {row} is {values:?}, not {x:?} moved on by one");
    }
    let rest = y[m * side..most * side].iter();
    assert!(rest.clone().all(|value| value.is_nan()), "rows beyond M");
}

#[test]
fn launches_take_the_place_of_their_callers_stream() {
    for world in ranks(2).chain(ranks(4)) {
        fine(Communicator::each(&world.ranks, |rank| {
            let op = built(rank, &schedules::ag_gemm())?;
            let Operands { x, w, mut y } = Operands::new(rank)?;
            let streams: Vec<Stream> = (0..2)
                .map(|_| rank.gpu().stream())
                .collect::<Result<_, _>>()?;
            for (launch, m) in [SIZE[0], 0, 7, 0, 640, 0, 0, 1].into_iter().enumerate() {
                x.write(&Operands::given(rank, m))?;
                y.fill(0xff)?;
                rank.synchronize()?;
                rank.barrier()?;
                let launching = op.on(&streams[launch % 2]).rows(m);
                let launching = launching.tensor("x", &x).tensor("w", &w);
                let done = launching.tensor("y", &mut y).launch()?;
                done.wait_on(&streams[1])?;
                done.wait()?;
                assert!(done.is_done()?);
                right(&y.read()?, m);
                rank.barrier()?;
            }
            Ok(())
        }));
        println!("  on the caller's streams: {}", world.told);
    }
}

#[test]
fn what_a_launch_may_not_have_is_refused_before_anything_is_enqueued() {
    // Where ranks wait for each other, a refusal ends the communicator: here none does.
    let (emulated, others) = (
        fine(Communicator::emulated(1)),
        fine(Communicator::emulated(1)),
    );
    refuses(&emulated, &others);
    let Some(world) = loopback(1) else { return };
    refuses(&world.ranks, &fine(Communicator::loopback(1)));
}

/// The same below ops.
fn loaded(rank: &Communicator) -> Result<(Loaded, Checked<Plan>), Error> {
    let [m, side] = SIZE.map(|size| size as u32);
    let variant = Variant::new(rank.world()).set("tiles", (128, 256));
    let kernel = verify::kernel(lower(&schedules::ag_gemm(), &variant)?)?;
    let shape = Shape::new(m, side, side);
    let series = verify::series(&kernel, &shape, &Machine::h200())?;
    let loaded = Loaded::load(rank, None, &verify::warps(&kernel)?, &series)?;
    Ok((loaded, series.plan(&shape)?))
}

fn refuses(ranks: &[Communicator], others: &[Communicator]) {
    fine(others[0].reserve(8 << 20));
    let elsewhere = fine(others[0].zeros::<bf16>([SIZE[1], SIZE[1]]));
    fine(Communicator::each(ranks, |rank| {
        let op = built(rank, &schedules::ag_gemm())?;
        let Operands { x, w, mut y } = Operands::new(rank)?;
        let told = |launch: Result<counterflow::Pending, Error>| launch.expect_err("refused");
        let on = || op.on(rank);
        let error = told(on().tensor("x", &x).tensor("w", &w).launch());
        assert!(error.to_string().contains("without y"), "{error}");
        let error = told(on().tensor("x", &y).launch());
        assert!(error.to_string().contains("symmetric heap"), "{error}");
        let error = told(on().tensor("w", &elsewhere).launch());
        // A launch that waits for no peer takes memory of its rank's own ancestors alone.
        assert!(error.to_string().contains("another rank"), "{error}");
        let theirs = others[0].allocate::<bf16>("x", SIZE)?;
        let error = told(on().tensor("x", &theirs).launch());
        assert!(
            error.to_string().contains("another communicator"),
            "{error}"
        );
        let mut tensors = counterflow::launch::Tensors::new();
        tensors.shared(TensorId(0), &theirs);
        let loaded = loaded(rank)?;
        let error = loaded
            .0
            .launch(rank, &loaded.1, &tensors)
            .expect_err("refused");
        assert!(
            error.to_string().contains("another communicator"),
            "{error}"
        );
        let error = told(on().tensor("y", &y).launch());
        assert!(error.to_string().contains("shared reference"), "{error}");
        let mut same = y.clone();
        let first = y.rows(0..SIZE[1])?;
        let both = on()
            .tensor("x", &x)
            .tensor("w", &first)
            .tensor("y", &mut same);
        let error = told(both.launch());
        assert!(error.to_string().contains("overlap"), "{error}");
        let error = told(on().rows(SIZE[0] + 1).tensor("x", &x).launch());
        assert_eq!(error.kind(), "rejected", "{error}");
        if !rank.gpu().is_emulated() {
            let capturing = rank.gpu().stream()?;
            let seen = counterflow::cuda::enqueued(capturing.cuda()?, || {
                let launch = op.on(&capturing).tensor("x", &x).tensor("w", &w);
                let error = told(launch.launch());
                assert!(error.to_string().contains("without y"), "{error}");
                Ok(())
            })?;
            assert_eq!(seen.kernels + seen.others, 0, "nothing was recorded");
        }
        // It can go on.
        x.write(&Operands::given(rank, SIZE[0]))?;
        rank.synchronize()?;
        rank.barrier()?;
        op.on(rank)
            .tensor("x", &x)
            .tensor("w", &w)
            .tensor("y", &mut y)
            .launch()?
            .wait()?;
        right(&y.read()?, SIZE[0]);
        rank.barrier()
    }));
}

/// Everything that the caller held is gone before the launches are done, and its memory is given out again.
#[test]
fn dropping_everything_under_running_launches_changes_no_result() {
    for world in ranks(2) {
        fine(Communicator::each(&world.ranks, |rank| {
            rank.reserve(32 << 20)?;
            let sample = rank.gpu().is_emulated() && !wide();
            let rounds = if sample { 5 } else { 50 };
            for _ in 0..rounds {
                let Operands { x, w, mut y } = Operands::new(rank)?;
                x.write(&Operands::given(rank, SIZE[0]))?;
                rank.synchronize()?;
                rank.barrier()?;
                let kept = y.clone();
                let stream = rank.gpu().stream()?;
                let op = built(rank, &schedules::ag_gemm())?;
                let launch = op.on(&stream).tensor("x", &x).tensor("w", &w);
                drop(launch.tensor("y", &mut y).launch()?);
                drop((op, x, w, y, stream));
                rank.zeros::<bf16>([SIZE[1], SIZE[1]])?.fill(0xff)?;
                right(&kept.read()?, SIZE[0]);
                rank.barrier()?;
            }
            Ok(())
        }));
        println!("  dropped under launches: {}", world.told);
    }
}

#[test]
fn a_rank_whose_launch_is_refused_tells_the_others() {
    for world in ranks(2) {
        let start = std::sync::Mutex::new(None);
        let told = Communicator::each(&world.ranks, |rank| {
            let op = built(rank, &schedules::ag_gemm())?;
            let Operands { x, w, mut y } = Operands::new(rank)?;
            rank.synchronize()?;
            rank.barrier()?;
            start
                .lock()
                .expect("no panic")
                .get_or_insert_with(Instant::now);
            let launch = op.on(rank).tensor("x", &x).tensor("y", &mut y);
            let told = match rank.rank() {
                0 => launch.launch().expect_err("w is absent"),
                _ => launch
                    .tensor("w", &w)
                    .launch()
                    .and_then(|done| done.wait())
                    .expect_err("told"),
            };
            Ok((told.kind(), told.to_string()))
        });
        let took = start
            .lock()
            .expect("no panic")
            .map(|start: Instant| start.elapsed());
        let [(own, _), (kind, text)] = &fine(told)[..] else {
            panic!("two ranks")
        };
        assert_eq!((*own, *kind), ("usage", "aborted"), "{text}");
        assert!(
            text.contains("rank 0") && text.contains("without w"),
            "{text}"
        );
        assert!(
            took.is_some_and(|took| took < Duration::from_secs(2)),
            "{took:?}"
        );
        println!("  a refusal is told: {}", world.told);
    }
}

/// A kernel for each bucket, with counters of its own. Launches of all of them in one order, row counts mixed.
#[test]
fn a_launch_of_each_bucket_is_right() {
    const ROWS: [usize; 7] = [SIZE[0], 7, 64, 65, 300, 1, 301];
    for world in both_ways(2) {
        fine(Communicator::each(&world.ranks, |rank| {
            let [m, side] = SIZE;
            let program = schedules::ag_gemm();
            let builder = rank.op(&program).dtype(Dtype::Bf16).up_to(m, side, side);
            let builder = builder.set("tiles", (128, 256)).first_options();
            let builder = builder.buckets([64, 300]);
            rank.reserve((m * side * 4) as u64 + 2 * builder.workspace()?.heap + (8 << 20))?;
            let op = builder.build()?;
            let Operands { x, w, mut y } = Operands::new(rank)?;
            rank.synchronize()?;
            rank.barrier()?;
            for rows in ROWS.into_iter().cycle().take(70) {
                x.write(&Operands::given(rank, rows))?;
                y.fill(0xff)?;
                rank.synchronize()?;
                rank.barrier()?;
                let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
                launch.tensor("y", &mut y).rows(rows).launch()?.wait()?;
                right(&y.read()?, rows);
                rank.barrier()?;
            }
            Ok(())
        }));
        println!("  launches of three buckets: {}", world.told());
    }
}

/// A tensor goes to another library and comes back. Both sides only keep orders of streams.
#[test]
fn tensors_go_through_dlpack_in_the_order_of_streams() {
    for world in both_ways(1) {
        let rank = &world.ranks[0];
        let stream = fine(rank.gpu().stream());
        let values = |round: usize| -> Vec<f32> {
            (0..1 << 20)
                .map(|at| ((at + round) % 4093) as f32)
                .collect()
        };
        for round in 0..50 {
            let x = fine(rank.zeros::<f32>([1 << 10, 1 << 10]));
            fine(x.write(&values(round)));
            let address = x.address().get();
            let given = fine(x.to_dlpack(&stream));
            // The handle keeps the memory, and the stream comes after the write.
            drop(x);
            let other = fine(rank.zeros::<f32>([1 << 10, 1 << 10]));
            assert_ne!(other.address().get(), address);
            let raw = given.into_raw();
            // SAFETY: it was just made.
            let device = unsafe { raw.as_ref() }.dl_tensor.device;
            assert_eq!(device.device_id as u32, rank.gpu().ordinal());
            // SAFETY: nobody else has it.
            let back = fine(unsafe { rank.tensor_from_dlpack::<f32>(raw, &stream) });
            assert_eq!(
                (back.shape(), back.address().get()),
                ([1 << 10; 2], address)
            );
            assert!(fine(back.read()) == values(round), "round {round}");
        }
        println!("  50 tensors through DLPack and back: {}", world.told());
    }
}
