//! Strangers' schedules on GPUs, and their kernels for what compiles them ahead.

use super::{JITTER, JITTERED, Matrix, PLAIN, outsiders, slabs, square};
use crate::case::{Fill, variant_of};
use crate::strangers::{STRANGERS, Stranger, gated_at_the_end, gated_layers};
use crate::wide::wide;
use counterflow::jit::Probes;
use counterflow::{Program, Variant};

/// Strangers' schedules, with pauses and without, in every world that they are legal in.
pub fn strangers((schedule, worlds): Stranger) {
    let matrix = |rows, fills| Matrix {
        kinds: &JITTERED,
        sizes: &[(264, 1096)],
        rows,
        fills,
        ..PLAIN
    };
    let plain = matrix(&[1000, 1, 2049, 7], &[Fill::Uniform, Fill::Integers]);
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
    let legal = |(schedule, _): &Stranger| !crate::newcomers::REFUSED.contains(&&*schedule().name);
    let newcomers = crate::newcomers::ALL.into_iter().filter(legal);
    let all = STRANGERS
        .into_iter()
        .chain(gated)
        .chain(gathered)
        .chain(outsiders)
        .chain(newcomers)
        .chain(super::handed::ALL)
        .chain(slabs::ALL)
        .chain([square::THROUGH_SCRATCH]);
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
    let jittered = each.flat_map(|(program, variant)| {
        [Probes::default(), JITTER].map(|probes| (probes, program.clone(), variant.clone()))
    });
    jittered.chain(square::kernels()).chain(slabs::kernels())
}

#[test]
fn exchange() {
    strangers(STRANGERS[0]);
}

#[test]
fn double_ring() {
    strangers(STRANGERS[1]);
}

#[test]
fn two_hops() {
    strangers(STRANGERS[2]);
}

#[test]
fn odd_owners_first() {
    strangers(STRANGERS[3]);
}

#[test]
fn even_ranks_rectify() {
    strangers(STRANGERS[4]);
}

#[test]
fn halves_by_turns() {
    strangers(STRANGERS[5]);
}

#[test]
fn acknowledged() {
    strangers(STRANGERS[6]);
}

#[test]
fn one_cell_a_tile() {
    strangers(STRANGERS[7]);
}

#[test]
fn sum_of_inputs() {
    strangers(STRANGERS[8]);
}

#[test]
fn gathered_and_rectified() {
    strangers(STRANGERS[9]);
}

#[test]
fn taken_apart() {
    strangers(STRANGERS[10]);
}

#[test]
fn pushed_by_spare_warps() {
    strangers(STRANGERS[11]);
}

#[test]
fn by_way_of_scratch() {
    strangers(STRANGERS[12]);
}

#[test]
fn two_half_rings() {
    strangers(STRANGERS[13]);
}

#[test]
fn two_rings() {
    strangers(STRANGERS[14]);
}

#[test]
fn two_pulls() {
    strangers(STRANGERS[15]);
}

#[test]
fn pull_beside_push() {
    strangers(STRANGERS[16]);
}

#[test]
fn push_beside_pull() {
    strangers(STRANGERS[17]);
}

#[test]
fn two_layers() {
    strangers(STRANGERS[18]);
}

#[test]
fn two_layers_over_ranks() {
    strangers(STRANGERS[19]);
}

#[test]
fn two_experts() {
    strangers(STRANGERS[20]);
}

#[test]
fn rows_by_owner() {
    strangers(STRANGERS[21]);
}

#[test]
fn added_beside() {
    strangers(STRANGERS[22]);
}

#[test]
fn added_around() {
    strangers(STRANGERS[23]);
}

#[test]
fn one_shot() {
    strangers(STRANGERS[24]);
}

#[test]
fn reduce_scatter_alone() {
    strangers(STRANGERS[30]);
}

#[test]
fn shards_of_two_layers() {
    strangers(STRANGERS[31]);
}

#[test]
fn two_slots() {
    strangers(STRANGERS[32]);
}

#[test]
fn dispatched_alone() {
    strangers(STRANGERS[33]);
}

#[test]
fn gathered_alone() {
    strangers(STRANGERS[34]);
}

#[test]
fn halves_by_role() {
    strangers(STRANGERS[25]);
}

#[test]
fn odd_tiles_first() {
    strangers(STRANGERS[26]);
}

#[test]
fn passed_in_turns() {
    strangers(STRANGERS[27]);
}

#[test]
fn rectified_in_part() {
    strangers(STRANGERS[28]);
}

#[test]
fn half_as_they_come() {
    strangers(STRANGERS[29]);
}

#[test]
fn layers_of_two_widths() {
    strangers(STRANGERS[35]);
}

#[test]
fn scattered_by_turns() {
    strangers(STRANGERS[38]);
}

#[test]
fn reduced_by_turns() {
    strangers(STRANGERS[39]);
}

#[test]
fn layers_of_gates() {
    strangers((gated_layers, &[1, 2, 3, 4, 5, 8]));
}

#[test]
fn gates_at_the_end() {
    strangers((gated_at_the_end, &[1, 2]));
}

/// Kernels of strangers can be made ahead, also without a GPU.
#[test]
fn kernels_of_strangers_have_warps() {
    let gated = of_strangers().filter(|(_, program, _)| program.name.starts_with("gated"));
    let outsiders = of_strangers().filter(|(_, program, variant)| {
        variant.world == 4
            && (crate::outsiders::ALL.iter())
                .chain(&crate::newcomers::ALL)
                .any(|(it, _)| it().name == program.name)
    });
    let all: Vec<_> = gated.chain(outsiders).collect();
    let each = if wide() { 1 } else { 23 };
    crate::parallel::in_parallel(all.len().div_ceil(each), |kernel| {
        let (_, program, variant) = &all[kernel * each];
        crate::case::checked(program, variant);
    });
}

#[test]
fn summed_by_everyone() {
    strangers(STRANGERS[36]);
}

#[test]
fn slots_for_peers() {
    strangers(STRANGERS[37]);
}
