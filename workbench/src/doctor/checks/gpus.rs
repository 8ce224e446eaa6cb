//! Each GPU by itself.

use crate::doctor::facts::{Board, Facts, Limits, Slowed};
use crate::doctor::finding::{Finding, together};
use crate::render;
use counterflow_runtime::cuda::{ComputeMode, Surveyed};

const HOPPER: (u32, u32) = (9, 0);

/// Findings about the GPUs that the driver gives.
pub(super) fn of_gpus(facts: &Facts, judge: impl Fn(&Surveyed) -> Finding) -> Vec<Finding> {
    let gpus = facts.driver.told().map_or(&[][..], |told| &told.gpus);
    let gpus = gpus.iter().enumerate();
    together(gpus.map(|(ordinal, gpu)| (ordinal.to_string(), judge(gpu))))
}

/// Findings about GPUs of which NVML says something.
pub(super) fn of_boards(facts: &Facts, judge: impl Fn(&Board) -> Option<Finding>) -> Vec<Finding> {
    let boards = facts.boards().into_iter();
    together(boards.filter_map(|(name, board)| Some((name, judge(board)?))))
}

/// Name that `nvidia-smi` gives a GPU: its own numbers are not CUDA's.
fn smi(board: &Board) -> String {
    format!("nvidia-smi -i {}", board.pci)
}

pub(super) fn gpus(facts: &Facts) -> Vec<Finding> {
    let mut found = of_gpus(facts, |gpu| {
        let (major, minor) = gpu.capability;
        let says = format!(
            "{}, {} SMs, {}, compute capability {major}.{minor}",
            gpu.name,
            gpu.sms,
            render::bytes(gpu.memory)
        );
        match gpu.capability {
            HOPPER => Finding::good(says),
            _ => Finding::bad(
                says,
                "kernels are made for Hopper (9.0: H100, H200); CUDA_VISIBLE_DEVICES leaves others out, --device cpu runs the emulator",
            ),
        }
    });
    // Without a driver, none is seen.
    let unseen = match facts.driver.told() {
        Some(_) => facts.unseen(),
        None => Vec::new(),
    };
    if !unseen.is_empty() {
        let unseen: Vec<String> = unseen.iter().map(ToString::to_string).collect();
        let why = match &facts.visible {
            Some(value) => format!("CUDA_VISIBLE_DEVICES={value} leaves them out"),
            None => "CUDA may not use them: MIG without instances, or another container's".into(),
        };
        found.push(Finding::note(
            format!("not seen by this process: {}", unseen.join(", ")),
            why,
        ));
    }
    found
}

pub(super) fn mig(facts: &Facts) -> Vec<Finding> {
    of_boards(facts, |board| {
        Some(match board.mig? {
            false => Finding::good("off"),
            true => Finding::bad(
                "on: the GPU is divided, and its parts reach no peer",
                format!(
                    "`{} -mig 0` turns it off, once nothing uses the GPU",
                    smi(board)
                ),
            ),
        })
    })
}

pub(super) fn compute_mode(facts: &Facts) -> Vec<Finding> {
    const HELP: &str = "`nvidia-smi -c 0` (as root) lets any process use it";
    of_gpus(facts, |gpu| match gpu.compute_mode {
        ComputeMode::Shared => Finding::good("shared: any process may use it"),
        ComputeMode::OneProcess => Finding::bad(
            "exclusive: one process at a time. Ranks that are processes cannot share the GPU, and a process that was left over keeps it",
            HELP,
        ),
        ComputeMode::Prohibited => Finding::bad("prohibited: no process may use it", HELP),
        ComputeMode::Other(mode) => Finding::note(
            format!("mode {mode}, which this version does not know"),
            HELP,
        ),
    })
}

pub(super) fn persistence(facts: &Facts) -> Vec<Finding> {
    of_boards(facts, |board| {
        Some(match board.persistence? {
            true => Finding::good("on"),
            false => Finding::note(
                "off: the driver starts the GPU anew for each first process, which takes seconds",
                "run nvidia-persistenced, or `nvidia-smi -pm 1` as root",
            ),
        })
    })
}

pub(super) fn clocks(facts: &Facts) -> Vec<Finding> {
    of_boards(facts, |board| {
        let slowed = |why| board.slowed.contains(&why);
        let most = board
            .clock
            .map_or_else(String::new, |clock| format!("up to {} MHz", clock.default));
        let beside = |why: &str| match most.is_empty() {
            true => why.to_owned(),
            false => format!("{most}; {why}"),
        };
        if slowed(Slowed::Hardware) {
            return Some(Finding::bad(
                beside("the hardware halves the clock now"),
                "`nvidia-smi -q -d PERFORMANCE` says why: heat, or the power supply. Have the machine's cooling and power looked at",
            ));
        }
        if slowed(Slowed::Heat) {
            return Some(Finding::bad(
                beside("heat lowers the clock now"),
                "have the machine's cooling looked at; `nvidia-smi -q -d TEMPERATURE` shows GPU and memory",
            ));
        }
        if let Some(Limits { now, default }) = board.clock.filter(|clock| clock.now < clock.default)
        {
            return Some(Finding::bad(
                format!("set to {now} MHz, of {default}"),
                format!(
                    "`{0} -rac` and `{0} -rgc` (as root) lift the limit",
                    smi(board)
                ),
            ));
        }
        if slowed(Slowed::Setting) {
            return Some(Finding::bad(
                beside("a setting limits the clock now"),
                format!(
                    "`{0} -rac` and `{0} -rgc` (as root) lift the limit",
                    smi(board)
                ),
            ));
        }
        if slowed(Slowed::Power) {
            return Some(Finding::note(
                beside("the power limit lowers the clock now"),
                "that is usual while the GPU works; measure once nothing else does",
            ));
        }
        board
            .clock
            .map(|_| Finding::good(format!("{most}, nothing limits them")))
    })
}

pub(super) fn power(facts: &Facts) -> Vec<Finding> {
    of_boards(facts, |board| {
        let Limits { now, default } = board.power?;
        Some(match now < default {
            false => Finding::good(format!("limit {now} W")),
            true => Finding::bad(
                format!(
                    "limit {now} W, of {default} W: large products run at the power limit, and slower"
                ),
                format!("`{} -pl {default}` (as root) sets the default", smi(board)),
            ),
        })
    })
}

pub(super) fn ecc(facts: &Facts) -> Vec<Finding> {
    of_boards(facts, |board| {
        if board.rows.is_some_and(|rows| rows.failed) {
            return Some(Finding::bad(
                "a row of memory is broken, and no spare one is left",
                "take the GPU out of service and have it replaced",
            ));
        }
        if board.rows.is_some_and(|rows| rows.pending) {
            return Some(Finding::bad(
                "a row of memory is broken, and a reset of the GPU replaces it",
                "end what uses the GPU and have it reset",
            ));
        }
        if let Some(errors @ 1..) = board.uncorrected {
            let errors = render::plural(errors, "error");
            return Some(Finding::bad(
                format!("{errors} of memory that could not be corrected, since the driver started"),
                "results may be wrong: end what uses the GPU and have it reset; if errors come again, have it replaced",
            ));
        }
        Some(match board.ecc? {
            true => Finding::good("on, no uncorrected error"),
            false => Finding::note(
                "off: errors of memory are not seen",
                format!(
                    "`{} -e 1` (as root) turns it on with the next reset",
                    smi(board)
                ),
            ),
        })
    })
}

pub(super) fn processes(facts: &Facts) -> Vec<Finding> {
    of_boards(facts, |board| {
        Some(match board.processes? {
            0 => Finding::good("no process uses it"),
            count => Finding::note(
                format!("used by {}", render::plural(count.into(), "process")),
                "times that are measured beside them mean little; nvidia-smi lists them",
            ),
        })
    })
}
