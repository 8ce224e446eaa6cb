//! On emulated ranks: what is reserved is what is taken, product after product.

use super::super::apart::Apart;
use super::super::contenders::Ready;
use super::super::fp8::tests::planned;
use super::super::interleaved::Exchange;
use super::super::task::{Held, Operand, Set};
use super::super::variants::{self, Built};
use super::*;
use crate::library::{self, Sizes, real};
use crate::suite;
use counterflow_codegen::builder::{ScheduleBuilder, me, others, ranks, tune, world};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::Program;
use counterflow_codegen::rule::{Fp8, ScaleRule};
use counterflow_codegen::variant::{Asked, Scales, Tensors, Variant};
use counterflow_runtime::Owner;
use counterflow_runtime::family::{Family, Stage, sources};

const WORLD: u32 = 2;
const SETS: u64 = 3;

/// The second is larger: there is no room for it beside the first.
const SIZES: [[u32; 3]; 2] = [[390, 256, 256], [770, 528, 256]];

type Schedule = fn(&Sizes) -> Program;

fn built(schedule: Schedule, variant: &Variant) -> Built {
    let sizes = Sizes {
        tiles: tune([(128, 128)]),
        ..real()
    };
    variants::build(&schedule(&sizes), variant).unwrap_or_else(|error| panic!("{error}"))
}

/// Memory of a rank for one product, and what of the heap is given out meanwhile.
struct Measuring<'a> {
    room: Room<'a>,
    sets: Vec<Set>,
    kernels: Vec<Ready<'a>>,
    /// Owners of memory meanwhile.
    _others: (Ready<'a>, Option<Exact>),
}

impl<'a> Measuring<'a> {
    /// All that takes memory, in the order of a measurement.
    fn new(rank: &'a Communicator, task: &Task<'a>) -> Result<Measuring<'a>, Error> {
        let room = task.room(rank, SETS)?;
        let operand = |side| -> Result<Operand, Error> {
            let given = Held::given(&room, task.ours[0].built, side)?;
            Ok(Operand { given, whole: None })
        };
        let sets = (0..SETS).map(|_| Set::new(&room, task, [operand(0)?, operand(1)?]));
        let sets: Vec<Set> = sets.collect::<Result<_, Error>>()?;
        let kernels = task.kernels(&room, &sets)?;
        let alone = task.alone.expect("the product alone");
        let beside_nccl = Ready::with((rank, None), alone, 0, |_, _| None)?;
        let exact = task.is_exact();
        let exact = exact
            .then(|| Exact::new(&room, task.case.size))
            .transpose()?;
        Ok(Measuring {
            room,
            sets,
            kernels,
            _others: (beside_nccl, exact),
        })
    }
}

/// Two products with these kernels, one after the other.
fn two_products(ours: &Built, plain: Option<&Built>, alone: &Built, apart: Option<&Built>) {
    let ranks = Communicator::emulated(WORLD).expect("ranks");
    let exchange = Exchange::new(ranks.len());
    let cases = SIZES.map(suite::single);
    let plans = cases.each_ref().map(|case| {
        let plain = plain.map(|plain| planned(plain, case));
        (
            [planned(ours, case)],
            Vec::from_iter(plain),
            planned(alone, case),
            Vec::from_iter(apart.map(|moves| {
                let [m, n, _] = case.size;
                let family = scattered();
                let candidate = &family.candidates()[1];
                let stages = vec![
                    planned(alone, case),
                    planned(moves, &suite::single([m, n, n])),
                ];
                let kernels = [&*alone.kernel, &*moves.kernel];
                Apart {
                    name: candidate.name(),
                    choices: None,
                    sources: sources(candidate, &ours.kernel, &kernels).expect("the same tensors"),
                    stages,
                }
            })),
        )
    });
    let kernel = &ours.kernel;
    let task = |at: usize| {
        let (ours, plain, alone, apart) = &plans[at];
        Task {
            case: &cases[at],
            dtype: kernel.buffers[ours[0].built.roles.x.index()].dtype,
            every_scale: false,
            layout: kernel.variant.layout,
            ours,
            plain,
            apart,
            alone: Some(alone),
            compiler: None,
            samples: 1,
            warm: 0.0,
            budget: None,
            sustained: None,
            seed: 0,
            exchange: &exchange,
        }
    };
    let tasks = [task(0), task(1)];
    let all = Communicator::each(&ranks, |rank| {
        // Of the first product and of the second.
        let mut begin = None;
        for task in &tasks {
            let measuring = Measuring::new(rank, task)?;
            rank.barrier()?;
            let used = rank.heap_use();
            let counted = parts(task, SETS).iter().map(Part::heap_bytes).sum::<u64>();
            let counted = counted + of_kernels(task);
            let name = format!("{} {}", kernel.name, kernel.variant);
            match task.apart {
                [] => assert_eq!(used.used, counted, "{name}: {used}"),
                // Kernels share scratch.
                _ => assert!(used.used <= counted, "{name}: {used}"),
            }
            assert!(
                !measuring.room.has_more(),
                "{name}: more is reserved than is taken"
            );
            let mine = used.held.iter().filter(|held| held.owner == Owner::Program);
            let all: Vec<_> = mine.map(|held| (held.offset, held.bytes)).collect();
            let mut next = *begin.get_or_insert(all[0].0);
            for (offset, bytes) in &all {
                assert_eq!(*offset, next, "{name}: {used}");
                next += bytes;
            }
            rank.barrier()?;
            // All tensors of a set are as large as launches need.
            for set in 0..measuring.sets.len() {
                for kernels in &measuring.kernels[1..] {
                    kernels.launch(rank, set)?;
                }
            }
        }
        Ok(())
    });
    all.expect("room for both");
}

#[test]
fn what_is_reserved_is_taken_product_after_product() {
    let theirs = ScaleRule::transformer_engine(Fp8::E4M3);
    let fp8 = |scales| Variant::new(WORLD).dtype(Dtype::E4M3).scales(scales);
    let sums = fp8(Scales::Blocks1d2d).quantised_reduction(theirs);
    let all: [(Schedule, Variant); 7] = [
        (library::gemm_rs, fp8(Scales::PerTensor)),
        (library::gemm_ar, fp8(Scales::PerRow)),
        (library::gemm_rs, sums.clone()),
        (library::gemm_ar, sums),
        (library::ag_gemm, fp8(Scales::Blocks1d2d)),
        (library::gemm_rs, Variant::new(WORLD)),
        (
            library::gemm_rs,
            Variant::new(WORLD).quantised_reduction(theirs),
        ),
    ];
    let wide = crate::wide::wide();
    for (schedule, variant) in all.into_iter().step_by(if wide { 1 } else { 2 }) {
        let free = variant
            .clone()
            .encode(Tensors::PartialSums, Asked::default());
        let plain = (free != variant).then(|| built(schedule, &free));
        let alone = built(library::gemm, &free);
        two_products(&built(schedule, &variant), plain.as_ref(), &alone, None);
    }
}

/// Tiles go to their owners, who add them.
fn reduce_scatter() -> Program {
    let mut s = ScheduleBuilder::new("reduce_scatter");
    let (g, y) = (
        s.local("g", Dtype::Bf16),
        s.reduce_scattered("y", Dtype::Bf16),
    );
    let tiles = s.tiles("tiles", y, (128, 128));
    let partial = s.symmetric("partial", Dtype::Bf16, y.shard(), world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.comm(8u32, |s| {
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let part = s.load(g.at(t));
                s.store(partial.on(&owner).at(me()).at(t), part);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.load(g.at(t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), mine + theirs);
        });
    });
    s.finish()
}

/// A product whose rows are summed: fused, or one launch after the other.
fn scattered() -> Family {
    Family::new("gemm_reduce_scatter", library::gemm_rs(&real())).or_stages([
        Stage::new(library::gemm(&real())).tensor("y", "g"),
        Stage::new(reduce_scatter()).of_result(),
    ])
}

#[test]
fn candidates_of_several_kernels_are_counted_and_run() {
    let variant = Variant::new(WORLD);
    let moves = variants::build_stage(&reduce_scatter(), &variant);
    let moves = moves.unwrap_or_else(|error| panic!("{error}"));
    let [ours, alone] = [library::gemm_rs, library::gemm].map(|one| built(one, &variant));
    two_products(&ours, None, &alone, Some(&moves));
}
