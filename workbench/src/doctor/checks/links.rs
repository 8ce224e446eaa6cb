//! Links between GPUs.

use super::gpus::{of_boards, of_gpus};
use crate::cuda::{Fabric, FabricState};
use crate::doctor::facts::{Board, Facts};
use crate::doctor::finding::{Finding, together};
use counterflow_runtime::cuda::{Reach, Surveyed};
use counterflow_runtime::multicast;

pub(super) fn links(facts: &Facts) -> Vec<Finding> {
    let boards = facts.boards();
    let up = |board: &Board| board.links.iter().filter(|link| link.active).count();
    let most = boards.iter().map(|(_, board)| up(board)).max().unwrap_or(0);
    of_boards(facts, |board| {
        if boards.len() == 1 && up(board) == 0 {
            return Some(Finding::good("no links, and no peer"));
        }
        let down: Vec<String> = (board.links.iter().enumerate())
            .filter(|(_, link)| !link.active)
            .map(|(number, _)| number.to_string())
            .collect();
        Some(match (up(board), down.len()) {
            (0, _) => Finding::bad(
                "no link is up: peers are reached by PCIe, or not at all",
                "ranks need GPUs of one NVLink domain: `nvidia-smi nvlink -s` shows the links, `nvidia-smi topo -m` who has any",
            ),
            (up, 1..) => Finding::bad(
                format!(
                    "{up} of {} links are up; down: {}",
                    board.links.len(),
                    down.join(", ")
                ),
                "`nvidia-smi nvlink -e` shows errors; end what uses the GPU and have it reset; if a link stays down, have the machine repaired",
            ),
            (up, 0) if up < most => Finding::bad(
                format!("{up} links, and another GPU has {most}"),
                "the slowest GPU bounds all ranks: `nvidia-smi nvlink -s` shows the links; have the machine repaired",
            ),
            (up, 0) => Finding::good(format!("{up} links up")),
        })
    })
}

/// Links between each two GPUs, by ordinal, as NVML tells their ends. Links to a switch count for all that have some
/// there. None on the diagonal.
pub(in crate::doctor) fn matrix(facts: &Facts) -> Vec<Vec<Option<usize>>> {
    let boards = facts.boards();
    let known = |pci| boards.iter().any(|(_, board)| board.pci == pci);
    // What is no GPU of these is a switch, also where NVML does not say.
    let switched = |board: &Board| {
        let links = board.links.iter().filter(|link| link.active);
        links.filter(|link| !link.to.is_some_and(known)).count()
    };
    let between = |one: &Board, other: &Board| {
        let direct = one.links.iter().filter(|link| link.active);
        match direct.filter(|link| link.to == Some(other.pci)).count() {
            0 => switched(one).min(switched(other)),
            direct => direct,
        }
    };
    let row = |one: &Board| {
        let each = boards
            .iter()
            .map(|(_, other)| (one.pci != other.pci).then(|| between(one, other)));
        each.collect()
    };
    boards.iter().map(|(_, one)| row(one)).collect()
}

pub(super) fn fabric(facts: &Facts) -> Vec<Finding> {
    const MANAGER: &str = "the fabric manager registers GPUs: `systemctl status nvidia-fabricmanager`, and start it or read its log";
    of_boards(facts, |board| {
        let Fabric {
            state,
            status,
            degraded,
            unhealthy,
        } = board.fabric?;
        Some(match (state, status) {
            (FabricState::None, _) => {
                Finding::good("none: GPUs are linked without a managed NVSwitch")
            }
            (FabricState::NotStarted, _) => {
                Finding::bad("not registered with the NVSwitch fabric", MANAGER)
            }
            (FabricState::InProgress, _) => Finding::bad(
                "registration with the NVSwitch fabric is under way, or hangs",
                MANAGER,
            ),
            (FabricState::Done, 0) if unhealthy => Finding::bad(
                "registered, but a route through the switches is broken",
                "`nvidia-smi -q` shows the fabric's health; read the fabric manager's log, and have the machine repaired",
            ),
            (FabricState::Done, 0) if degraded => Finding::bad(
                "registered, with less than the full bandwidth",
                "`nvidia-smi -q` shows the fabric's health; have the machine repaired",
            ),
            (FabricState::Done, 0) => Finding::good("registered with the NVSwitch fabric"),
            (FabricState::Done, status) => Finding::bad(
                format!("registration with the NVSwitch fabric failed (NVML status {status})"),
                MANAGER,
            ),
            (FabricState::Other(state), _) => Finding::note(
                format!("state {state}, which this version does not know"),
                MANAGER,
            ),
        })
    })
}

/// Findings of each GPU about those that it does not reach in some way.
fn pairs(
    facts: &Facts,
    can: fn(&Reach) -> bool,
    good: &str,
    bad: &str,
    help: &str,
) -> Vec<Finding> {
    let gpus = facts.driver.told().map_or(&[][..], |told| &told.gpus);
    match gpus.len() {
        0 => return Vec::new(),
        1 => return vec![Finding::good("one GPU, no peer: ranks may share it")],
        _ => {}
    }
    let lacking = |gpu: &Surveyed| {
        let lacking = gpu
            .reach
            .iter()
            .enumerate()
            .filter(|(_, reach)| !can(reach));
        let lacking: Vec<String> = lacking.map(|(other, _)| other.to_string()).collect();
        lacking.join(", ")
    };
    together(gpus.iter().enumerate().map(|(ordinal, gpu)| {
        let found = match &lacking(gpu)[..] {
            "" => Finding::good(good),
            others => Finding::bad(format!("{bad} GPU {others}"), help),
        };
        (ordinal.to_string(), found)
    }))
}

pub(super) fn access(facts: &Facts) -> Vec<Finding> {
    pairs(
        facts,
        |reach| reach.access,
        "reaches the memory of every other",
        "does not reach the memory of",
        "ranks need GPUs of one NVLink domain: `nvidia-smi topo -p2p r` lists who reaches whom; CUDA_VISIBLE_DEVICES chooses among them, or ranks share a GPU",
    )
}

pub(super) fn atomics(facts: &Facts) -> Vec<Finding> {
    pairs(
        facts,
        |reach| reach.atomics,
        "adds atomically to the memory of every other",
        "makes no atomic additions in the memory of",
        "ranks signal each other by them, which needs NVLink: `nvidia-smi topo -p2p a` lists who has them",
    )
}

pub(super) fn memory(facts: &Facts) -> Vec<Finding> {
    let wanted = facts.driver.told().map(|survey| survey.fabric_wanted);
    of_gpus(facts, |gpu| match wanted {
        _ if !gpu.virtual_memory || !gpu.file_handles => Finding::bad(
            "the driver maps no memory of other processes here",
            "the symmetric heap needs it: run on Linux itself or in a container, not in a virtual machine without it",
        ),
        Some(None) => Finding::bad(
            "COUNTERFLOW_HANDLES has a value without meaning",
            "set it to `files`, which is the default, or to `fabric`",
        ),
        Some(Some(true)) if !gpu.fabric_handles => Finding::bad(
            "COUNTERFLOW_HANDLES=fabric, and the GPU has no fabric handles",
            "unset it: file descriptors do for the processes of a host",
        ),
        Some(Some(true)) if !facts.imex => Finding::bad(
            "COUNTERFLOW_HANDLES=fabric, and there is no IMEX channel",
            "unset it: file descriptors do for the processes of a host; or have a channel made (/dev/nvidia-caps-imex-channels)",
        ),
        Some(Some(true)) => Finding::good("by fabric handles, as COUNTERFLOW_HANDLES says"),
        Some(Some(false)) | None => Finding::good(match gpu.fabric_handles {
            true => "virtual memory, by file descriptors; fabric handles, too",
            false => "virtual memory, by file descriptors; no fabric handles",
        }),
    })
}

/// By the device's attribute alone: no object is made, here or for this.
pub(super) fn multicast(facts: &Facts) -> Vec<Finding> {
    let no = multicast::OFF.len() - facts.allowing.len();
    let own = match (facts.multicast_built, &facts.forbidding[..]) {
        (false, _) => {
            "it is off: this program was built without the feature `multicast`".to_owned()
        }
        (true, []) => "it is off until a program asks: `Communicator::multicast`".to_owned(),
        (true, forbid) => format!("it is off: {} forbids it", forbid.join(" ")),
    };
    of_gpus(facts, |gpu| {
        match (gpu.multicast, facts.allowing.is_empty()) {
            (false, _) => Finding::good("the GPU has none, so it cannot be on"),
            (true, true) => Finding::good(format!(
                "the GPU has it; {own}; all variables forbid it to other libraries"
            )),
            (true, false) => Finding::note(
                format!(
                    "the GPU has it; {own}; {no} of {} variables forbid it to other libraries",
                    multicast::OFF.len()
                ),
                format!(
                    "`bench` beside NCCL needs them all: set {}",
                    facts.allowing.join(" ")
                ),
            ),
        }
    })
}
