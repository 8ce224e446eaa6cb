//! Scales of blocks, of what a rank has and of what is gathered.

use super::{FP8_MATRIX, Matrix, Schedule};
use crate::case::{Case, Device, Fill, Kind, checked, on, variant_of};
use crate::parallel::in_parallel;
use crate::wide::wide;
use crate::{fine, gpus};
use counterflow::codegen::interp::Output;
use counterflow::jit::Probes;
use counterflow::{Communicator, Dtype, Layout, Program, Scales, Shape, Variant, schedules};

/// Of either operand.
pub const KINDS: [Scales; 3] = [Scales::Blocks1d2d, Scales::Blocks2d1d, Scales::Blocks1d1d];

/// Tiles that leave registers for either kind of sum.
const TILES: [Kind; 2] = [
    (Dtype::E4M3, (128, 128), Layout::Nt),
    (Dtype::E4M3, (128, 64), Layout::Nt),
];

fn agrees(schedule: Schedule) {
    for scales in KINDS {
        let matrix = Matrix {
            kinds: &TILES,
            rows: &[1000, 1, 127, 2016],
            scales: Some(scales),
            ..FP8_MATRIX
        };
        let what = format!("e4m3, scales {}", scales.name());
        matrix.on_gpus(schedule, &what, (Probes::default(), 0));
    }
}

mod agrees {
    crate::each_schedule!(super::agrees: gemm, ag_gemm, ag_gemm_pull, ag_gemm_ring, ag_gemm_double_ring, fsdp_gemm, gemm_rs, gemm_ar);
}

/// What gathers an operand and multiplies it.
const GATHERS: [Schedule; 5] = [
    schedules::ag_gemm,
    schedules::ag_gemm_pull,
    schedules::ag_gemm_ring,
    schedules::ag_gemm_double_ring,
    schedules::fsdp_gemm,
];

/// Each rank's product of what is gathered has the bits of that of one rank which has all of it: rows, columns and K that no
/// tile, block or step divides. Of a sample each gather has one kind of scales, in turn.
fn as_a_plain_gemm(
    on: impl Fn(&Program, &Variant, &Shape, Fill) -> Option<(Case, Vec<Output>)>,
    (shape, worlds): (Shape, &[u32]),
    sample: bool,
) {
    let fill = Fill::Everywhere(7, shape.k.div_ceil(128));
    let (mut launches, mut left_out) = (0, 0);
    for (kind, scales) in KINDS.into_iter().enumerate() {
        let variant = |program: &Program, world| {
            let variant = variant_of(program, world, TILES[0]);
            variant.scales(scales)
        };
        let run = |schedule: Schedule, world: u32| {
            let program = schedule();
            let (case, outputs) = on(&program, &variant(&program, world), &shape, fill)?;
            let y = case
                .kernel
                .buffers
                .iter()
                .position(|buffer| buffer.name == "y");
            let outputs = outputs.into_iter();
            Some(outputs.filter(move |it| Some(it.tensor.index()) == y))
        };
        let Some(mut plain) = run(schedules::gemm, 1) else {
            return;
        };
        let plain = plain.next().expect("a result").values;
        assert!(plain.iter().all(|value| value.is_finite()));
        let gathers = GATHERS.into_iter().enumerate();
        let gathers = gathers.filter(|(at, _)| !sample || at % KINDS.len() == kind);
        for (_, schedule) in gathers {
            for world in worlds {
                let Some(fused) = run(schedule, *world) else {
                    left_out += world;
                    continue;
                };
                for of in fused {
                    let name = schedule().name;
                    assert!(of.values == plain, "{name} {scales:?} rank {}", of.rank);
                    launches += 1;
                }
            }
        }
    }
    // Each rank of each world has a result.
    let kinds = if sample { 1 } else { KINDS.len() as u32 };
    let ranks: u32 = worlds.iter().sum();
    assert_eq!(launches + left_out, kinds * GATHERS.len() as u32 * ranks);
    println!(
        "  {launches} launches right: gathered with scales of blocks, the bits of a plain product"
    );
}

fn on_gpus(
    program: &Program,
    variant: &Variant,
    shape: &Shape,
    fill: Fill,
) -> Option<(Case, Vec<Output>)> {
    let world = match variant.world {
        1 => gpus::alone(),
        ranks => gpus::world(ranks),
    }?;
    let device = Device::gpus(&world, Probes::default(), 0);
    let case = on(&device, program, variant, std::slice::from_ref(shape));
    let outputs = case.run(&device, fill).outputs;
    Some((case, outputs))
}

fn emulated(
    program: &Program,
    variant: &Variant,
    shape: &Shape,
    fill: Fill,
) -> Option<(Case, Vec<Output>)> {
    let case = on(&Device::Cpu, program, variant, std::slice::from_ref(shape));
    let ranks = fine(Communicator::emulated(variant.world));
    let outputs = Communicator::each(&ranks, |rank| case.on_rank(rank, None, fill, 0));
    let outputs = fine(outputs).into_iter().flatten().collect();
    Some((case, outputs))
}

/// No tile, block or step divides any of it.
fn shape() -> Shape {
    Shape::new(1000, 520, 1104)
}

#[test]
fn bits_of_a_plain_gemm() {
    as_a_plain_gemm(on_gpus, (shape(), &[1, 2, 3, 4]), false);
}

#[test]
fn emulated_bits_of_a_plain_gemm() {
    // A block along K and a part, or two and a part.
    let (worlds, k): (&[u32], u32) = match wide() {
        true => (&[1, 2, 3, 4, 8], 272),
        false => (&[3], 144),
    };
    as_a_plain_gemm(emulated, (Shape::new(389, 136, k), worlds), !wide());
}

/// A schedule with its tile, cluster and scales.
type Piece = (Schedule, (u32, u32), (u32, u32), Scales);

/// Tiles that are multiplied in other pieces than 128x128: by blocks of rows or parts of columns, whose scales are read by
/// halves or all at once; alone, and in clusters whose CTAs load operands for each other.
const PIECES: [Piece; 19] = [
    (schedules::gemm, (256, 128), (1, 1), Scales::Blocks1d1d),
    (schedules::gemm, (256, 112), (1, 1), Scales::Blocks1d1d),
    (schedules::gemm, (128, 160), (1, 1), Scales::Blocks1d1d),
    (schedules::gemm, (128, 176), (1, 1), Scales::Blocks1d1d),
    (schedules::gemm, (256, 128), (1, 1), Scales::Blocks2d1d),
    (schedules::gemm, (176, 128), (1, 1), Scales::Blocks1d2d),
    // Blocks of 128×128 cross the edges of these.
    (schedules::gemm, (128, 192), (1, 1), Scales::Blocks1d2d),
    (schedules::gemm, (128, 144), (1, 1), Scales::Blocks1d2d),
    (schedules::gemm, (256, 112), (1, 1), Scales::Blocks1d2d),
    (schedules::gemm, (128, 192), (2, 1), Scales::Blocks1d2d),
    (schedules::gemm, (144, 128), (1, 1), Scales::Blocks2d1d),
    (schedules::wgrad, (256, 128), (1, 1), Scales::Blocks1d1d),
    (schedules::gemm, (256, 128), (1, 2), Scales::Blocks1d2d),
    (schedules::gemm, (128, 256), (2, 1), Scales::Blocks1d2d),
    (schedules::gemm, (256, 128), (2, 1), Scales::Blocks2d1d),
    (schedules::gemm, (256, 128), (1, 2), Scales::Blocks1d1d),
    (schedules::gemm, (128, 128), (2, 1), Scales::Blocks1d1d),
    (schedules::gemm, (256, 128), (1, 2), Scales::Blocks2d1d),
    (schedules::gemm, (16, 64), (2, 1), Scales::Blocks1d2d),
];

/// The same product in whole steps of 128x128, and in pieces.
fn of_pieces() -> impl Iterator<Item = (Program, [Variant; 2])> {
    PIECES.into_iter().map(|(schedule, tile, cluster, scales)| {
        let program = schedule();
        let of = |tile| {
            let variant = variant_of(&program, 1, (Dtype::E4M3, tile, Layout::Nt));
            variant.scales(scales)
        };
        let pieces = match cluster {
            (1, 1) => of(tile),
            cluster => of(tile).set("gemm.cluster", cluster),
        };
        let variants = [of(TILES[0].1), pieces];
        (program, variants)
    })
}

/// A cluster's last tile lies outside, along either side. Tiles across blocks begin anywhere in one.
fn shape_of_pieces() -> Shape {
    Shape::new(1100, 1160, 1104)
}

/// Whatever pieces a step is multiplied in, each element is the same sum.
#[test]
fn bits_in_any_pieces() {
    let shape = shape_of_pieces();
    let fill = Fill::Everywhere(7, shape.k.div_ceil(128));
    for (program, variants) in of_pieces() {
        let both = variants
            .each_ref()
            .map(|variant| on_gpus(&program, variant, &shape, fill));
        let [Some((_, whole)), Some((_, pieces))] = both else {
            return;
        };
        let [whole, pieces] = [&whole, &pieces].map(|it| &it.last().expect("a result").values);
        assert!(whole.iter().all(|value| value.is_finite()));
        assert!(whole == pieces, "{} {}", program.name, variants[1]);
    }
}

/// What is compared bit for bit on GPUs.
pub fn of_bits() -> impl Iterator<Item = (Program, Variant, Vec<Shape>)> {
    let plain: (Schedule, u32) = (schedules::gemm, 1);
    let gathers = (1..=4).flat_map(|world| GATHERS.map(|schedule| (schedule, world)));
    let all = gathers.chain([plain]).flat_map(|(schedule, world)| {
        let program = schedule();
        let variant = variant_of(&program, world, TILES[0]);
        KINDS.map(|scales| {
            (
                program.clone(),
                variant.clone().scales(scales),
                vec![shape()],
            )
        })
    });
    let pieces = of_pieces().flat_map(|(program, variants)| {
        variants.map(|variant| (program.clone(), variant, vec![shape_of_pieces()]))
    });
    all.chain(pieces)
}

pub fn of_all() -> impl Iterator<Item = (Probes, Program, Variant)> {
    let others = [schedules::gemm, schedules::gemm_rs, schedules::gemm_ar];
    let all = others.into_iter().chain(GATHERS);
    let worlds = all.flat_map(|schedule: Schedule| (1..=4).map(move |world| (schedule, world)));
    let tiles = worlds.flat_map(|(schedule, world)| TILES.map(|tile| (schedule, world, tile)));
    let all = tiles.flat_map(|(schedule, world, tile)| {
        let program = schedule();
        let variant = variant_of(&program, world, tile);
        KINDS.map(|scales| {
            let variant = variant.clone().scales(scales);
            (Probes::default(), program.clone(), variant)
        })
    });
    let pieces = of_pieces().flat_map(|(program, variants)| {
        variants.map(|variant| (Probes::default(), program.clone(), variant))
    });
    all.chain(pieces)
}

/// What is compiled ahead has a kernel.
#[test]
fn all_have_kernels() {
    let all: Vec<_> = of_all().collect();
    // Of 8 schedules in 4 worlds, two tiles and all kinds; a whole step and pieces.
    assert_eq!(all.len(), 8 * 4 * 2 * KINDS.len() + 2 * PIECES.len());
    // A number that divides none of the matrix's, so that the sample has some of each.
    let each = if wide() { 1 } else { 19 };
    in_parallel(all.len().div_ceil(each), |at| {
        let (_, program, variant) = &all[at * each];
        checked(program, variant);
    });
}
