//! One body for every schedule: results are right in worlds 1 to 4, for both types and tiles, for shapes that nothing
//! divides, with new data and a new M at every launch. The emulator runs it on small shapes.

pub mod fp8_blocks;
mod handed;
mod legal;
mod narrow;
mod newcomers;
mod outsiders;
mod partial;
mod parts;
mod slabs;
mod square;
mod strangers;

use crate::case::{Case, Device, Fill, Kind, checked, on, variant_of};
use crate::fine;
use crate::gpus;
use crate::parallel::in_parallel;
use crate::tiles::RAGGED;
use crate::wide::{in_turn, wide};
use counterflow::codegen::interp::Outcome;
use counterflow::jit::{Compiler, Probes};
use counterflow::rule::ScaleRule;
use counterflow::{Dtype, Layout, Program, Scales, Shape, Variant, schedules};
use std::time::Instant;
pub use strangers::{of_strangers, strangers};

type Schedule = fn() -> Program;

pub const KINDS: [Kind; 4] = [
    (Dtype::Bf16, (128, 256), Layout::Nt),
    (Dtype::Bf16, (128, 128), Layout::Nt),
    (Dtype::F16, (128, 256), Layout::Nt),
    (Dtype::F16, (128, 128), Layout::Nt),
];

/// Of them, those that also run with pauses.
pub const JITTERED: [Kind; 2] = [KINDS[0], KINDS[3]];

/// Operands that are MN-major: the second.
pub const NN: [Kind; 2] = [
    (Dtype::Bf16, (128, 256), Layout::Nn),
    (Dtype::F16, (128, 128), Layout::Nn),
];

/// Both of them; not what a `#[comm]` loop moves.
pub const TN: [Kind; 2] = [
    (Dtype::Bf16, (128, 256), Layout::Tn),
    (Dtype::F16, (128, 128), Layout::Tn),
];

/// FP8 operands, which are K-major.
pub const FP8: [Kind; 2] = [
    (Dtype::E4M3, (128, 256), Layout::Nt),
    (Dtype::E4M3, (128, 128), Layout::Nt),
];

/// Of which the first is e5m2; the second cannot be.
pub const FP8_GRADIENTS: [Kind; 2] = [
    (Dtype::E5M2, (128, 256), Layout::Nt),
    (Dtype::E5M2, (128, 128), Layout::Nt),
];

pub const JITTER: Probes = Probes {
    jitter: Some(0x5eed),
    trace: false,
};

/// One row, less than a tile, one less than a tile, several tiles and a part: in every world some ranks have no rows.
const ROWS: [u32; 6] = [1000, 1, 4097, 7, 127, 2049];

/// Those cases on a device.
fn run(cases: Vec<(Case, Fill)>, device: &Device<'_>) -> Vec<(Case, Fill, Outcome)> {
    let ran = cases.into_iter().map(|(case, fill)| {
        let outcome = case.run(device, fill);
        (case, fill, outcome)
    });
    ran.collect()
}

fn shapes(rows: &[u32], (n, k): (u32, u32)) -> Vec<Shape> {
    let most = rows.iter().copied().max().unwrap_or(0);
    let shape = |m: &u32| Shape::new(*m, n, k).up_to(most);
    rows.iter().map(shape).collect()
}

/// No tile divides the columns, no step the depth; the first has two units of a copied chunk, the second one.
const SIZES: [(u32, u32); 2] = [(264, 1096), (520, 72)];

/// What a test runs in one world.
struct Matrix {
    kinds: &'static [Kind],
    sizes: &'static [(u32, u32)],
    rows: &'static [u32],
    fills: &'static [fn(u64) -> Fill],
    scales: Option<Scales>,
    /// The type of second operands, where it is another.
    second: Option<Dtype>,
    /// The type of outputs, where it is another.
    output: Option<Dtype>,
    /// Whether these are measured.
    amax: bool,
    /// The rule by which launches make scales of them.
    made: Option<ScaleRule>,
    /// The rule by which partial sums travel in FP8.
    partial: Option<ScaleRule>,
}

/// As a schedule is written: for the others to name what they have beside it.
const PLAIN: Matrix = Matrix {
    kinds: &KINDS,
    sizes: &[],
    rows: &[],
    fills: &[],
    scales: None,
    second: None,
    output: None,
    amax: false,
    made: None,
    partial: None,
};

impl Matrix {
    fn variants(&self, program: &Program, ranks: u32) -> Vec<Variant> {
        let of_kind = |kind: &Kind| {
            let variant = variant_of(program, ranks, *kind);
            let variant = self.scales.into_iter().fold(variant, Variant::scales);
            let variant = self.second.into_iter().fold(variant, Variant::rhs_dtype);
            let variant = self.made.into_iter().fold(variant, Variant::output_scales);
            let variant = self.output.into_iter().fold(variant, Variant::output);
            let variant = self
                .partial
                .into_iter()
                .fold(variant, Variant::quantised_reduction);
            variant.amax(self.amax)
        };
        self.kinds.iter().map(of_kind).collect()
    }

    /// Every case, of ranks of which so many share a GPU.
    fn cases(&self, schedule: Schedule, ranks: u32, sharing: u32) -> Vec<(Case, Fill)> {
        let program = schedule();
        let variants = self.variants(&program, ranks);
        let of_kinds = in_parallel(self.kinds.len(), |kind| checked(&program, &variants[kind]));
        let of_size = self.sizes.len() * self.fills.len();
        in_parallel(self.kinds.len() * of_size, |index| {
            let size = self.sizes[index % of_size / self.fills.len()];
            let fill = self.fills[index % self.fills.len()];
            let shapes = shapes(self.rows, size);
            let case = Case::of(of_kinds[index / of_size].clone(), &shapes, sharing);
            (case, fill(u64::from(ranks) << 16 | index as u64))
        })
    }

    /// Compares all of them; one line of the table.
    fn compare(&self, ran: &[(Case, Fill, Outcome)], told: &str) {
        let launches = self.rows.len();
        let worst = in_parallel(ran.len() * launches, |index| {
            let (case, fill, outcome) = &ran[index / launches];
            case.compare(outcome, index % launches, *fill)
        });
        let worst = worst.into_iter().fold(0.0, f64::max);
        let name = &ran[0].0.kernel.name;
        let launches = ran.len() * launches;
        let how = if ran.iter().all(|(case, fill, _)| case.is_exact(*fill)) {
            "the same bits".into()
        } else {
            format!("at most {:.0} % of what rounding allows", worst * 100.0)
        };
        println!("  {name:13} {told:32} {launches:5} launches right: {how}");
    }

    /// On GPUs of their own where there are enough.
    fn on_gpus(&self, schedule: Schedule, what: &str, how: (Probes, u64)) {
        self.on_worlds(&[1, 2, 3, 4], schedule, what, how);
    }

    /// The same of these worlds.
    fn on_worlds(
        &self,
        worlds: &[u32],
        schedule: Schedule,
        what: &str,
        (probes, late): (Probes, u64),
    ) {
        let Some(gpus) = gpus::here() else {
            return self.must_be_legal(worlds, schedule);
        };
        for ranks in worlds.iter().copied() {
            if !gpus::runs(ranks, gpus) {
                continue;
            }
            // Before and behind the world, which keeps other tests from the GPUs, is what needs none.
            let cases = self.cases(schedule, ranks, ranks.div_ceil(gpus));
            let filled: Vec<_> = (cases.iter().map(|(case, fill)| case.filled(*fill))).collect();
            let compiler = fine(Compiler::find()).with_probes(probes);
            let Some(world) = gpus::world(ranks) else {
                return;
            };
            let began = Instant::now();
            let left: Vec<_> = (cases.iter().zip(&filled))
                .map(|((case, fill), words)| case.launched(&world, &compiler, (words, *fill), late))
                .collect();
            let told = format!("{}, {:.1} s", world.told(), began.elapsed().as_secs_f64());
            drop((world, filled));
            let ran: Vec<_> = (cases.into_iter().zip(&left))
                .map(|((case, fill), left)| {
                    let outcome = case.outcome(left);
                    (case, fill, outcome)
                })
                .collect();
            self.compare(&ran, &format!("{told}, {what}"));
        }
    }
}

fn agrees(schedule: Schedule) {
    let matrix = Matrix {
        kinds: &KINDS,
        sizes: &SIZES,
        rows: &ROWS,
        fills: &[Fill::Uniform],
        ..PLAIN
    };
    matrix.on_gpus(schedule, "random", (Probes::default(), 0));
}

mod agrees {
    crate::each_schedule!(super::agrees);
}

/// Whether it has a kernel in layout nn: `#[comm]` CTAs do not copy a weight's rows that lie as columns.
fn has_nn(schedule: Schedule) -> bool {
    schedule().name != "fsdp_gemm"
}

/// Shards that end within a tile, of which some partial boxes exist: every sort of end in every world.
fn ragged(schedule: Schedule) {
    let kinds: &[Kind] = if has_nn(schedule) {
        &[KINDS[0], KINDS[1], NN[0]]
    } else {
        &[KINDS[0], KINDS[1]]
    };
    let matrix = Matrix {
        kinds,
        sizes: &[(136, 200)],
        rows: &RAGGED,
        fills: &[Fill::Uniform],
        ..PLAIN
    };
    matrix.on_gpus(schedule, "ragged", (Probes::default(), 0));
}

mod ragged {
    crate::each_schedule!(super::ragged);
}

fn layout_nn(schedule: Schedule) {
    let matrix = Matrix {
        kinds: &NN,
        sizes: &[(264, 1096)],
        rows: &[1000, 1, 127, 2049],
        fills: &[Fill::Uniform, Fill::Integers],
        ..PLAIN
    };
    matrix.on_gpus(schedule, "nn", (Probes::default(), 0));
}

mod layout_nn {
    crate::each_schedule!(super::layout_nn: gemm, swiglu, ag_gemm, ag_gemm_across, ag_gemm_pull, ag_gemm_ring, ag_gemm_double_ring, ag_gemm_slabs, ag_swiglu, experts, gemm_rs, gemm_rs_across, gemm_rs_add, gemm_ar, gemm_ar_one_shot, gemm_ag, all_to_all, mlp, bulk, bulk_rs);
}

/// Rows of FP8 are multiples of 16 elements: one step of K and a part, and more steps than stages.
const FP8_MATRIX: Matrix = Matrix {
    kinds: &FP8,
    sizes: &[(264, 1104), (576, 144), (2112, 272)],
    rows: &[1000, 1, 127, 2049],
    fills: &[Fill::Uniform, Fill::Integers],
    ..PLAIN
};

fn fp8(schedule: Schedule) {
    FP8_MATRIX.on_gpus(schedule, "e4m3", (Probes::default(), 0));
}

/// Where the order of sums is fixed, a GPU's are the emulator's to the bit: random numbers, in tiles of every sort.
#[test]
fn fp8_sums_have_the_bits_of_the_emulator() {
    let Some(world) = gpus::world(1) else { return };
    let device = Device::gpus(&world, Probes::default(), 0);
    let mut launches = 0;
    for (number, variant) in (1..).zip(of_bits()) {
        let case = on(&device, &schedules::gemm(), &variant, &shapes_of_bits());
        let fill = Fill::Uniform(number);
        let (ran, emulated) = (case.run(&device, fill), case.run(&Device::Cpu, fill));
        for of in &ran.outputs {
            let same = emulated.output(of.launch, of.rank, of.tensor);
            let same = same.expect("the same output");
            let other = (0..of.values.len()).find(|at| of.values[*at] != same.values[*at]);
            if let Some(at) = other {
                let [got, wanted] = [of, same].map(|it| it.values[at]);
                panic!("{variant}: {got} at {at}, and {wanted} in the emulator");
            }
            launches += 1;
        }
    }
    println!("  {launches} launches right: FP8 sums have the bits of the emulator");
}

fn shapes_of_bits() -> Vec<Shape> {
    shapes(&[130, 5], (272, 1104))
}

/// Types of operands, by tiles and types of results. What an output is multiplied by is rounded once.
fn of_bits() -> impl Iterator<Item = Variant> {
    let operands = [
        (Dtype::E4M3, Dtype::E4M3),
        (Dtype::E4M3, Dtype::E5M2),
        (Dtype::E5M2, Dtype::E4M3),
    ];
    let results = [
        ((128, 128), Dtype::Bf16),
        ((128, 256), Dtype::E4M3),
        ((256, 128), Dtype::F32),
        ((80, 128), Dtype::E5M2),
    ];
    operands.into_iter().flat_map(move |(first, second)| {
        results.map(|(tile, output)| {
            let variant = Variant::new(1).dtype(first).rhs_dtype(second);
            variant.output(output).set("tiles", tile)
        })
    })
}

/// One scale for an operand or for each of its rows. Sums in tensor cores alone have these.
const UNPROMOTED: [Scales; 2] = [Scales::PerTensor, Scales::PerRow];

/// The same with scales of each operand. Those of the rows of what is gathered travel with them.
fn fp8_scaled(schedule: Schedule) {
    for scales in UNPROMOTED {
        let matrix = Matrix {
            scales: Some(scales),
            ..FP8_MATRIX
        };
        let what = format!("e4m3, scales of {}", scales.name());
        matrix.on_gpus(schedule, &what, (Probes::default(), 0));
    }
}

/// The same where one operand is e5m2: gradients by weights, and the other way round.
fn fp8_mixed(schedule: Schedule) {
    for (kinds, second) in [(&FP8, Dtype::E5M2), (&FP8_GRADIENTS, Dtype::E4M3)] {
        let first = kinds[0].0;
        let matrix = Matrix {
            kinds,
            second: Some(second),
            ..FP8_MATRIX
        };
        matrix.on_gpus(
            schedule,
            &format!("{first}×{second}"),
            (Probes::default(), 0),
        );
    }
}

mod fp8_mixed {
    crate::each_schedule!(super::fp8_mixed: gemm, ag_gemm, gemm_rs);
}

mod fp8_scaled {
    crate::each_schedule!(super::fp8_scaled: gemm, ag_gemm, ag_gemm_pull, ag_gemm_ring, ag_gemm_double_ring, fsdp_gemm, gemm_rs);
}

mod fp8 {
    crate::each_schedule!(super::fp8: gemm, ag_gemm, gemm_rs);
}

/// The same for what compiles them ahead.
pub fn of_fp8() -> impl Iterator<Item = (Probes, Program, Variant)> {
    let bits = of_bits().map(|variant| (Probes::default(), schedules::gemm(), variant));
    of_fp8_operands()
        .chain(narrow::of_fp8_outputs())
        .chain(partial::of_partial_sums())
        .chain(bits)
}

fn of_fp8_operands() -> impl Iterator<Item = (Probes, Program, Variant)> {
    let all = [schedules::gemm, schedules::ag_gemm, schedules::gemm_rs];
    let kinds = all
        .into_iter()
        .flat_map(|schedule: Schedule| FP8.map(|kind| (schedule, kind)));
    let worlds = kinds.flat_map(|kind| (1..=4).map(move |world| (kind, world)));
    let variants = worlds.map(|((schedule, kind), world)| {
        let program = schedule();
        let variant = variant_of(&program, world, kind);
        (Probes::default(), program, variant)
    });
    let of_all = variants.flat_map(|(probes, program, variant)| {
        let [whole, rows] = UNPROMOTED.map(|scales| variant.clone().scales(scales));
        let mixed = variant.clone().rhs_dtype(Dtype::E5M2);
        let gradients = variant.clone().dtype(Dtype::E5M2).rhs_dtype(Dtype::E4M3);
        [variant, whole, rows, mixed, gradients].map(|variant| (probes, program.clone(), variant))
    });
    let gathers: [Schedule; 4] = [
        schedules::ag_gemm_pull,
        schedules::ag_gemm_ring,
        schedules::ag_gemm_double_ring,
        schedules::fsdp_gemm,
    ];
    let kinds = gathers
        .into_iter()
        .flat_map(|schedule| FP8.map(|kind| (schedule, kind)));
    let worlds = kinds.flat_map(|kind| (1..=4).map(move |world| (kind, world)));
    let scaled = worlds.flat_map(|((schedule, kind), world)| {
        let program = schedule();
        let variant = variant_of(&program, world, kind);
        UNPROMOTED.map(|scales| {
            let variant = variant.clone().scales(scales);
            (Probes::default(), program.clone(), variant)
        })
    });
    of_all.chain(scaled).chain(fp8_blocks::of_all())
}

/// Columns of M are multiples of 16 bytes in every world.
fn layout_tn(schedule: Schedule) {
    let matrix = Matrix {
        kinds: &TN,
        sizes: &[(264, 1096)],
        rows: &[960, 96, 2016],
        fills: &[Fill::Uniform, Fill::Integers],
        ..PLAIN
    };
    matrix.on_gpus(schedule, "tn", (Probes::default(), 0));
}

mod layout_tn {
    crate::each_schedule!(super::layout_tn: gemm, swiglu, experts, gemm_rs, gemm_rs_add, rs_ring, gemm_ar, gemm_ag, all_to_all, bulk, bulk_rs);
}

/// Small integers, whose sums are exact in any order: the same bits as the reference.
fn same_bits(schedule: Schedule) {
    let matrix = Matrix {
        kinds: &KINDS,
        sizes: &[(264, 200)],
        rows: &[1, 1000, 127, 514],
        fills: &[Fill::Integers],
        ..PLAIN
    };
    matrix.on_gpus(schedule, "integers", (Probes::default(), 200));
}

mod same_bits {
    crate::each_schedule!(super::same_bits);
}

/// With random pauses inside every role, and ranks that come late.
fn jitter(schedule: Schedule) {
    let matrix = Matrix {
        kinds: &JITTERED,
        sizes: &[(520, 1096)],
        rows: &[514, 1, 1000, 129, 2049, 640, 127, 1000],
        fills: &[Fill::Uniform, Fill::Integers],
        ..PLAIN
    };
    matrix.on_gpus(schedule, "jitter", (JITTER, 300));
}

mod jitter {
    crate::each_schedule!(super::jitter);
}

/// Few and small, and ranks on one GPU: what the sanitizers watch.
fn small(schedule: Schedule) {
    let matrix = Matrix {
        kinds: &JITTERED,
        sizes: &[(136, 200)],
        rows: &[257, 1, 130],
        fills: &[Fill::Uniform],
        ..PLAIN
    };
    for ranks in [1, 3] {
        let Some(world) = gpus::loopback(ranks) else {
            continue;
        };
        let device = Device::gpus(&world, Probes::default(), 0);
        let (ran, told) = (
            run(matrix.cases(schedule, ranks, world.sharing), &device),
            world.told(),
        );
        drop(world);
        matrix.compare(&ran, &format!("{told}, small"));
    }
}

mod small {
    crate::each_schedule!(super::small);
}

/// Both kinds of numbers, or without `WIDE` one of them, in turn.
fn some_fills(at: usize) -> &'static [fn(u64) -> Fill] {
    match (wide(), at % 2) {
        (true, _) => &[Fill::Uniform, Fill::Integers],
        (false, 0) => &[Fill::Uniform],
        (false, _) => &[Fill::Integers],
    }
}

/// The same on emulated ranks; `tests/schedules` has every world from 1 to 8. Without `WIDE` each kind runs in one of two worlds and with one
/// kind of numbers, by the length of the schedule's name, so that each is in all for some schedule.
pub fn emulated_as(schedule: Schedule, kinds: &'static [Kind], rows: &'static [u32]) {
    let turn = schedule().name.len();
    let worlds: &[u32] = if wide() { &[1, 2, 3, 4] } else { &[1, 3] };
    for (at, ranks) in worlds.iter().copied().enumerate() {
        let kinds = match wide() {
            true => kinds,
            false => &kinds[(at + turn) % kinds.len()..][..1],
        };
        let matrix = Matrix {
            kinds,
            sizes: &[(136, 72)],
            rows,
            fills: some_fills(at + turn / 2),
            ..PLAIN
        };
        let ran = run(matrix.cases(schedule, ranks, 1), &Device::Cpu);
        let layout = kinds[0].2.name();
        matrix.compare(&ran, &format!("world {ranks} emulated, {layout}"));
    }
}

fn emulated(schedule: Schedule) {
    // Both types, and both layouts where there are two.
    const SOME: [Kind; 2] = [KINDS[0], NN[1]];
    let all: &[&[Kind]] = match (wide(), has_nn(schedule)) {
        (true, true) => &[&KINDS, &NN],
        (true, false) => &[&KINDS],
        (false, true) => &[&SOME],
        (false, false) => &[&JITTERED],
    };
    for kinds in all {
        emulated_as(schedule, kinds, &[300, 1, 127, 7]);
    }
}

mod emulated {
    crate::each_schedule!(super::emulated);
}

/// Scales of rows and of blocks that travel, on emulated ranks.
fn fp8_emulated(schedule: Schedule) {
    let [first, second, third] = fp8_blocks::KINDS;
    let name = schedule().name;
    let number = FP8_GATHERS.iter().position(|it| *it == &*name);
    // Without `WIDE` one kind of scales of each schedule, in turn.
    let kinds = [Scales::PerRow, first, second, third];
    let number = number.expect("one of them");
    let kinds = in_turn(kinds, number);
    let worlds: &[u32] = if wide() { &[1, 2, 3, 4] } else { &[3] };
    for scales in kinds {
        let matrix = Matrix {
            kinds: &FP8[1..],
            sizes: &[(136, 80)],
            rows: &[300, 1, 127, 7],
            fills: some_fills(number / 2),
            scales: Some(scales),
            ..FP8_MATRIX
        };
        for ranks in worlds.iter().copied() {
            let ran = run(matrix.cases(schedule, ranks, 1), &Device::Cpu);
            let what = format!("world {ranks} emulated, e4m3, scales {}", scales.name());
            matrix.compare(&ran, &what);
        }
    }
}

/// Of those below.
const FP8_GATHERS: [&str; 6] = [
    "ag_gemm",
    "ag_gemm_pull",
    "ag_gemm_ring",
    "ag_gemm_double_ring",
    "fsdp_gemm",
    "ag_swiglu",
];

mod fp8_emulated {
    crate::each_schedule!(super::fp8_emulated: ag_gemm, ag_gemm_pull, ag_gemm_ring, ag_gemm_double_ring, fsdp_gemm, ag_swiglu);
}

fn emulated_tn(schedule: Schedule) {
    emulated_as(schedule, &TN, &[288, 96]);
}

mod emulated_tn {
    crate::each_schedule!(super::emulated_tn: gemm, swiglu, experts, gemm_rs, gemm_rs_add, rs_ring, gemm_ar, gemm_ag, all_to_all, bulk, bulk_rs);
}
