//! How GPUs reach each other, where something is wrong.

use super::*;
use crate::doctor::checks::{links, matrix};

#[test]
fn links_that_are_down_or_fewer() {
    let down = |board: &mut Board, number: usize| board.links[number].active = false;
    bad(
        "NVLink",
        &["GPU 1: 16 of 18 links are up; down: 3, 7"],
        |facts| {
            down(&mut boards(facts)[1], 3);
            down(&mut boards(facts)[1], 7);
        },
    );
    bad(
        "NVLink",
        &["GPU 2: 12 links, and another GPU has 18"],
        |facts| {
            boards(facts)[2].links.truncate(12);
        },
    );
    bad("NVLink", &["GPU 0 to 3: no link is up"], |facts| {
        boards(facts)
            .iter_mut()
            .for_each(|board| board.links.clear());
    });
    let mut alone = healthy(1);
    boards(&mut alone)[0].links.clear();
    let found = links::links(&alone);
    assert_eq!(found, [Finding::good("GPU 0: no links, and no peer")]);
}

#[test]
fn the_matrix_counts_links_to_a_switch_and_direct_ones() {
    let mut facts = healthy(3);
    boards(&mut facts)[2].links[0].active = false;
    let with = |a, b| vec![vec![None, Some(a), Some(b)], vec![Some(a), None, Some(b)]];
    assert_eq!(matrix(&facts)[..2], with(18, 17));
    // Two GPUs with a bridge, and one without.
    for (ordinal, board) in boards(&mut facts).iter_mut().enumerate() {
        board.links.truncate(if ordinal < 2 { 12 } else { 0 });
        for link in &mut board.links {
            link.to = Some(pci(1 - ordinal));
        }
    }
    assert_eq!(matrix(&facts)[..2], with(12, 0));
    // Ends that NVML does not say.
    let mut facts = healthy(3);
    for board in boards(&mut facts) {
        board.links.iter_mut().for_each(|link| link.to = None);
    }
    assert_eq!(matrix(&facts)[..2], with(18, 18));
}

#[test]
fn a_fabric_that_is_not_ready() {
    let fabric = |state, status, degraded, unhealthy| {
        move |facts: &mut Facts| {
            boards(facts)[0].fabric = Some(Fabric {
                state,
                status,
                degraded,
                unhealthy,
            });
        }
    };
    let manager = "nvidia-fabricmanager";
    bad(
        "fabric",
        &["not registered", manager],
        fabric(FabricState::NotStarted, 0, false, false),
    );
    bad(
        "fabric",
        &["under way", manager],
        fabric(FabricState::InProgress, 0, false, false),
    );
    bad(
        "fabric",
        &["failed (NVML status 9)", manager],
        fabric(FabricState::Done, 9, false, false),
    );
    bad(
        "fabric",
        &["less than the full"],
        fabric(FabricState::Done, 0, true, false),
    );
    bad(
        "fabric",
        &["a route"],
        fabric(FabricState::Done, 0, true, true),
    );
    note(
        "fabric",
        &["state 9"],
        fabric(FabricState::Other(9), 0, false, false),
    );
    let (grades, _) = found("fabric", fabric(FabricState::None, 3, false, false));
    assert_eq!(grades, [Grade::Good; 2]);
}

#[test]
fn gpus_that_do_not_reach_each_other() {
    bad(
        "peer access",
        &["GPU 0: does not reach the memory of GPU 2, 3", "-p2p r"],
        |facts| {
            let reach = &mut survey(facts).gpus[0].reach;
            (reach[2].access, reach[3].access) = (false, false);
        },
    );
    bad(
        "peer atomics",
        &[
            "GPU 1: makes no atomic additions in the memory of GPU 0",
            "-p2p a",
        ],
        |facts| {
            survey(facts).gpus[1].reach[0].atomics = false;
        },
    );
    for lacks in [
        (|gpu| gpu.virtual_memory = false) as fn(&mut Surveyed),
        |gpu| gpu.file_handles = false,
    ] {
        bad("memory handles", &["maps no memory"], |facts| {
            survey(facts).gpus.iter_mut().for_each(lacks);
        });
    }
    bad("memory handles", &["without meaning"], |facts| {
        survey(facts).fabric_wanted = None
    });
    bad("memory handles", &["no IMEX channel"], |facts| {
        survey(facts).fabric_wanted = Some(true)
    });
    bad(
        "memory handles",
        &["GPU 1: COUNTERFLOW_HANDLES=fabric, and the GPU has no"],
        |facts| {
            (survey(facts).fabric_wanted, facts.imex) = (Some(true), true);
            survey(facts).gpus[1].fabric_handles = false;
        },
    );
    let (grades, _) = found("memory handles", |facts| {
        (survey(facts).fabric_wanted, facts.imex) = (Some(true), true);
    });
    assert_eq!(grades, [Grade::Good]);
}

#[test]
fn who_forbids_multicast_to_this_program_is_told() {
    let says = |built, forbidding: &[&str]| {
        let (grades, text) = found("multicast", |facts| {
            facts.multicast_built = built;
            facts.forbidding = forbidding.iter().map(|set| (*set).into()).collect();
        });
        assert_eq!(grades, [Grade::Good]);
        text
    };
    let off = "the GPU has it; it is off";
    let text = says(false, &["UB_SKIPMC=1"]);
    assert!(
        text.contains(&format!(
            "{off}: this program was built without the feature"
        )),
        "{text}"
    );
    let text = says(true, &["UB_SKIPMC=yes", "NCCL_NVLS_ENABLE=0"]);
    assert!(
        text.contains(&format!(
            "{off}: UB_SKIPMC=yes NCCL_NVLS_ENABLE=0 forbids it"
        )),
        "{text}"
    );
    let text = says(true, &[]);
    assert!(
        text.contains(&format!("{off} until a program asks")),
        "{text}"
    );
}

#[test]
fn multicast_is_told_by_attribute_and_variables() {
    note(
        "multicast",
        &["4 of 5 variables", "set NCCL_NVLS_ENABLE=0"],
        |facts| {
            facts.allowing = vec!["NCCL_NVLS_ENABLE=0".into()];
        },
    );
    let (grades, text) = found("multicast", |facts| {
        survey(facts)
            .gpus
            .iter_mut()
            .for_each(|gpu| gpu.multicast = false);
        facts.allowing = vec!["NCCL_NVLS_ENABLE=0".into()];
    });
    assert_eq!(
        (
            &grades[..],
            text.contains("the GPU has none, so it cannot be on")
        ),
        (&[Grade::Good][..], true)
    );
}
