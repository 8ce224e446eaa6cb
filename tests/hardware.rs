//! On real GPUs: the heap, every schedule against the f64 reference, and how a stall ends. Without a GPU each test says
//! that it was skipped. On a machine without Rust, the built binary runs alone.

#[path = "../runtime/tests/common/mod.rs"]
mod nvidia;

use counterflow::codegen::lower::lower;
use counterflow::codegen::pipeline::{self, Pipeline};
use counterflow::codegen::verify;
use counterflow::cuda::Gpu;
use counterflow::gpus;
use counterflow::jit::Compiler;
use counterflow::{
    Checked, Communicator, Dtype, Error, Kernel, Machine, Plan, Program, Shape, UserBuffer,
    Variant, schedules,
};

/// GPUs here; none is told and skips the test.
fn gpus_here() -> Option<u32> {
    let opened = Gpu::count().and_then(|count| Gpu::open(0)?.must_be_hopper().map(|()| count));
    match opened {
        Ok(count) => Some(count),
        Err(error) => {
            nvidia::skipped(&error.to_string());
            None
        }
    }
}

fn fine<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}\n{}", error.help().unwrap_or_default()))
}

/// A schedule, checked, and its plans.
struct Case {
    kernel: Checked<Kernel>,
    pipeline: Checked<Pipeline>,
    plans: Vec<Checked<Plan>>,
}

impl Case {
    /// For ranks of which so many share a GPU.
    fn new(program: &Program, variant: &Variant, shapes: &[Shape], sharing: u32) -> Case {
        let machine = Machine::h200();
        let machine = Machine {
            sms: machine.sms / sharing,
            ..machine
        };
        let kernel = lower(program, variant)
            .and_then(verify::kernel)
            .unwrap_or_else(|error| panic!("{error}"));
        let pipeline = pipeline::build(&kernel)
            .and_then(pipeline::verify)
            .unwrap_or_else(|error| panic!("{error}"));
        let plan = |shape| {
            verify::plan(&kernel, shape, &machine).unwrap_or_else(|error| panic!("{error}"))
        };
        Case {
            plans: shapes.iter().map(plan).collect(),
            pipeline,
            kernel,
        }
    }

    /// Runs every plan in order, `rounds` times, and compares every output.
    fn agrees(&self, ranks: &[Communicator], rounds: usize) {
        let compiler = fine(Compiler::find());
        let plans: Vec<_> = (0..rounds).flat_map(|_| &self.plans).collect();
        let launched = fine(gpus::run(
            ranks,
            &compiler,
            &self.pipeline,
            plans.clone(),
            &self.kernel,
            7,
        ));
        for (launch, plan) in plans.iter().enumerate() {
            let compared = fine(launched.run.compare(launch)).expect("a reference");
            assert!(compared.relative < 4e-3, "{}: {compared:?}", plan.shape);
            if launch < self.plans.len() {
                println!(
                    "  {} {} on {} ranks: relative {:.2e}, {:.0} % of what rounding allows, {:.1} us",
                    self.kernel.name,
                    plan.shape,
                    ranks.len(),
                    compared.relative,
                    compared.of_allowed * 100.0,
                    launched.times[launch].as_secs_f64() * 1e6
                );
            }
        }
    }
}

/// Ranks that share one GPU, and, where there are as many, one a GPU.
fn both_ways(world: u32) -> Vec<(Vec<Communicator>, u32)> {
    let Some(count) = gpus_here() else {
        return Vec::new();
    };
    let mut all = vec![(fine(Communicator::loopback(world)), world)];
    if count >= world && world > 1 {
        all.push((fine(Communicator::local(world)), 1));
    }
    all
}

#[test]
fn the_heap_is_one_range_that_grows_and_never_moves() {
    for (ranks, sharing) in (1..=4).flat_map(both_ways) {
        fine(Communicator::each(&ranks, |rank| {
            let (me, world) = (rank.rank(), rank.world());
            rank.reserve(8 << 20)?;
            let first: UserBuffer<u32> = rank.allocate(1000)?;
            assert!(
                first.read()?.iter().all(|value| *value == 0),
                "memory comes zeroed"
            );
            let mine: Vec<u32> = (0..1000).map(|index| index * 10 + me).collect();
            first.write(&mine)?;
            rank.stream().synchronize().expect("written");
            rank.barrier()?;
            let address = first.address();
            rank.reserve(64 << 20)?;
            let second: UserBuffer<u64> = rank.allocate(4 << 20)?;
            assert_eq!(first.address(), address, "an address moved");
            for peer in 0..world {
                assert_eq!(
                    first.on(peer),
                    first.on(0).plus(u64::from(peer) * rank.stride())
                );
                let theirs = first.read_on(peer)?;
                assert!(
                    (0..1000).all(|index| theirs[index as usize] == index * 10 + peer),
                    "rank {peer} seen from {me}"
                );
            }
            // Writes to a peer arrive there, at both ends of what was reserved later.
            let next = (me + 1) % world;
            second.write_on(next, &vec![u64::from(me) + 5; 4 << 20])?;
            rank.stream().synchronize().expect("written");
            rank.barrier()?;
            let got = second.read()?;
            let from = u64::from((me + world - 1) % world) + 5;
            assert!(got.iter().all(|value| *value == from));
            // What all dropped is given out again, zeroed; while one rank holds on, it is not.
            let offset = second.offset();
            rank.barrier()?;
            drop(second);
            rank.barrier()?;
            let again: UserBuffer<u64> = rank.allocate(4 << 20)?;
            assert_eq!(again.offset(), offset);
            assert!(again.read()?.iter().all(|value| *value == 0));
            rank.barrier()
        }));
        println!("  heap: {} ranks, {sharing} a GPU", ranks.len());
    }
}

#[test]
fn ranks_that_disagree_are_told_and_a_full_heap_says_what_to_reserve() {
    for (ranks, _) in both_ways(2) {
        let error = Communicator::each(&ranks, |rank| {
            rank.reserve(4 << 20)?;
            rank.allocate::<u8>(100 + rank.rank() as usize)
        });
        assert_eq!(error.expect_err("different sizes").kind(), "mismatch");
        let error =
            Communicator::each(&ranks, |rank| rank.allocate::<u8>(64 << 20)).expect_err("too much");
        assert!(
            error.help().is_some_and(|help| help.contains("reserve")),
            "{error}"
        );
        let error = Communicator::each(&ranks, |rank| rank.reserve(1 << 50)).expect_err("too much");
        assert_eq!(error.kind(), "too_large", "{error}");
        let error = Communicator::each(&ranks, |rank| {
            if rank.rank() == 0 {
                rank.barrier()
            } else {
                rank.reserve(1)
            }
        });
        assert!(
            error
                .expect_err("different calls")
                .to_string()
                .contains("rank 0 meets, rank 1 reserves 1 bytes")
        );
        // They can go on.
        fine(Communicator::each(&ranks, |rank| {
            rank.allocate::<u8>(100).map(drop)
        }));
    }
}

#[test]
fn gemm_agrees_with_the_reference_on_ragged_shapes() {
    if gpus_here().is_none() {
        return;
    }
    for (tile, dtype) in [((128, 256), Dtype::Bf16), ((128, 128), Dtype::F16)] {
        for (n, k) in [(8, 8), (264, 72), (1032, 1000), (256, 2048)] {
            let shapes = [1, 7, 127, 129, 1000, 2049].map(|m| Shape::new(m, n, k));
            let variant = Variant::new(1).dtype(dtype).set("tiles", tile);
            Case::new(&schedules::gemm(), &variant, &shapes, 1)
                .agrees(&fine(Communicator::local(1)), 1);
        }
    }
}

fn fused(program: Program, world: u32, (n, k): (u32, u32)) {
    for (ranks, sharing) in both_ways(world) {
        let shapes = [1000, 64, 2049, 128 * world].map(|m| Shape::new(m, n, k).up_to(2049));
        let variant = Variant::new(world).set("tiles", (128, 256));
        Case::new(&program, &variant, &shapes, sharing).agrees(&ranks, 2);
    }
}

#[test]
fn ag_gemm_agrees_with_the_reference_while_m_changes() {
    fused(schedules::ag_gemm(), 2, (520, 520));
    fused(schedules::ag_gemm(), 4, (520, 264));
}

#[test]
fn what_the_host_would_have_to_copy_is_refused() {
    for (ranks, sharing) in both_ways(2) {
        let shape = [Shape::new(512, 512, 512)];
        let case = Case::new(
            &schedules::ag_gemm_pull(),
            &Variant::new(2),
            &shape,
            sharing,
        );
        let plans = case.plans.iter().collect();
        let run = gpus::run(
            &ranks,
            &fine(Compiler::find()),
            &case.pipeline,
            plans,
            &case.kernel,
            7,
        );
        assert_eq!(run.map(drop).expect_err("refused").kind(), "not_yet");
    }
}

#[test]
fn gemm_rs_agrees_with_the_reference_while_m_changes() {
    fused(schedules::gemm_rs(), 2, (520, 520));
    fused(schedules::gemm_rs(), 4, (520, 264));
}

#[test]
fn gemm_ar_agrees_with_the_reference_while_m_changes() {
    fused(schedules::gemm_ar(), 2, (520, 520));
    fused(schedules::gemm_ar(), 4, (520, 264));
}

/// Ends the GPU's context, so it has a process of its own: `--ignored --exact`, with UB_TIMEOUT of a second.
#[test]
#[ignore = "kills the process's GPU context; run it alone, with UB_TIMEOUT=1"]
fn a_rank_that_never_launches_is_named() {
    let Some(count) = gpus_here() else { return };
    let (ranks, sharing) = if count >= 2 {
        (fine(Communicator::local(2)), 1)
    } else {
        (fine(Communicator::loopback(2)), 2)
    };
    let shape = [Shape::new(512, 512, 512)];
    let case = Case::new(&schedules::ag_gemm(), &Variant::new(2), &shape, sharing);
    let compiler = fine(Compiler::find());
    let error =
        gpus::run_only(&ranks, &compiler, &case.pipeline, &case.plans[0], 0).expect_err("stalled");
    println!("  {error}\n  {}", error.help().unwrap_or_default());
    assert_eq!(error.kind(), "stalled");
}

/// Times of larger shapes, without comparing.
#[test]
#[ignore = "takes long; prints times"]
fn times() {
    if gpus_here().is_none() {
        return;
    }
    let ranks = fine(Communicator::local(1));
    let compiler = fine(Compiler::find());
    for (m, n, k) in [
        (4096, 4096, 4096),
        (2048, 7168, 8192),
        (8192, 8192, 2048),
        (512, 7168, 8192),
    ] {
        for tile in [(128, 256), (128, 128)] {
            let shapes = [Shape::new(m, n, k), Shape::new(m - 100, n, k)];
            let case = Case::new(
                &schedules::gemm(),
                &Variant::new(1).set("tiles", tile),
                &shapes,
                1,
            );
            let launched = fine(gpus::run(
                &ranks,
                &compiler,
                &case.pipeline,
                case.plans.iter().collect(),
                &case.kernel,
                3,
            ));
            let time = launched.times[0].as_secs_f64();
            println!(
                "  gemm {m}x{n}x{k} tiles {tile:?}: {:.1} us, {:.0} TFLOP/s; host {:.1} us for new numbers",
                time * 1e6,
                2.0 * f64::from(m) * f64::from(n) * f64::from(k) / time / 1e12,
                launched.host.as_secs_f64() * 1e6
            );
        }
    }
}
