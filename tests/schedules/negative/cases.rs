//! All cases, each with its rule and the world that shows it: schedules, and kernels of which something was taken away
//! that lowering inferred.

use super::{
    accumulated, all_to_all, attribution, bounds, columns, contents, coverage, gathered, planes,
    progress, race, reuse, slabs, sums,
};
use counterflow::codegen::dtype::Dtype;
use counterflow::codegen::kernel::{Block, Kernel, Op, OpKind, Purpose};
use counterflow::codegen::lower::lower;
use counterflow::codegen::program::StoreMode;
use counterflow::codegen::variant::Scales;
use counterflow::{Arch, Program, Rule, Variant};

/// A broken kernel, with the world that shows it.
pub struct Case {
    pub name: &'static str,
    pub rule: Rule,
    pub world: u32,
    pub kernel: Kernel,
}

pub fn small(program: &Program, world: u32) -> Kernel {
    lowered(program, Variant::new(world))
}

/// The same over FP8, with such scales, which travel with the rows of `x`.
pub fn scaled(program: &Program, world: u32, scales: Scales) -> Kernel {
    let variant = Variant::new(world).dtype(Dtype::E4M3);
    lowered(program, variant.scales(scales))
}

fn lowered(program: &Program, variant: Variant) -> Kernel {
    let mut variant = variant.arch(Arch::Cpu);
    for (name, setting) in [("tiles", (4, 8).into()), ("chunks", 3.into())] {
        if program.tunables.iter().any(|tunable| tunable.name == name) {
            variant.choices.insert(name.into(), setting);
        }
    }
    lower(program, &variant).unwrap_or_else(|error| panic!("{}: {error}", program.name))
}

fn schedules() -> Vec<Case> {
    use Rule::{Attribution, Bounds, Coverage, Progress, Race, Reuse};
    type Row = (fn() -> Program, Rule, u32);
    let rows: [Row; 85] = [
        (progress::ring_backwards, Progress, 4),
        (progress::wants_two, Progress, 3),
        (progress::mine_first, Progress, 3),
        (progress::done_before_sum, Progress, 3),
        (progress::adds_before_own, Progress, 3),
        (race::no_wait, Race, 3),
        (race::wait_after_dot, Race, 3),
        (race::signal_first, Race, 3),
        (race::pull_signal_first, Race, 3),
        (race::signals_apart, Race, 3),
        (race::ring_no_wait, Race, 4),
        (race::ring_too_short, Race, 4),
        (race::sum_no_wait, Race, 3),
        (race::halves_of_two_orders, Race, 2),
        (slabs::one_slab_fewer, Race, 3),
        (slabs::slab_left_behind, Race, 3),
        (slabs::slab_left_behind_within, Race, 3),
        (slabs::slab_announced_early, Race, 3),
        (slabs::slabs_awaited_late, Race, 3),
        (slabs::slabs_of_another, Race, 3),
        (race::one_slot, Race, 4),
        (race::sum_everyone, Race, 3),
        (race::add_no_wait, Race, 3),
        (race::replaces, Race, 3),
        (coverage::without_mine, Coverage, 3),
        (coverage::every_third_left_out, Coverage, 2),
        (coverage::written_twice, Coverage, 2),
        (coverage::without_own_product, Coverage, 3),
        (coverage::summed_twice, Coverage, 3),
        (coverage::subtracted, Coverage, 3),
        (coverage::gelu_before_sum, Coverage, 3),
        (coverage::one_left_out, Coverage, 3),
        (coverage::bulk_one_left_out, Coverage, 3),
        (accumulated::accumulated_twice, Coverage, 2),
        (accumulated::accumulated_not_by_all, Coverage, 2),
        (accumulated::added_to_nothing, Coverage, 2),
        (sums::mine_twice, Coverage, 3),
        (sums::ring_mine_twice, Coverage, 3),
        (sums::one_of_two_products, Coverage, 3),
        (sums::accumulated_mine_twice, Coverage, 2),
        (sums::bias_in_parts, Coverage, 3),
        (sums::residual_in_parts, Coverage, 3),
        (sums::constant_in_adds, Coverage, 3),
        (sums::accumulated_bias, Coverage, 2),
        (sums::input_subtracted, Coverage, 3),
        (sums::exp_of_nothing, Coverage, 3),
        (sums::accumulated_function, Coverage, 2),
        (sums::gathers_another, Coverage, 3),
        (sums::gathers_another_by_scratch, Coverage, 3),
        (sums::gathers_into_another, Coverage, 3),
        (all_to_all::slots_turned, Coverage, 3),
        (all_to_all::one_not_sent_to, Coverage, 3),
        (all_to_all::sent_with_mine, Coverage, 3),
        (all_to_all::one_slot_for_all, Race, 3),
        (all_to_all::exchange_not_awaited, Reuse, 3),
        (gathered::gathered_untold, Reuse, 3),
        (gathered::gathered_told_early, Reuse, 3),
        (gathered::gathered_by_all_but_one, Coverage, 3),
        (gathered::gather_not_awaited, Reuse, 3),
        (gathered::gathers_anothers_rows, Coverage, 3),
        (gathered::gathers_before_the_function, Coverage, 3),
        (gathered::gathers_another_constant, Coverage, 3),
        (gathered::gathered_read_at_the_start, Race, 3),
        (gathered::gathered_used_unawaited, Race, 3),
        (gathered::gathered_used_by_another_wait, Race, 3),
        (gathered::gathered_sent_unready, Race, 3),
        (gathered::gathered_passed_on_early, Race, 3),
        (gathered::gathered_twice, Coverage, 3),
        (gathered::gathered_by_others_only, Coverage, 3),
        (contents::gathers_two_constants_by_scratch, Coverage, 3),
        (contents::gathers_two_added_constants, Coverage, 3),
        (contents::gathers_products_of_two_slots, Coverage, 3),
        (columns::shards_not_awaited, Race, 3),
        (columns::another_shard_awaited, Race, 3),
        (columns::without_my_shard, Coverage, 3),
        (columns::a_shard_never_sent, Progress, 3),
        (reuse::bulk_no_wait, Reuse, 3),
        (reuse::done_first, Reuse, 3),
        (attribution::start_counted_together, Attribution, 4),
        (bounds::ring_no_wrap, Bounds, 3),
        (bounds::fewer_than_none, Bounds, 3),
        (bounds::step_of_nothing, Bounds, 3),
        (bounds::no_partner, Bounds, 5),
        (bounds::order_outside, Bounds, 3),
        (bounds::partial_at_home, Bounds, 3),
    ];
    // They lose a scale.
    let of_planes: [Row; 5] = [
        (planes::scales_not_sent, Coverage, 3),
        (planes::scales_behind_the_signal, Race, 3),
        (planes::scales_not_awaited, Race, 3),
        (planes::scales_of_other_rows, Race, 3),
        (planes::scales_sent_twice, Coverage, 3),
    ];
    let case = |(program, rule, world): Row, scales: Option<Scales>| {
        let program = program();
        let kernel = match scales {
            Some(scales) => scaled(&program, world, scales),
            None => small(&program, world),
        };
        let blocks = scales.is_some_and(|scales| scales.blocks().is_some());
        let name = match blocks {
            true => format!("{}_of_blocks", program.name),
            false => program.name,
        };
        // Names live as long as the test.
        Case {
            name: name.leak(),
            rule,
            world,
            kernel,
        }
    };
    let mut all: Vec<Case> = rows.into_iter().map(|row| case(row, None)).collect();
    for scales in [Scales::PerRow, Scales::Blocks1d2d] {
        all.extend(of_planes.map(|row| case(row, Some(scales))));
    }
    all
}

/// Removes every op (with what it encloses) that `gone` picks, from items and units of work alike.
fn without_ops(kernel: &mut Kernel, gone: impl Fn(&Kernel, &Op) -> bool) {
    fn ops(kernel: &Kernel, body: Vec<Op>, gone: &impl Fn(&Kernel, &Op) -> bool) -> Vec<Op> {
        let kept = body.into_iter().filter(|op| !gone(kernel, op));
        kept.map(|op| Op {
            kind: match op.kind {
                OpKind::ForRanks { var, order, body } => OpKind::ForRanks {
                    var,
                    order,
                    body: ops(kernel, body, gone),
                },
                other => other,
            },
            ..op
        })
        .collect()
    }
    fn blocks(
        kernel: &Kernel,
        body: Vec<Block>,
        gone: &impl Fn(&Kernel, &Op) -> bool,
    ) -> Vec<Block> {
        body.into_iter()
            .map(|block| match block {
                Block::ForRanks {
                    at,
                    var,
                    order,
                    body,
                } => Block::ForRanks {
                    at,
                    var,
                    order,
                    body: blocks(kernel, body, gone),
                },
                Block::Items {
                    at,
                    var,
                    partition,
                    shard,
                    order,
                    selection,
                    body,
                } => Block::Items {
                    at,
                    var,
                    partition,
                    shard,
                    order,
                    selection,
                    body: ops(kernel, body, gone),
                },
                Block::Once { body } => Block::Once {
                    body: ops(kernel, body, gone),
                },
                other => other,
            })
            .collect()
    }
    let mut roles = kernel.roles.clone();
    for role in &mut roles {
        role.body = blocks(kernel, std::mem::take(&mut role.body), &gone);
    }
    kernel.roles = roles;
}

fn credit(kernel: &Kernel, op: &Op) -> Option<Purpose> {
    match &op.kind {
        OpKind::Wait { cells, .. } | OpKind::Signal { cells, .. } => {
            Some(kernel.counters[cells.counter.index()].purpose)
                .filter(|purpose| purpose.is_credit())
        }
        _ => None,
    }
}

/// Every store of an item writes, where it added.
fn writes(kernel: &mut Kernel) {
    let items = kernel.roles.iter_mut().flat_map(|role| &mut role.body);
    for block in items {
        if let Block::Items { body, .. } = block {
            for op in body {
                if let OpKind::Store { mode, .. } = &mut op.kind {
                    *mode = StoreMode::Write;
                }
            }
        }
    }
}

/// What lowering inferred or refuses, taken away, moved or put back again.
fn kernels() -> Vec<Case> {
    use counterflow::schedules::{ag_gemm, ag_gemm_pull, gemm_rs, wgrad};
    let waits_for = |wanted: fn(&Purpose) -> bool| {
        move |kernel: &Kernel, op: &Op| {
            matches!(op.kind, OpKind::Wait { .. })
                && credit(kernel, op).as_ref().is_some_and(wanted)
        }
    };
    let ready = |purpose: &Purpose| matches!(purpose, Purpose::Ready(_));
    let free = |purpose: &Purpose| matches!(purpose, Purpose::Free(_));
    let returned = |purpose: &Purpose| matches!(purpose, Purpose::Returned(_));

    let mut no_ready_wait = small(&ag_gemm(), 3);
    without_ops(&mut no_ready_wait, waits_for(ready));
    let mut no_free_wait = small(&gemm_rs(), 3);
    without_ops(&mut no_free_wait, waits_for(free));
    let mut no_return_wait = small(&ag_gemm_pull(), 3);
    without_ops(&mut no_return_wait, waits_for(returned));
    let mut no_join = small(&gemm_rs(), 3);
    for role in &mut no_join.roles {
        role.body.retain(|block| *block != Block::Join);
    }
    let mut never_granted = small(&gemm_rs(), 3);
    without_ops(&mut never_granted, |kernel, op| {
        matches!(op.kind, OpKind::Signal { .. }) && credit(kernel, op).as_ref().is_some_and(free)
    });
    let mut overwritten = small(&wgrad(), 3);
    writes(&mut overwritten);
    let case = |name, rule, kernel| Case {
        name,
        rule,
        world: 3,
        kernel,
    };
    vec![
        case("no_ready_wait", Rule::Reuse, no_ready_wait),
        case("no_free_wait", Rule::Reuse, no_free_wait),
        case("no_return_wait", Rule::Reuse, no_return_wait),
        case("no_join", Rule::Reuse, no_join),
        case("never_granted", Rule::Reuse, never_granted),
        case("overwritten", Rule::Coverage, overwritten),
    ]
}

/// All of them.
pub fn cases() -> Vec<Case> {
    schedules().into_iter().chain(kernels()).collect()
}
