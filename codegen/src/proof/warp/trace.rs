//! The words of a verdict: what went wrong, at which statement, and what to do.

use super::seen::By;
use super::simulator::{CALLER, Simulator, Touch};
use super::step::{Area, Box4, Kind};
use crate::diag::{Diagnostic, Rule};
use crate::kernel::Kernel;
use crate::program::Loc;
use crate::warp::View;

/// A finding about what an agent does now.
fn found(simulator: &Simulator<'_>, index: usize, rule: Rule) -> Diagnostic {
    Diagnostic::new(rule, simulator.here(index), simulator.now(index))
}

pub(super) fn shared_race(
    simulator: &Simulator<'_>,
    before: Touch<Area>,
    index: usize,
    fence: bool,
) -> Diagnostic {
    let earlier = format!(
        "{} {}",
        simulator.who(before.who),
        simulator.deed(simulator.step_of(before.step))
    );
    race(
        simulator,
        &earlier,
        index,
        fence
            .then_some("`fence_async_shared` after ordinary accesses, before the slot is released"),
    )
}

pub(super) fn global_race(
    simulator: &Simulator<'_>,
    before: Touch<Box4>,
    index: usize,
    fence: Option<By>,
) -> Diagnostic {
    let earlier = earlier(simulator, before);
    let fix = fence.map(|by| match by {
        By::Threads | By::Tma => {
            "`fence_async_global` after the wait on a counter, before TMA touches the data"
        }
        By::Multicast => {
            "`fence_alias` after the wait on a counter, before the memory of all ranks is touched at once"
        }
    });
    race(simulator, &earlier, index, fix)
}

/// Accesses by all lanes of a warp that nobody was told of.
pub(super) fn lanes_at_work(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    let who = simulator.who(simulator.agents[index].who);
    let (what, lacks, hint) = match simulator.agents[index].lanes.stores_parts() {
        true => (
            "store parts of tiles",
            "no meeting of the lanes comes after them",
            "`__syncwarp` after what all lanes do",
        ),
        false => (
            "access every rank's memory",
            "no fence between the memory's addresses, or no meeting of the lanes, comes after them",
            "`fence_alias`, then `__syncwarp`, after what all lanes do",
        ),
    };
    let at = simulator.here(index);
    Diagnostic::new(Rule::Race, at, format!("{who} ends while its lanes {what}"))
        .note(None, lacks)
        .hint(hint)
}

/// A lane may not have seen what its warp's first lane waited for.
pub(super) fn lanes_apart(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    found(simulator, index, Rule::Race)
        .note(
            None,
            "the first lane of its warp has waited for a counter, and the others have not met it since",
        )
        .hint("`__syncwarp` between the wait and what all lanes do")
}

/// Description of an earlier access, and of its agent.
fn earlier(simulator: &Simulator<'_>, before: Touch<Box4>) -> String {
    if before.step == CALLER {
        let what = simulator.box_name(&before.whereabouts);
        return format!("the caller fills or takes {what} between launches");
    }
    let deed = simulator.deed(simulator.step_of(before.step));
    format!("{} {deed}", simulator.who(before.who))
}

fn race(simulator: &Simulator<'_>, earlier: &str, index: usize, fence: Option<&str>) -> Diagnostic {
    let found = found(simulator, index, Rule::Race).note(None, earlier);
    if let Some(fix) = fence {
        found
            .note(
                None,
                "a barrier or a counter orders them, but no proxy fence",
            )
            .hint(fix)
    } else {
        found
            .note(None, "nothing orders these two")
            .hint("wait for a signal that the first one is complete")
    }
}

pub(super) fn twice(
    simulator: &Simulator<'_>,
    before: Touch<Box4>,
    index: usize,
    at: &Box4,
) -> Diagnostic {
    let _ = at;
    let earlier = format!(
        "{} {}",
        simulator.who(before.who),
        simulator.deed(simulator.step_of(before.step))
    );
    found(simulator, index, Rule::Coverage)
        .note(None, earlier)
        .note(
            None,
            "both write some of the same elements: a box reaches beyond its item",
        )
        .hint("a map whose rows end where the shard ends")
}

pub(super) fn spills(simulator: &Simulator<'_>, index: usize, at: &Box4, end: u32) -> Diagnostic {
    let side = match at.view {
        View::ColumnShards => "columns",
        View::Flat
        | View::Shards
        | View::SharedShards
        | View::SharedSlots
        | View::SharedSlotShards
        | View::SharedShard
        | View::SharedRows => "rows",
    };
    let shard = match at.view {
        View::Flat
        | View::Shards
        | View::ColumnShards
        | View::SharedShards
        | View::SharedSlotShards
        | View::SharedRows => at.shard,
        View::SharedSlots | View::SharedShard => at.rank,
    };
    let agent = &simulator.agents[index];
    let (lacks, hint) = match agent.steps[agent.at].node.is_part() {
        true => (
            "the part of the tile does not end there",
            "`shard_end`: the rows of the shard that the part is of",
        ),
        false => (
            "the map does not clip the box there",
            "a map of its own for the partial shard",
        ),
    };
    found(simulator, index, Rule::Bounds)
        .note(
            None,
            format!("shard {shard} ends after {end} {side}, and {lacks}"),
        )
        .hint(hint)
}

pub(super) fn before_the_wait(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    found(simulator, index, Rule::Race)
        .note(
            None,
            "this is a dependent launch, and nothing says that earlier launches are complete",
        )
        .hint("await earlier launches before every access to global memory")
}

pub(super) fn leaves_before_the_launches(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    let who = simulator.who(simulator.agents[index].who);
    Diagnostic::new(
        Rule::Race,
        simulator.here(index),
        format!("{who} ends while earlier launches may still run"),
    )
    .note(
        None,
        "the next launch waits for this one only, and would start although earlier ones still run",
    )
    .hint("every warp awaits earlier launches")
}

pub(super) fn dependent_launch(kernel: &Kernel) -> Diagnostic {
    Diagnostic::new(
        Rule::Progress,
        kernel.roles.first().map(|role| role.at),
        "a kernel that communicates starts before the previous launch has ended",
    )
    .hint("only kernels without counters, copies and CTAs that move data are dependent launches")
}

pub(super) fn leaves_early(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    let who = simulator.who(simulator.agents[index].who);
    Diagnostic::new(
        Rule::Race,
        simulator.here(index),
        format!("{who} ends while its stores may still read shared memory"),
    )
    .hint("wait for all groups of stores before the end")
}

pub(super) fn leaves_its_cluster(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    let who = simulator.who(simulator.agents[index].who);
    Diagnostic::new(
        Rule::Race,
        simulator.here(index),
        format!("{who} ends while another CTA of its cluster may still write its shared memory"),
    )
    .hint("wait for the whole cluster at the end")
}

pub(super) fn under_way(
    simulator: &Simulator<'_>,
    index: usize,
    step: (usize, usize),
) -> Diagnostic {
    let [who, other] = [index, step.0].map(|agent| simulator.who(simulator.agents[agent].who));
    Diagnostic::new(
        Rule::Race,
        simulator.here(index),
        format!("{who} ends while its cluster's shared memory may still change"),
    )
    .note(None, format!("{other} {}", simulator.deed(simulator.step_of(step))))
    .note(
        None,
        "nobody waits until this has landed in the other CTA: the cluster barrier at the end does not complete it",
    )
    .hint("wait for the barrier it completes on, or leave it out if nobody needs it")
}

pub(super) fn held_back(simulator: &Simulator<'_>, index: usize, waiting: &[usize]) -> Diagnostic {
    let agent = &simulator.agents[index];
    let (rank, cell, _) = agent.pending.unwrap_or_default();
    let message = format!(
        "{} holds back a signal of {} on rank {rank}",
        simulator.who(agent.who),
        simulator.cell_name(cell)
    );
    let mut found = Diagnostic::new(Rule::Progress, simulator.here(index), message)
        .note(None, simulator.now(index));
    let here = waiting.iter().find(|other| {
        simulator.agents[**other].who.rank == agent.who.rank
            && simulator.agents[**other].who.block == agent.who.block
    });
    if let Some(other) = here.filter(|other| **other != index) {
        found = found.note(None, simulator.now(*other));
    }
    found
        .note(None, "what it waits for may itself wait for that signal")
        .hint(
            "complete the stores and flush the signal before a wait that another rank must answer",
        )
}

pub(super) fn no_bytes(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    found(simulator, index, Rule::Progress)
        .note(
            None,
            "no bytes complete on this barrier: a phase of it ends with arrivals alone",
        )
        .hint("name the barrier that counts bytes, or declare that this one does")
}

pub(super) fn a_phase_behind(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    found(simulator, index, Rule::Race)
        .note(
            None,
            "nothing says that the previous phase is complete, and an earlier one has the same parity",
        )
        .hint("a parity names a phase only within one pass over the ring's slots: wait at the order barrier first")
}

/// A wait that the phase after the one it is for may not be behind, as nothing in what ends that phase comes after it.
pub(super) fn overtaken(
    simulator: &Simulator<'_>,
    late: usize,
    step: usize,
    by: usize,
) -> Diagnostic {
    let who = simulator.who(simulator.agents[late].who);
    let step = simulator.step_of((late, step));
    let message = format!("{who} {}", simulator.deed(step));
    Diagnostic::new(Rule::Progress, simulator.place(step), message)
        .note(None, simulator.now(by))
        .note(
            None,
            "the barrier may complete its next phase before all waiting warps have observed this one: its parity is then ambiguous",
        )
        .hint("let every waiting warp arrive after its wait, not only one of them")
}

/// A wait for a phase that was over before, with the next one.
pub(super) fn too_late(simulator: &Simulator<'_>, index: usize) -> Diagnostic {
    found(simulator, index, Rule::Progress)
        .note(
            None,
            "the next phase is complete, too: the parity says that the awaited one is not",
        )
        .hint("wait for its own phase, and before anyone can end the next one")
}

pub(super) fn stuck(simulator: &Simulator<'_>) -> Diagnostic {
    let blocked: Vec<usize> = (0..simulator.agents.len())
        .filter(|agent| simulator.agents[*agent].at < simulator.agents[*agent].steps.len())
        .collect();
    let first = blocked.first().copied().unwrap_or(0);
    let mut found = Diagnostic::new(
        Rule::Progress,
        simulator.here(first),
        format!("{}, for ever", simulator.now(first)),
    );
    for agent in blocked.iter().take(5) {
        let at = &simulator.agents[*agent];
        let mut text = simulator.now(*agent);
        if let Kind::CounterWait {
            cell,
            lag,
            at_least,
        } = at.steps[at.at].kind
        {
            let (seen, wanted) = simulator.counter(*agent, cell, lag, at_least);
            text.push_str(&format!(": saw {seen}, wants {wanted}"));
        }
        found = found.note(None, text);
    }
    found
}

/// Accumulators that multiplies under way still write.
pub(super) fn accumulating(simulator: &Simulator<'_>, index: usize, product: usize) -> Diagnostic {
    let agent = &simulator.agents[index];
    let tiling = agent.steps[agent.at].tiling;
    let name = simulator.case.pipeline.accumulators(tiling, product);
    found(simulator, index, Rule::Race)
        .note(None, format!("multiplies into `{name}` are under way"))
        .hint("`wgmma_wait` for all groups of an item before its accumulators are named")
}

pub(super) fn wrong(simulator: &Simulator<'_>, index: usize, what: &str) -> Diagnostic {
    found(simulator, index, Rule::Coverage).note(None, what)
}

/// An access that a GPU calls an illegal instruction, or whose address is misaligned.
pub(super) fn illegal(simulator: &Simulator<'_>, index: usize, what: &str) -> Diagnostic {
    found(simulator, index, Rule::Bounds).note(None, what)
}

/// A map that TMA does not take.
pub(super) fn illegal_map(at: Loc, name: &str, what: &str) -> Diagnostic {
    Diagnostic::new(Rule::Bounds, at, format!("the map of {name}: {what}"))
}

pub(super) fn uncovered(
    simulator: &Simulator<'_>,
    tensor: usize,
    rank: u32,
    (written, added): (u64, u64),
    wanted: (u64, u64),
) -> Diagnostic {
    let name = &simulator.case.pipeline.kernel.buffers[tensor].name;
    let what = format!("elements of {name} on rank {rank}");
    let message = if let (0, all) = wanted {
        format!("{added} of {all} {what} are added to, {written} are overwritten")
    } else {
        let (did, all) = (written + added, wanted.0 + wanted.1);
        format!("{did} of {all} {what} are written")
    };
    Diagnostic::new(Rule::Coverage, simulator.writes(tensor), message)
}

/// An access of a rank's memory that its launch does not wait for.
pub(super) fn unfinished(simulator: &Simulator<'_>, touch: &Touch<Box4>, rank: u32) -> Diagnostic {
    let deed = format!(
        "{} {}",
        simulator.who(touch.who),
        simulator.deed(simulator.step_of(touch.step))
    );
    let (open, hint) = if touch.write {
        (
            "the writes there are complete",
            "signal when the stores are complete, and wait for that signal before the end",
        )
    } else {
        (
            "the reads there are complete",
            "signal when the reads are complete, and wait for that signal before the end",
        )
    };
    let message = format!("a launch ends on rank {rank} before {open}");
    let at = simulator.place(simulator.step_of(touch.step));
    Diagnostic::new(Rule::Reuse, at, message)
        .note(None, deed)
        .hint(hint)
}

/// An access with more, or less, before it than at the tile level.
pub(super) fn out_of_order(
    simulator: &Simulator<'_>,
    index: usize,
    came: u64,
    (least, most): (u64, u64),
) -> Diagnostic {
    let which = match came < least {
        true => "not everything that the schedule orders before it came before it",
        false => "something that the schedule orders after it came before it",
    };
    let should = match least == most {
        true => least.to_string(),
        false => format!("{least} to {most}"),
    };
    found(simulator, index, Rule::Race)
        .note(None, which)
        .note(
            None,
            format!("conflicting accesses of {came} elements came before it in its launch, where {should} should"),
        )
        .hint("wait for everything that the schedule waits for, in this thread or in one that it waits for")
}

/// With `fence`, the wait is there and only a proxy fence lacks.
pub(super) fn before_its_wait(
    simulator: &Simulator<'_>,
    index: usize,
    cell: &str,
    fence: bool,
) -> Diagnostic {
    let (what, hint) = match fence {
        true => (
            format!("it comes after the wait for {cell}, but there is no proxy fence between them"),
            "`fence_async_global` after the wait on a counter, before TMA touches the data",
        ),
        false => (
            format!("the schedule waits for {cell} before this, in the same item"),
            "wait in the order of the statements, in this thread or in one that it waits for",
        ),
    };
    found(simulator, index, Rule::Race)
        .note(None, what)
        .hint(hint)
}

pub(super) fn announced_early(simulator: &Simulator<'_>, index: usize, what: &str) -> Diagnostic {
    found(simulator, index, Rule::Race)
        .note(
            None,
            format!("it does not come after {what}, which stands before the signal in its item"),
        )
        .hint("signal in the order of the statements: after everything before it is complete")
}
