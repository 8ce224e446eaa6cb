//! On emulated ranks: what is reserved is what is taken, product after product.

use super::super::contenders::Ready;
use super::super::fp8::tests::planned;
use super::super::interleaved::Exchange;
use super::super::task::{Held, Operand, Set};
use super::super::variants::{self, Built};
use super::*;
use crate::library::{self, Sizes, real};
use crate::suite;
use counterflow_codegen::builder::tune;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::Program;
use counterflow_codegen::rule::{Fp8, Rule};
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_runtime::Owner;

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

/// What a rank has of one product, and what of the heap is given out meanwhile.
struct Measuring<'a> {
    room: Room<'a>,
    sets: Vec<Set>,
    kernels: Vec<Ready<'a>>,
    /// What has memory meanwhile.
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
fn two_products(ours: &Built, plain: Option<&Built>, alone: &Built) {
    let ranks = Communicator::emulated(WORLD).expect("ranks");
    let exchange = Exchange::new(ranks.len());
    let cases = SIZES.map(suite::single);
    let plans = cases.each_ref().map(|case| {
        let plain = plain.map(|plain| planned(plain, case));
        (
            [planned(ours, case)],
            Vec::from_iter(plain),
            planned(alone, case),
        )
    });
    let kernel = &ours.kernel;
    let task = |at: usize| {
        let (ours, plain, alone) = &plans[at];
        Task {
            case: &cases[at],
            dtype: kernel.buffers[ours[0].built.roles.x.index()].dtype,
            every_scale: false,
            layout: kernel.variant.layout,
            ours,
            plain,
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
            assert_eq!(used.used, counted, "{name}: {used}");
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
                measuring.kernels[1].launch(rank, set)?;
            }
        }
        Ok(())
    });
    all.expect("room for both");
}

#[test]
fn what_is_reserved_is_taken_product_after_product() {
    let theirs = Rule::transformer_engine(Fp8::E4M3);
    let fp8 = |scales| Variant::new(WORLD).dtype(Dtype::E4M3).scales(scales);
    let sums = fp8(Scales::Blocks1d2d).partial_sums(theirs);
    let all: [(Schedule, Variant); 7] = [
        (library::gemm_rs, fp8(Scales::Whole)),
        (library::gemm_ar, fp8(Scales::Rows)),
        (library::gemm_rs, sums.clone()),
        (library::gemm_ar, sums),
        (library::ag_gemm, fp8(Scales::Blocks1d2d)),
        (library::gemm_rs, Variant::new(WORLD)),
        (library::gemm_rs, Variant::new(WORLD).partial_sums(theirs)),
    ];
    for (schedule, variant) in all {
        let free = Variant {
            partial_sums: None,
            ..variant.clone()
        };
        let plain = (free != variant).then(|| built(schedule, &free));
        let alone = built(library::gemm, &free);
        two_products(&built(schedule, &variant), plain.as_ref(), &alone);
    }
}
