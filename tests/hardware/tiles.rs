//! The knobs of the GEMM itself: every sort of tile on ragged shapes, against the f64 reference.

use crate::case::{Case, Device, Fill, References, checked, on};
use crate::gpus;
use crate::parallel::in_parallel;
use crate::right::JITTER;
use crate::wide::{in_turn, wide};
use counterflow::codegen::program::Setting::{self, One, Pair};
use counterflow::jit::Probes;
use counterflow::{Dtype, Layout, Program, Shape, Variant, schedules};

type Knobs = &'static [(&'static str, Setting)];

/// Tiles with what else is chosen.
const TILES: [((u32, u32), Knobs); 31] = [
    ((200, 256), &[]),
    ((256, 192), &[]),
    ((128, 224), &[]),
    ((128, 144), &[]),
    ((128, 96), &[]),
    ((128, 16), &[]),
    ((256, 128), &[]),
    ((256, 144), &[]),
    ((256, 176), &[]),
    ((128, 160), PING_PONG),
    ((128, 112), PING_PONG),
    ((128, 96), PING_PONG),
    ((64, 64), &[]),
    ((64, 32), &[]),
    ((64, 256), &[]),
    ((8, 64), &[]),
    ((16, 64), &[]),
    ((32, 128), &[]),
    ((208, 128), &[]),
    ((176, 256), &[]),
    ((104, 128), &[]),
    ((80, 128), &[]),
    ((248, 64), PING_PONG),
    ((144, 128), PING_PONG),
    ((72, 256), PING_PONG),
    ((96, 192), PING_PONG),
    ((208, 128), &[("gemm.cluster", Pair(2, 1))]),
    ((80, 128), &[("gemm.cluster", Pair(1, 2))]),
    ((128, 256), &[("gemm.cluster", Pair(2, 1))]),
    ((128, 192), &[("gemm.cluster", Pair(1, 2))]),
    (
        (128, 144),
        &[("gemm.cluster", Pair(2, 1)), ("gemm.ping_pong", One(1))],
    ),
];
pub const NONE: Probes = Probes {
    jitter: None,
    trace: false,
};
const PING_PONG: Knobs = &[("gemm.ping_pong", One(1))];
const SIZES: [(u32, u32); 5] = [(8, 8), (264, 72), (1032, 1000), (2056, 520), (256, 2048)];
pub const ROWS: [u32; 6] = [1, 7, 127, 129, 1000, 2049];
/// Where columns of M are lines of memory, they are whole 16 bytes.
const EVEN: [u32; 6] = [8, 56, 120, 136, 1000, 2056];
/// Of the last tile's rows, as of its columns, some partial boxes exist: one of them, a part of one, all but one of a half.
pub const RAGGED: [u32; 9] = [129, 1, 7, 8, 9, 65, 100, 200, 257];
const RAGGED_EVEN: [u32; 5] = [136, 8, 72, 200, 264];
const RAGGED_SIZES: [(u32, u32); 2] = [(8, 256), (1096, 520)];
/// Operands that are MN-major, most in blocks that the tile does not fill.
const LAID_OUT: [(Layout, (u32, u32), Knobs); 22] = [
    (Layout::Nn, (128, 224), &[]),
    (Layout::Nn, (128, 144), PING_PONG),
    (Layout::Nn, (16, 64), &[]),
    (Layout::Nn, (208, 128), &[]),
    (Layout::Nn, (80, 128), &[("gemm.cluster", Pair(1, 2))]),
    (Layout::Nn, (144, 128), PING_PONG),
    (Layout::Nn, (96, 192), PING_PONG),
    (Layout::Nn, (128, 128), &[("gemm.cluster", Pair(1, 2))]),
    (
        Layout::Nn,
        (128, 144),
        &[("gemm.cluster", Pair(1, 2)), ("gemm.ping_pong", One(1))],
    ),
    (Layout::Tn, (256, 144), &[]),
    (Layout::Tn, (128, 160), PING_PONG),
    (Layout::Tn, (8, 64), &[]),
    (Layout::Tn, (200, 128), &[]),
    (Layout::Tn, (96, 128), PING_PONG),
    // Whose CTAs each load some of the K of every block.
    (Layout::Nn, (128, 144), &[("gemm.cluster", Pair(2, 1))]),
    (Layout::Nn, (208, 128), &[("gemm.cluster", Pair(2, 1))]),
    (
        Layout::Nn,
        (128, 128),
        &[("gemm.cluster", Pair(2, 1)), ("gemm.ping_pong", One(1))],
    ),
    (Layout::Tn, (128, 192), &[("gemm.cluster", Pair(2, 1))]),
    (Layout::Tn, (256, 144), &[("gemm.cluster", Pair(1, 2))]),
    (Layout::Tn, (176, 128), &[("gemm.cluster", Pair(1, 2))]),
    (Layout::Tn, (8, 64), &[("gemm.cluster", Pair(1, 2))]),
    (
        Layout::Tn,
        (128, 96),
        &[("gemm.cluster", Pair(1, 2)), ("gemm.ping_pong", One(1))],
    ),
];

/// CTAs that split the K of a tile: as many subtiles each, or not; cooperative and in ping-pong.
const SPLIT: [(Layout, (u32, u32), Knobs); 32] = [
    (Layout::Nt, (64, 64), BY_2),
    (Layout::Nt, (64, 64), BY_3),
    (Layout::Nt, (64, 64), BY_4),
    (Layout::Nt, (64, 128), BY_3),
    (Layout::Nt, (16, 64), BY_2),
    (Layout::Nt, (24, 64), BY_3),
    (Layout::Nt, (32, 64), BY_4),
    (Layout::Nt, (208, 128), BY_2),
    (Layout::Nt, (208, 128), BY_4),
    (Layout::Nt, (144, 256), BY_2),
    (Layout::Nt, (80, 128), BY_2),
    (Layout::Nt, (80, 128), BY_3),
    (
        Layout::Nt,
        (96, 128),
        &[("gemm.ping_pong", One(1)), ("gemm.split", One(2))],
    ),
    (Layout::Nn, (208, 128), BY_2),
    (Layout::Nn, (32, 64), BY_3),
    (Layout::Tn, (80, 128), BY_4),
    (Layout::Nt, (128, 128), BY_2),
    (Layout::Nt, (128, 128), BY_3),
    (Layout::Nt, (128, 64), BY_4),
    (Layout::Nt, (128, 96), BY_2),
    (Layout::Nt, (128, 144), BY_2),
    (Layout::Nt, (128, 160), BY_2),
    (Layout::Nt, (128, 160), BY_4),
    (Layout::Nt, (128, 192), BY_4),
    (Layout::Nt, (128, 256), BY_2),
    (Layout::Nt, (256, 64), BY_2),
    (
        Layout::Nt,
        (128, 96),
        &[("gemm.ping_pong", One(1)), ("gemm.split", One(2))],
    ),
    (Layout::Nn, (64, 64), BY_3),
    (Layout::Nn, (128, 128), BY_2),
    (Layout::Nn, (128, 160), BY_2),
    (Layout::Tn, (64, 128), BY_2),
    (Layout::Tn, (128, 64), BY_3),
];

const BY_2: Knobs = &[("gemm.split", One(2))];
const BY_3: Knobs = &[("gemm.split", One(3))];
const BY_4: Knobs = &[("gemm.split", One(4))];
/// A step each for four; steps that three do not divide, the last one short; so many tiles that each cluster has several,
/// with fewer steps than stages, and with more.
const DEEP: [(u32, u32); 4] = [(8, 256), (264, 1096), (2056, 520), (1544, 1608)];

fn variant(dtype: Dtype, tile: (u32, u32), knobs: Knobs) -> Variant {
    let variant = Variant::new(1).dtype(dtype).set("tiles", tile);
    let set = |variant: Variant, (name, value): &(&str, Setting)| variant.set(name, *value);
    knobs.iter().fold(variant, set)
}

/// A kernel, for sizes N by K, for those M, and what it is given.
type Run = (Variant, &'static [(u32, u32)], &'static [u32], Fill);

fn kernels() -> Vec<Run> {
    let bf16 = TILES.map(|(tile, knobs)| {
        let variant = variant(Dtype::Bf16, tile, knobs);
        (variant, &SIZES[..], &ROWS[..], Fill::Uniform(7))
    });
    let f16 = [
        ((128, 160), PING_PONG),
        ((128, 224), &[]),
        ((208, 128), &[]),
        ((80, 128), PING_PONG),
    ];
    let f16 = f16.map(|(tile, knobs)| {
        let variant = variant(Dtype::F16, tile, knobs);
        (variant, &SIZES[2..3], &ROWS[..], Fill::Integers(7))
    });
    let laid_out = LAID_OUT.map(|(layout, tile, knobs)| {
        let variant = variant(Dtype::Bf16, tile, knobs).layout(layout);
        (variant, &SIZES[1..4], &EVEN[..], Fill::Uniform(7))
    });
    bf16.into_iter()
        .chain(f16)
        .chain(laid_out)
        .chain(split())
        .collect()
}

fn split() -> impl Iterator<Item = Run> {
    let exact = [(Layout::Nt, (64, 64), BY_3), (Layout::Nt, (128, 192), BY_2)];
    let runs = SPLIT.into_iter().map(|kind| (kind, Fill::Uniform(7)));
    let runs = runs.chain(exact.map(|kind| (kind, Fill::Integers(7))));
    runs.map(|((layout, tile, knobs), fill)| {
        let variant = variant(Dtype::Bf16, tile, knobs).layout(layout);
        (variant, &DEEP[..], &EVEN[..], fill)
    })
}

/// All of them, for what compiles them ahead.
pub fn variants() -> impl Iterator<Item = (Program, Variant)> {
    let alone = kernels().into_iter();
    let alone = alone.map(|(variant, ..)| (schedules::gemm(), variant));
    let alone = alone.chain(staggered());
    alone.chain(FUSED.map(|(schedule, tile, knobs)| (schedule(), fused(tile, knobs))))
}

/// Of two ranks.
fn fused(tile: (u32, u32), knobs: Knobs) -> Variant {
    Variant {
        world: 2,
        ..variant(Dtype::Bf16, tile, knobs)
    }
}

/// Tiles that warpgroups end with staggered epilogues.
fn staggered() -> impl Iterator<Item = (Program, Variant)> {
    let kinds = [
        (Dtype::Bf16, Layout::Nt, (200, 256)),
        (Dtype::F16, Layout::Nn, (200, 256)),
        (Dtype::Bf16, Layout::Nt, (256, 192)),
        (Dtype::F16, Layout::Tn, (256, 192)),
        (Dtype::Bf16, Layout::Nn, (256, 144)),
        (Dtype::F16, Layout::Tn, (256, 144)),
    ];
    kinds.into_iter().map(|(dtype, layout, tile)| {
        let variant = variant(dtype, tile, &[]).layout(layout);
        (schedules::gemm(), variant)
    })
}

/// So many tiles that most CTAs have two or three, of one step, of as many as stages, of more.
const SHALLOW: [(u32, u32); 5] = [(4104, 8), (4104, 72), (3080, 136), (3080, 200), (4104, 520)];
const TALL: [u32; 2] = [4096, 3304];

/// Runs them all, then compares every launch; a line of the table. False without a GPU.
pub fn right(
    ranks: u32,
    program: &Program,
    variant: &Variant,
    (sizes, rows): (&[(u32, u32)], &[u32]),
    fill: Fill,
    probes: Probes,
    references: &References,
) -> bool {
    let Some(world) = gpus::world(ranks) else {
        return false;
    };
    let device = Device::gpus(&world, probes, 0);
    let most = rows.iter().copied().max().unwrap_or(0);
    let ran: Vec<_> = (sizes.iter())
        .map(|(n, k)| {
            let shape = |m: &u32| Shape::new(*m, *n, *k).up_to(most);
            let shapes: Vec<_> = rows.iter().map(shape).collect();
            let case = on(&device, program, variant, &shapes);
            let outcome = case.run(&device, fill);
            (case, outcome)
        })
        .collect();
    let told = world.told();
    drop(world);
    let launches = ran.len() * rows.len();
    let worst = in_parallel(launches, |index| {
        let (case, outcome) = &ran[index / rows.len()];
        references.compare(case, outcome, index % rows.len(), fill)
    });
    println!(
        "  {:13} {:32} {launches:5} launches right, {variant}: at most {:.0} % of what rounding allows",
        program.name,
        told,
        worst.into_iter().fold(0.0, f64::max) * 100.0
    );
    true
}

#[test]
fn every_sort_of_tile_agrees_with_the_reference_on_ragged_shapes() {
    let known = References::default();
    for (variant, sizes, rows, fill) in kernels() {
        let program = schedules::gemm();
        if !right(1, &program, &variant, (sizes, rows), fill, NONE, &known) {
            return;
        }
    }
}

/// Partial boxes of tiles that are not whole: alone, in ping-pong, in clusters, with shared steps.
#[test]
fn every_sort_of_tile_agrees_where_partial_boxes_are_left_out() {
    let known = References::default();
    for (variant, _, _, fill) in kernels() {
        let rows = match variant.layout {
            Layout::Nt | Layout::Nn => &RAGGED[..],
            Layout::Tn => &RAGGED_EVEN,
        };
        let sizes = (&RAGGED_SIZES[..], rows);
        let program = schedules::gemm();
        if !right(1, &program, &variant, sizes, fill, NONE, &known) {
            return;
        }
    }
}

/// Kernels with pauses wherever only luck could order anything, for what compiles them ahead.
pub fn jittered() -> impl Iterator<Item = (Program, Variant)> {
    sending().chain(staggered())
}

/// Whose CTAs send each other sums, or load parts of blocks for each other.
fn sending() -> impl Iterator<Item = (Program, Variant)> {
    let kinds = [
        ((64, 64), BY_3),
        ((128, 128), BY_2),
        ((128, 160), BY_2),
        ((128, 96), BY_3),
        ((64, 64), BY_4),
        ((128, 192), BY_2),
        ((208, 128), BY_2),
        ((80, 128), BY_3),
        ((24, 64), BY_3),
    ];
    let laid_out = [
        (Layout::Nn, (128, 160), BY_2),
        (Layout::Nn, (128, 144), &[("gemm.cluster", Pair(2, 1))]),
        (Layout::Tn, (176, 128), &[("gemm.cluster", Pair(1, 2))]),
        (
            Layout::Tn,
            (128, 96),
            &[("gemm.cluster", Pair(1, 2)), ("gemm.ping_pong", One(1))],
        ),
    ];
    let kinds = kinds.map(|(tile, knobs)| (Layout::Nt, tile, knobs));
    kinds
        .into_iter()
        .chain(laid_out)
        .map(|(layout, tile, knobs)| {
            let variant = variant(Dtype::Bf16, tile, knobs).layout(layout);
            (schedules::gemm(), variant)
        })
}

#[test]
fn what_ctas_send_each_other_agrees_with_pauses() {
    for (program, variant) in sending() {
        let sizes = (&DEEP[1..], &EVEN[..]);
        if !right(
            1,
            &program,
            &variant,
            sizes,
            Fill::Integers(7),
            JITTER,
            &References::default(),
        ) {
            return;
        }
    }
}

#[test]
fn what_warpgroups_hand_on_from_tile_to_tile_agrees_with_and_without_pauses() {
    let known = References::default();
    for (program, variant) in staggered() {
        for probes in [NONE, JITTER] {
            let (sizes, fill) = ((&SHALLOW[..], &TALL[..]), Fill::Integers(7));
            if !right(1, &program, &variant, sizes, fill, probes, &known) {
                return;
            }
        }
    }
}

/// The emulator sums each CTA's steps by themselves, too.
#[test]
fn shared_steps_agree_with_the_reference_without_a_gpu() {
    let known = References::default();
    let cases: Vec<_> = split().collect();
    in_parallel(cases.len(), |case| {
        let (variant, sizes, rows, fill) = &cases[case];
        let built = checked(&schedules::gemm(), variant);
        // Without `WIDE` one of these sizes, in turn.
        for (n, k) in in_turn([sizes[0], sizes[1]], case) {
            let rows = &rows[..if wide() { 4 } else { 2 }];
            let most = rows.iter().copied().max().unwrap_or(1);
            let shapes: Vec<_> = rows
                .iter()
                .map(|m| Shape::new(*m, n, k).up_to(most))
                .collect();
            let case = Case::of(built.clone(), &shapes, 1);
            let outcome = case.run(&Device::Cpu, *fill);
            for launch in 0..shapes.len() {
                known.compare(&case, &outcome, launch, *fill);
            }
        }
    });
}

type Fused = (fn() -> Program, (u32, u32), Knobs);

/// Kernels that move data, too.
const FUSED: [Fused; 12] = [
    (schedules::ag_gemm, (128, 224), &[]),
    (schedules::ag_gemm, (256, 128), &[]),
    (schedules::ag_gemm, (128, 160), PING_PONG),
    (schedules::ag_gemm_ring, (128, 128), PING_PONG),
    (schedules::bulk, (128, 144), PING_PONG),
    (schedules::gemm_rs, (128, 160), &[]),
    (schedules::gemm_rs, (256, 128), &[]),
    (schedules::gemm_ar, (128, 160), &[]),
    (schedules::ag_gemm, (208, 128), &[]),
    (schedules::ag_gemm, (48, 128), PING_PONG),
    (schedules::gemm_rs, (144, 128), &[]),
    (schedules::gemm_ar, (80, 128), &[]),
];

#[test]
fn fused_kernels_agree_in_the_same_tiles() {
    for (schedule, tile, knobs) in FUSED {
        let variant = fused(tile, knobs);
        for (size, rows) in [((264, 1096), &ROWS[..]), ((136, 200), &RAGGED)] {
            let sizes = (&[size][..], rows);
            if !right(
                2,
                &schedule(),
                &variant,
                sizes,
                Fill::Uniform(7),
                NONE,
                &References::default(),
            ) {
                return;
            }
        }
    }
}
