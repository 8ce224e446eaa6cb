//! Every check on machines that nobody here has: a good one, and one for each thing that can be wrong.

mod links;

use super::*;
use crate::cuda::{Fabric, FabricState};
use crate::doctor::facts::{
    Asked, Board, CacheFacts, Limits, Link, Management, Problem, Rows, Slowed, Tables, Toolkit,
};
use crate::doctor::finding::Grade;
use counterflow_codegen::machine::{Source, shipped};
use counterflow_runtime::cuda::{ComputeMode, Pci, Reach, Survey, Surveyed};
use counterflow_runtime::machines::Known;
use counterflow_runtime::tuning::Tuning;
use std::collections::BTreeMap;
use std::time::Duration;

const SWITCH: Pci = Pci {
    domain: 0,
    bus: 0xa0,
    device: 0,
};

fn pci(gpu: usize) -> Pci {
    Pci {
        domain: 0,
        bus: 0x10 + gpu as u32,
        device: 0,
    }
}

fn gpu(ordinal: usize, of: usize) -> Surveyed {
    Surveyed {
        name: "NVIDIA H200".into(),
        uuid: format!("GPU-{ordinal}"),
        pci: pci(ordinal),
        capability: (9, 0),
        sms: 132,
        memory: 141 << 30,
        compute_mode: ComputeMode::Shared,
        virtual_memory: true,
        file_handles: true,
        fabric_handles: true,
        multicast: true,
        reach: vec![
            Reach {
                access: true,
                atomics: true
            };
            of
        ],
    }
}

fn board(ordinal: usize) -> Board {
    let link = Link {
        active: true,
        to: Some(SWITCH),
    };
    Board {
        pci: pci(ordinal),
        mig: Some(false),
        persistence: Some(true),
        power: Some(Limits {
            now: 700,
            default: 700,
        }),
        clock: Some(Limits {
            now: 1980,
            default: 1980,
        }),
        slowed: Vec::new(),
        ecc: Some(true),
        uncorrected: Some(0),
        rows: Some(Rows {
            pending: false,
            failed: false,
        }),
        processes: Some(0),
        links: vec![link; 18],
        fabric: Some(Fabric {
            state: FabricState::Done,
            status: 0,
            degraded: false,
            unhealthy: false,
        }),
    }
}

/// A machine of so many H200s of which all is good.
fn healthy(gpus: usize) -> Facts {
    Facts {
        driver: Asked::Told(Survey {
            cuda: (13, 0),
            queues: Some(32),
            blocking: false,
            fabric_wanted: Some(false),
            gpus: (0..gpus).map(|ordinal| gpu(ordinal, gpus)).collect(),
        }),
        management: Asked::Told(Management {
            driver: Some("580.95.05".into()),
            boards: (0..gpus).map(board).collect(),
        }),
        visible: None,
        imex: false,
        allowing: Vec::new(),
        forbidding: vec!["UB_SKIPMC=1".into()],
        multicast_built: false,
        compiler: Ok(Toolkit {
            name: "NVRTC 13.0 from lib".into(),
            version: Some((13, 0)),
            works: Ok(()),
        }),
        cache: CacheFacts {
            folder: Some("kernels".into()),
            room: Ok(1 << 40),
        },
        tuned: Tables {
            shipped: Ok(BTreeMap::from([("NVIDIA H200".into(), 214)])),
            user: Ok(BTreeMap::new()),
        },
        tuning: Ok(Tuning::Quick),
        profiles: BTreeMap::from([("NVIDIA H200".into(), Ok(measured()))]),
    }
}

/// An H200's profile without a number of another card's.
fn measured() -> Known {
    let mut profile = shipped("NVIDIA H200").clone();
    let numbers = profile.numbers.values_mut();
    numbers.for_each(|number| number.from = Source::Measured);
    Known {
        profile,
        file: Some("h200.toml".into()),
    }
}

fn problem(what: &str) -> Problem {
    Problem {
        what: what.into(),
        help: "do this".into(),
    }
}

/// Findings of a check on four H200s of which something is otherwise: its grades, and all it says in one text.
fn found(name: &str, change: impl FnOnce(&mut Facts)) -> (Vec<Grade>, String) {
    let mut facts = healthy(4);
    change(&mut facts);
    let check = ALL.iter().find(|check| check.name == name);
    let found = (check.expect("a check of that name").judge)(&facts);
    let grades = found.iter().map(|finding| finding.grade).collect();
    let lines = found.iter().map(|finding| {
        let help = finding.help.as_deref().unwrap_or_default();
        format!("{} | {help}", finding.says)
    });
    (grades, lines.collect::<Vec<_>>().join("\n"))
}

/// One thing is bad: the check says so with `words`, and no other check calls it bad.
#[track_caller]
fn bad(name: &str, words: &[&str], change: impl Fn(&mut Facts)) {
    graded(Grade::Bad, name, words, &change);
    let mut facts = healthy(4);
    change(&mut facts);
    for check in ALL.iter().filter(|check| check.name != name) {
        for finding in (check.judge)(&facts) {
            assert_ne!(finding.grade, Grade::Bad, "{}: {finding:?}", check.name);
        }
    }
}

#[track_caller]
fn note(name: &str, words: &[&str], change: impl Fn(&mut Facts)) {
    graded(Grade::Note, name, words, &change);
}

#[track_caller]
fn graded(grade: Grade, name: &str, words: &[&str], change: &impl Fn(&mut Facts)) {
    let (grades, text) = found(name, change);
    assert_eq!(grades.iter().max(), Some(&grade), "{name}: {text}");
    for word in words {
        assert!(text.contains(word), "no `{word}` in {name}: {text}");
    }
}

fn survey(facts: &mut Facts) -> &mut Survey {
    match &mut facts.driver {
        Asked::Told(survey) => survey,
        Asked::Refused(_) | Asked::Silent(_) => panic!("told"),
    }
}

fn boards(facts: &mut Facts) -> &mut [Board] {
    match &mut facts.management {
        Asked::Told(told) => &mut told.boards,
        Asked::Refused(_) | Asked::Silent(_) => panic!("told"),
    }
}

#[test]
fn a_good_machine_is_good_in_every_line() {
    for gpus in [1, 2, 4, 8] {
        for check in &ALL {
            let found = (check.judge)(&healthy(gpus));
            assert!(!found.is_empty(), "{} says nothing", check.name);
            for finding in found {
                assert_eq!(finding.grade, Grade::Good, "{}: {finding:?}", check.name);
            }
        }
    }
}

#[test]
fn whatever_is_bad_says_what_to_do() {
    type Change = fn(&mut Facts);
    let changes: [Change; 4] = [
        |facts| facts.driver = Asked::Refused(problem("none")),
        |facts| facts.driver = Asked::Silent(Duration::from_secs(60)),
        |facts| {
            for board in boards(facts) {
                (board.mig, board.persistence, board.ecc) = (Some(true), Some(false), Some(false));
                (board.uncorrected, board.processes) = (Some(3), Some(2));
                board.slowed = vec![Slowed::Hardware];
                board.links = vec![
                    Link {
                        active: false,
                        to: None
                    };
                    18
                ];
            }
        },
        |facts| {
            for gpu in &mut survey(facts).gpus {
                (gpu.capability, gpu.virtual_memory) = ((8, 0), false);
                gpu.compute_mode = ComputeMode::Prohibited;
                gpu.reach.iter_mut().for_each(|reach| reach.access = false);
            }
        },
    ];
    for change in changes {
        let mut facts = healthy(4);
        change(&mut facts);
        let all = ALL.iter().flat_map(|check| (check.judge)(&facts));
        let bad: Vec<_> = all.filter(|found| found.grade == Grade::Bad).collect();
        assert!(!bad.is_empty());
        for finding in bad {
            let help = finding.help.as_deref().unwrap_or_default();
            assert!(!help.is_empty(), "{finding:?}");
        }
    }
}

#[test]
fn drivers() {
    bad(
        "driver",
        &["580.95.05, CUDA 12.8", "install driver 580"],
        |facts| {
            survey(facts).cuda = (12, 8);
        },
    );
    bad("driver", &["no NVIDIA driver", "do this"], |facts| {
        facts.driver = Asked::Refused(problem("no NVIDIA driver"));
        facts.management = Asked::Refused(problem("no library"));
    });
    bad(
        "driver",
        &["does not answer within 60s", "dmesg"],
        |facts| {
            facts.driver = Asked::Silent(Duration::from_secs(60));
        },
    );
    bad("NVML", &["does not answer within 3s"], |facts| {
        facts.management = Asked::Silent(Duration::from_secs(3));
    });
    note("NVML", &["no clocks, power or links", "do this"], |facts| {
        facts.management = Asked::Refused(problem("no library"));
    });
    let (grades, _) = found("driver", |facts| survey(facts).cuda = (13, 2));
    assert_eq!(grades, [Grade::Good]);
}

#[test]
fn without_a_gpu_only_what_needs_none_is_judged() {
    let mut facts = healthy(0);
    facts.driver = Asked::Refused(problem("the NVIDIA driver sees no GPU"));
    facts.management = Asked::Refused(problem("no library"));
    let judged = ALL.iter().filter(|check| !(check.judge)(&facts).is_empty());
    let judged: Vec<_> = judged.map(|check| check.name).collect();
    assert_eq!(judged, ["driver", "NVRTC", "kernel cache"]);
}

#[test]
fn boards_are_judged_by_their_place_where_the_driver_is_not_there() {
    let (_, text) = found("power", |facts| {
        facts.driver = Asked::Refused(problem("the fabric manager does not run"));
    });
    assert!(
        text.starts_with("GPU 0000:10:00.0, 0000:11:00.0, "),
        "{text}"
    );
}

#[test]
fn gpus_of_another_kind() {
    bad(
        "GPUs",
        &["GPU 1: NVIDIA A100", "8.0", "kernels are made for Hopper"],
        |facts| {
            let gpu = &mut survey(facts).gpus[1];
            (gpu.name, gpu.capability) = ("NVIDIA A100".into(), (8, 0));
        },
    );
    note(
        "GPUs",
        &[
            "not seen by this process: 0000:13:00.0",
            "CUDA_VISIBLE_DEVICES=0,1,2 ",
        ],
        |facts| {
            survey(facts).gpus.pop();
            facts.visible = Some("0,1,2".into());
        },
    );
    note("GPUs", &["MIG without instances"], |facts| {
        survey(facts).gpus.pop();
    });
    bad(
        "MIG",
        &["GPU 2: on", "nvidia-smi -i 0000:12:00.0 -mig 0"],
        |facts| {
            boards(facts)[2].mig = Some(true);
        },
    );
    bad(
        "compute mode",
        &["GPU 0: exclusive", "nvidia-smi -c 0"],
        |facts| {
            survey(facts).gpus[0].compute_mode = ComputeMode::OneProcess;
        },
    );
    bad("compute mode", &["prohibited"], |facts| {
        survey(facts).gpus[0].compute_mode = ComputeMode::Prohibited;
    });
    note("compute mode", &["mode 7"], |facts| {
        survey(facts).gpus[0].compute_mode = ComputeMode::Other(7);
    });
}

#[test]
fn states_of_a_gpu() {
    let limits = |now, default| Some(Limits { now, default });
    note(
        "persistence",
        &["GPU 0 to 3: off", "persistenced"],
        |facts| {
            boards(facts)
                .iter_mut()
                .for_each(|board| board.persistence = Some(false));
        },
    );
    bad(
        "power",
        &[
            "GPU 3: limit 500 W, of 700 W",
            "nvidia-smi -i 0000:13:00.0 -pl 700",
        ],
        |facts| {
            boards(facts)[3].power = limits(500, 700);
        },
    );
    bad(
        "clocks",
        &["GPU 3: set to 1200 MHz, of 1980", "-rac"],
        |facts| {
            boards(facts)[3].clock = limits(1200, 1980);
        },
    );
    for (why, word) in [
        (Slowed::Hardware, "the hardware halves"),
        (Slowed::Heat, "heat lowers"),
        (Slowed::Setting, "a setting limits"),
    ] {
        bad("clocks", &["up to 1980 MHz; ", word], |facts| {
            boards(facts)[0].slowed = vec![why]
        });
        bad("clocks", &[word], |facts| {
            boards(facts)[0].slowed = vec![Slowed::Power, why];
            boards(facts)[0].clock = None;
        });
    }
    note("clocks", &["the power limit lowers"], |facts| {
        boards(facts)[0].slowed = vec![Slowed::Power]
    });
    note("ECC", &["off", "-e 1"], |facts| {
        boards(facts)[0].ecc = Some(false)
    });
    bad("ECC", &["1 error of memory"], |facts| {
        boards(facts)[0].uncorrected = Some(1)
    });
    for (pending, failed, word) in [
        (true, false, "reset of the GPU"),
        (true, true, "no spare one"),
    ] {
        bad("ECC", &[word], |facts| {
            boards(facts)[0].rows = Some(Rows { pending, failed })
        });
    }
    note("processes", &["GPU 1: used by 2 processes"], |facts| {
        boards(facts)[1].processes = Some(2)
    });
}

#[test]
fn what_nvml_does_not_say_is_no_finding() {
    let silent = |facts: &mut Facts| {
        for (ordinal, board) in boards(facts).iter_mut().enumerate() {
            *board = Board {
                pci: pci(ordinal),
                mig: None,
                persistence: None,
                power: None,
                clock: None,
                slowed: Vec::new(),
                ecc: None,
                uncorrected: None,
                rows: None,
                processes: None,
                links: Vec::new(),
                fabric: None,
            };
        }
    };
    for name in [
        "MIG",
        "persistence",
        "power",
        "clocks",
        "ECC",
        "processes",
        "fabric",
    ] {
        assert_eq!(found(name, silent).0, [], "{name}");
    }
}

#[test]
fn variables_of_the_driver() {
    bad(
        "hardware queues",
        &["not a number", "give 1 to 32"],
        |facts| survey(facts).queues = None,
    );
    note(
        "hardware queues",
        &["1: enough for ranks with a GPU each"],
        |facts| survey(facts).queues = Some(1),
    );
    bad(
        "hardware queues",
        &["CUDA_LAUNCH_BLOCKING", "unset it"],
        |facts| survey(facts).blocking = true,
    );
}

#[test]
fn compilers() {
    fn toolkit(facts: &mut Facts) -> &mut Toolkit {
        facts.compiler.as_mut().expect("there")
    }
    bad("NVRTC", &["no NVRTC", "do this"], |facts| {
        facts.compiler = Err(problem("no NVRTC"))
    });
    bad("NVRTC", &["compiles nothing: broken", "do this"], |facts| {
        toolkit(facts).works = Err(problem("broken"));
    });
    note("NVRTC", &["the driver supports 13.2"], |facts| {
        survey(facts).cuda = (13, 2)
    });
    bad("NVRTC", &["later major version"], |facts| {
        toolkit(facts).version = Some((14, 0))
    });
    note("NVRTC", &["unset COUNTERFLOW_NVRTC"], |facts| {
        toolkit(facts).version = None
    });
    // A later minor version makes code that the driver loads.
    let (grades, _) = found("NVRTC", |facts| toolkit(facts).version = Some((13, 2)));
    assert_eq!(grades, [Grade::Good]);
}

#[test]
fn caches() {
    bad(
        "kernel cache",
        &["kernels cannot be written: denied", "COUNTERFLOW_CACHE"],
        |facts| {
            facts.cache.room = Err(problem("denied"));
        },
    );
    bad("kernel cache", &["has 1 MiB free"], |facts| {
        facts.cache.room = Ok(1 << 20)
    });
    note("kernel cache", &["off"], |facts| facts.cache.folder = None);
}

#[test]
fn winners_and_profile() {
    note(
        "choices",
        &[
            "GPU 0 to 3: no winner was measured",
            "COUNTERFLOW_TUNE=off",
            "--sweep",
        ],
        |facts| {
            facts.tuned.shipped = Ok(BTreeMap::new());
            facts.tuning = Ok(Tuning::Off);
        },
    );
    let (grades, says) = found("choices", |facts| facts.tuned.shipped = Ok(BTreeMap::new()));
    assert_eq!(grades, [Grade::Good]);
    assert!(
        says.contains("ops measure when they are built (quick)"),
        "{says}"
    );
    bad("choices", &["COUNTERFLOW_TUNE=fast", "do this"], |facts| {
        facts.tuning = Err(problem("COUNTERFLOW_TUNE=fast"));
    });
    let (grades, says) = found("profile", |_| {});
    assert_eq!(grades, [Grade::Good]);
    assert!(
        says.contains("NVIDIA H200 by h200.toml: 22 measured numbers"),
        "{says}"
    );
    note(
        "profile",
        &["that is another GPU", "`profile` measures"],
        |facts| {
            let gpus = survey(facts).gpus.iter_mut();
            gpus.for_each(|gpu| gpu.name = "NVIDIA H800".into());
            facts.profiles = BTreeMap::from([("NVIDIA H800".into(), Ok(measured()))]);
        },
    );
    note(
        "profile",
        &["by the package", "assumed", "`profile` measures"],
        |facts| {
            let known = facts.profiles.get_mut("NVIDIA H200");
            if let Some(Ok(known)) = known {
                known.profile = shipped("NVIDIA H100").clone();
                known.profile.gpu = "NVIDIA H200".into();
                known.file = None;
            }
        },
    );
    bad("profile", &["h200.toml: damaged", "do this"], |facts| {
        let damaged = Err(problem("h200.toml: damaged"));
        facts.profiles = BTreeMap::from([("NVIDIA H200".into(), damaged)]);
    });
    bad("choices", &["tuned.toml: damaged", "do this"], |facts| {
        facts.tuned.user = Err(problem("tuned.toml: damaged"));
    });
}
