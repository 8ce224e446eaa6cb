//! One body for every schedule: results are right in worlds 1 to 4, for both types and tiles, for shapes that nothing
//! divides, with new data and a new M at every launch. The emulator runs it on small shapes.

use crate::case::{Case, Device, Fill, Kind, in_parallel, on, variant_of};
use crate::gpus;
use crate::strangers::{STRANGERS, Stranger, gated_at_the_end, gated_layers};
use crate::tiles::RAGGED;
use crate::wide::wide;
use counterflow::codegen::interp::Outcome;
use counterflow::jit::Probes;
use counterflow::{Dtype, Layout, Program, Shape, Variant};

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

pub const JITTER: Probes = Probes {
    jitter: Some(0x5eed),
    trace: false,
};

/// One row, less than a tile, one less than a tile, several tiles and a part: in every world some ranks have no rows.
const ROWS: [u32; 6] = [1000, 1, 4097, 7, 127, 4097];

fn shapes(rows: &[u32], (n, k): (u32, u32)) -> Vec<Shape> {
    let most = rows.iter().copied().max().unwrap_or(0);
    let shape = |m: &u32| Shape::new(*m, n, k).up_to(most);
    rows.iter().map(shape).collect()
}

/// No tile divides the columns, no step the depth; the first has two units of a copied piece, the second one.
const SIZES: [(u32, u32); 2] = [(264, 1096), (520, 72)];

/// What a test runs in one world.
struct Matrix {
    kinds: &'static [Kind],
    sizes: &'static [(u32, u32)],
    rows: &'static [u32],
    fills: &'static [fn(u64) -> Fill],
}

impl Matrix {
    /// Every case on a device.
    fn run(
        &self,
        device: &Device<'_>,
        schedule: Schedule,
        ranks: u32,
    ) -> Vec<(Case, Fill, Outcome)> {
        let mut ran = Vec::new();
        for kind in self.kinds {
            for size in self.sizes {
                let shapes = shapes(self.rows, *size);
                for fill in self.fills {
                    let program = schedule();
                    let variant = variant_of(&program, ranks, *kind);
                    let case = on(device, &program, &variant, &shapes);
                    let fill = fill(u64::from(ranks) << 16 | ran.len() as u64);
                    let outcome = case.run(device, fill);
                    ran.push((case, fill, outcome));
                }
            }
        }
        ran
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
        for ranks in worlds.iter().copied() {
            let Some(world) = gpus::world(ranks) else {
                return;
            };
            let device = Device::gpus(&world, probes, late);
            let (ran, told) = (self.run(&device, schedule, ranks), world.told());
            drop(world);
            self.compare(&ran, &format!("{told}, {what}"));
            for (case, fill, outcome) in ran.iter().filter(|(case, fill, _)| case.is_exact(*fill)) {
                let emulated = case.run(&Device::Cpu, *fill);
                for output in &outcome.outputs {
                    let same = emulated.output(output.launch, output.rank, output.tensor);
                    let name = &case.kernel.name;
                    assert_eq!(same, Some(output), "{name} differs from its emulation");
                }
            }
        }
    }
}

fn agrees(schedule: Schedule) {
    let matrix = Matrix {
        kinds: &KINDS,
        sizes: &SIZES,
        rows: &ROWS,
        fills: &[Fill::Uniform],
    };
    matrix.on_gpus(schedule, "random", (Probes::default(), 0));
}

mod agrees {
    crate::each_schedule!(super::agrees);
}

/// Chunks that end within a tile, of which some partial boxes exist: every sort of end in every world.
/// Whether it has a kernel in layout nn: `#[comm]` CTAs do not copy a weight's rows that lie as columns.
fn has_nn(schedule: Schedule) -> bool {
    schedule().name != "fsdp_gemm"
}

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
    };
    matrix.on_gpus(schedule, "nn", (Probes::default(), 0));
}

mod layout_nn {
    crate::each_schedule!(super::layout_nn: gemm, swiglu, ag_gemm, ag_gemm_pull, ag_gemm_ring, ag_gemm_double_ring, ag_swiglu, experts, gemm_rs, gemm_rs_add, gemm_ar, gemm_ag, all_to_all, mlp, bulk, bulk_rs);
}

/// Columns of M are multiples of 16 bytes in every world.
fn layout_tn(schedule: Schedule) {
    let matrix = Matrix {
        kinds: &TN,
        sizes: &[(264, 1096)],
        rows: &[960, 96, 2016],
        fills: &[Fill::Uniform, Fill::Integers],
    };
    matrix.on_gpus(schedule, "tn", (Probes::default(), 0));
}

mod layout_tn {
    crate::each_schedule!(super::layout_tn: gemm, swiglu, experts, gemm_rs, gemm_rs_add, rs_ring, gemm_ar, gemm_ag, all_to_all, bulk, bulk_rs);
}

/// Small integers, whose sums are exact in any order: the same bits as the reference and the emulator.
fn same_bits(schedule: Schedule) {
    let matrix = Matrix {
        kinds: &KINDS,
        sizes: &[(264, 200)],
        rows: &[1, 1000, 127, 514],
        fills: &[Fill::Integers],
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
    };
    matrix.on_gpus(schedule, "jitter", (JITTER, 300));
}

mod jitter {
    crate::each_schedule!(super::jitter);
}

/// Strangers' schedules, with pauses and without, in every world that they are legal in.
pub fn strangers((schedule, worlds): Stranger) {
    let matrix = |rows, fills| Matrix {
        kinds: &JITTERED,
        sizes: &[(264, 1096)],
        rows,
        fills,
    };
    let plain = matrix(&[1000, 1, 4097, 7], &[Fill::Uniform, Fill::Integers]);
    plain.on_worlds(worlds, schedule, "stranger", (Probes::default(), 0));
    let jittered = matrix(&[514, 1, 1000, 2049], &[Fill::Integers]);
    jittered.on_worlds(worlds, schedule, "stranger, jitter", (JITTER, 300));
}

/// Their kernels, for what compiles them ahead.
pub fn of_strangers() -> impl Iterator<Item = (Probes, Program, Variant)> {
    let gated: [Stranger; 2] = [
        (gated_layers, &[1, 2, 3, 4, 5, 8]),
        (gated_at_the_end, &[1, 2]),
    ];
    let has_kernel = |(schedule, _): &Stranger| !outsiders::REFUSED.contains(&&*schedule().name);
    let outsiders = crate::outsiders::ALL.into_iter().filter(has_kernel);
    let gathered = crate::gatherers::ALL;
    let all = STRANGERS
        .into_iter()
        .chain(gated)
        .chain(gathered)
        .chain(outsiders);
    let each = all.flat_map(|(schedule, worlds)| {
        let kinds = worlds
            .iter()
            .flat_map(|world| JITTERED.map(|kind| (*world, kind)));
        kinds.map(move |(world, kind)| {
            let program = schedule();
            let variant = variant_of(&program, world, kind);
            (program, variant)
        })
    });
    each.flat_map(|(program, variant)| {
        [Probes::default(), JITTER].map(|probes| (probes, program.clone(), variant.clone()))
    })
}

#[test]
fn strangers_exchange() {
    strangers(STRANGERS[0]);
}

#[test]
fn strangers_double_ring() {
    strangers(STRANGERS[1]);
}

#[test]
fn strangers_two_hops() {
    strangers(STRANGERS[2]);
}

#[test]
fn strangers_odd_owners_first() {
    strangers(STRANGERS[3]);
}

#[test]
fn strangers_even_ranks_rectify() {
    strangers(STRANGERS[4]);
}

#[test]
fn strangers_halves_by_turns() {
    strangers(STRANGERS[5]);
}

#[test]
fn strangers_acknowledged() {
    strangers(STRANGERS[6]);
}

#[test]
fn strangers_one_cell_a_tile() {
    strangers(STRANGERS[7]);
}

#[test]
fn strangers_sum_of_inputs() {
    strangers(STRANGERS[8]);
}

#[test]
fn strangers_gathered_and_rectified() {
    strangers(STRANGERS[9]);
}

#[test]
fn strangers_taken_apart() {
    strangers(STRANGERS[10]);
}

#[test]
fn strangers_pushed_by_spare_warps() {
    strangers(STRANGERS[11]);
}

#[test]
fn strangers_by_way_of_scratch() {
    strangers(STRANGERS[12]);
}

#[test]
fn strangers_two_half_rings() {
    strangers(STRANGERS[13]);
}

#[test]
fn strangers_two_rings() {
    strangers(STRANGERS[14]);
}

#[test]
fn strangers_two_pulls() {
    strangers(STRANGERS[15]);
}

#[test]
fn strangers_pull_beside_push() {
    strangers(STRANGERS[16]);
}

#[test]
fn strangers_push_beside_pull() {
    strangers(STRANGERS[17]);
}

#[test]
fn strangers_two_layers() {
    strangers(STRANGERS[18]);
}

#[test]
fn strangers_two_layers_over_ranks() {
    strangers(STRANGERS[19]);
}

#[test]
fn strangers_two_experts() {
    strangers(STRANGERS[20]);
}

#[test]
fn strangers_rows_by_owner() {
    strangers(STRANGERS[21]);
}

#[test]
fn strangers_added_beside() {
    strangers(STRANGERS[22]);
}

#[test]
fn strangers_added_around() {
    strangers(STRANGERS[23]);
}

#[test]
fn strangers_one_shot() {
    strangers(STRANGERS[24]);
}

#[test]
fn strangers_reduce_scatter_alone() {
    strangers(STRANGERS[30]);
}

#[test]
fn strangers_shards_of_two_layers() {
    strangers(STRANGERS[31]);
}

#[test]
fn strangers_two_slots() {
    strangers(STRANGERS[32]);
}

#[test]
fn strangers_dispatched_alone() {
    strangers(STRANGERS[33]);
}

#[test]
fn strangers_gathered_alone() {
    strangers(STRANGERS[34]);
}

#[test]
fn strangers_halves_by_role() {
    strangers(STRANGERS[25]);
}

#[test]
fn strangers_odd_tiles_first() {
    strangers(STRANGERS[26]);
}

#[test]
fn strangers_passed_in_turns() {
    strangers(STRANGERS[27]);
}

#[test]
fn strangers_rectified_in_part() {
    strangers(STRANGERS[28]);
}

#[test]
fn strangers_half_as_they_come() {
    strangers(STRANGERS[29]);
}

#[test]
fn strangers_gated_layers() {
    strangers((gated_layers, &[1, 2, 3, 4, 5, 8]));
}

#[test]
fn strangers_gated_at_the_end() {
    strangers((gated_at_the_end, &[1, 2]));
}

/// What readers of papers write, but for what has no kernel.
mod outsiders {
    use super::{Stranger, strangers};
    use crate::outsiders::ALL;

    /// Those that have none.
    pub const REFUSED: [&str; 1] = ["adapter"];

    fn run(name: &str) {
        let of = |(schedule, _): &Stranger| schedule().name == name;
        strangers(
            *ALL.iter()
                .find(|stranger| of(stranger))
                .expect("a schedule of that name"),
        );
    }

    #[test]
    fn micro_batches() {
        run("micro_batches");
    }

    #[test]
    fn expert_by_parity() {
        run("expert_by_parity");
    }

    #[test]
    fn adapter_in_two_loops() {
        run("adapter_in_two_loops");
    }

    #[test]
    fn owners_of_tiles() {
        run("owners_of_tiles");
    }

    #[test]
    fn doubling() {
        run("doubling");
    }

    #[test]
    fn gated_output() {
        run("gated_output");
    }

    #[test]
    fn pipeline_stage() {
        run("pipeline_stage");
    }

    #[test]
    fn two_paths() {
        run("two_paths");
    }
}

/// Few and small, and ranks on one GPU: what the sanitizers watch.
fn small(schedule: Schedule) {
    let matrix = Matrix {
        kinds: &JITTERED,
        sizes: &[(136, 200)],
        rows: &[257, 1, 130],
        fills: &[Fill::Uniform],
    };
    for ranks in [1, 3] {
        let Some(world) = gpus::loopback(ranks) else {
            return;
        };
        let device = Device::gpus(&world, Probes::default(), 0);
        let (ran, told) = (matrix.run(&device, schedule, ranks), world.told());
        drop(world);
        matrix.compare(&ran, &format!("{told}, small"));
    }
}

mod small {
    crate::each_schedule!(super::small);
}

/// The same on emulated ranks; `tests/schedules` has every world from 1 to 8.
pub fn emulated_as(schedule: Schedule, kinds: &'static [Kind], rows: &'static [u32]) {
    let matrix = Matrix {
        kinds,
        sizes: &[(136, 72)],
        rows,
        fills: &[Fill::Uniform, Fill::Integers],
    };
    let worlds: &[u32] = if wide() { &[1, 2, 3, 4] } else { &[1, 3] };
    for ranks in worlds.iter().copied() {
        let ran = matrix.run(&Device::Cpu, schedule, ranks);
        let layout = kinds[0].2.name();
        matrix.compare(&ran, &format!("world {ranks} emulated, {layout}"));
    }
}

fn emulated(schedule: Schedule) {
    let kinds: [&[Kind]; 2] = if wide() {
        [&KINDS, &NN]
    } else {
        [&JITTERED, &NN[..1]]
    };
    let kinds = kinds.into_iter().take(if has_nn(schedule) { 2 } else { 1 });
    for kinds in kinds {
        emulated_as(schedule, kinds, &[300, 1, 127, 7]);
    }
}

mod emulated {
    crate::each_schedule!(super::emulated);
}

fn emulated_tn(schedule: Schedule) {
    emulated_as(schedule, &TN, &[288, 96]);
}

mod emulated_tn {
    crate::each_schedule!(super::emulated_tn: gemm, swiglu, experts, gemm_rs, gemm_rs_add, rs_ring, gemm_ar, gemm_ag, all_to_all, bulk, bulk_rs);
}

/// Kernels of strangers can be made ahead, also without a GPU.
#[test]
fn kernels_of_strangers_have_warps() {
    let gated = of_strangers().filter(|(_, program, _)| program.name.starts_with("gated"));
    let outsiders = of_strangers().filter(|(_, program, variant)| {
        variant.world == 4
            && crate::outsiders::ALL
                .iter()
                .any(|(it, _)| it().name == program.name)
    });
    for (_, program, variant) in gated.chain(outsiders) {
        crate::case::checked(&program, &variant);
    }
}
