//! The sequence of calls, by a driver that records them: in one process and over four, with each call refused on each rank.

use super::*;
use crate::emulated::{self, Machine};
use crate::group::Group;
use crate::group::heap::Room;
use crate::held::Owner;
use crate::multicast::MulticastState;
use crate::multicast::recorded::{CALLS, LEAST, RECOMMENDED, Recorder, Switch};
use crate::rendezvous::Threads;
use crate::shared::{Handles, Links};
use std::sync::Mutex;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const WORLD: u32 = 4;
/// A slot's bytes: no multiple of what the driver recommends.
const SLOT: u64 = (8 << 20) + emulated::PAGE;
const OBJECT: u64 = 10 << 20;
/// Bytes of the heap from the start, and after `reserve`.
const MORE: u64 = 3 << 20;

/// Ranks of one process, with a GPU each.
fn together() -> Group {
    let machine = Machine::new(WORLD as usize, 0, u64::MAX);
    let gpus = (0..WORLD).map(|gpu| emulated::Gpu::of(&machine, gpu).into());
    Group::new(gpus.collect(), Some(SLOT), LIMIT).expect("a group")
}

/// Runs the ranks as processes, each in a thread.
fn apart<T: Send>(act: impl Fn(u32, &Group) -> T + Sync) -> Vec<T> {
    apart_by(Handles::Files, act)
}

/// Runs the ranks as processes that hand memory over in that way.
fn apart_by<T: Send>(handles: Handles, act: impl Fn(u32, &Group) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let act = &act;
        let each = Threads::of(WORLD).into_iter().map(|seat| {
            scope.spawn(move || {
                let deadline = Deadline::after(LIMIT);
                let links = Links::make(&seat, deadline).expect("connected");
                let rank = links.rank();
                let machine = Machine::new(1, 0, u64::MAX);
                let open = || Ok(emulated::Gpu::of(&machine, 0).into());
                let group = Group::apart_by(Ok(handles), open, true, links, deadline);
                let group = group.expect("a group");
                act(rank, &group)
            })
        });
        let each: Vec<_> = each.collect();
        each.into_iter()
            .map(|one| one.join().expect("no panic"))
            .collect()
    })
}

fn auto(group: &Group, switch: &Arc<Switch>, rank: u32) -> MulticastState {
    let opened = open(&group.heap, Multicast::Auto, Ok(Recorder::of(switch, rank)));
    opened.expect("it goes on");
    group.multicast()
}

/// Takes the view from the heap, as its end does.
fn close(group: &Group) {
    drop(group.heap.state().multicast.view.take());
}

fn backed(group: &Group) -> u64 {
    group.heap.state().slots.backed()
}

/// The order of the calls of one process with these GPUs, from the first to the last. `start` and `more` end each slot's parts.
fn sequence(gpus: &[u32], first: &[&str], bytes: u64, [start, more]: [u64; 2]) -> Vec<String> {
    let each = |verb: &str, part: &str| {
        let one = gpus.iter().map(|gpu| format!("{verb} GPU {gpu}{part}"));
        one.collect::<Vec<_>>()
    };
    let added = format!(" {start}+{}", more - start);
    let mut calls: Vec<String> = first.iter().map(|call| (*call).to_owned()).collect();
    calls.extend(each("add", ""));
    calls.extend(each("bind", &format!(" 0+{start}")));
    calls.push(format!("map {bytes} for {gpus:?}"));
    calls.extend(each("bind", &added));
    calls.push(format!("unmap {bytes}"));
    let undone = |part: &str| each("unbind", part).into_iter().rev().collect::<Vec<_>>();
    calls.extend(undone(&added));
    calls.extend(undone(&format!(" 0+{start}")));
    calls.push("release".into());
    calls
}

#[test]
fn ranks_of_one_process_make_the_calls_in_this_order() {
    let (group, switch) = (together(), Switch::new());
    let start = backed(&group);
    assert_eq!(
        auto(&group, &switch, 0),
        MulticastState::On { bytes: start }
    );
    // A second request has it.
    assert_eq!(
        auto(&group, &switch, 0),
        MulticastState::On { bytes: start }
    );
    group.heap.reserve(MORE).expect("memory");
    assert_eq!(group.multicast(), MulticastState::On { bytes: MORE });
    close(&group);
    let create = format!("create 4 GPUs {OBJECT}");
    let first = ["granularity 4 GPUs", &create];
    assert_eq!(
        switch.calls(0),
        sequence(&[0, 1, 2, 3], &first, OBJECT, [start, MORE])
    );
    assert_eq!(switch.wrong(), [""; 0]);
    assert!(switch.is_empty());
}

#[test]
fn ranks_that_are_processes_make_the_calls_in_this_order_and_bind_once_all_are_added() {
    for (handles, import) in WAYS {
        make_the_calls_in_this_order(handles, import);
    }
}

/// Ways in which memory goes to other processes, and the name of an import of each.
const WAYS: [(Handles, &str); 2] = [
    (Handles::Files, "import file descriptors"),
    (Handles::Fabric, "import fabric handles"),
];

fn make_the_calls_in_this_order(handles: Handles, import: &str) {
    let switch = Switch::new();
    let (all, sizes) = (&switch, Mutex::new(None));
    apart_by(handles, |rank, group| {
        let start = backed(group);
        let stride = group.stride();
        *sizes.lock().expect("no panic") = Some((start, stride));
        assert_eq!(auto(group, all, rank), MulticastState::On { bytes: start });
        group.heap.reserve(MORE).expect("memory");
        assert_eq!(group.multicast(), MulticastState::On { bytes: MORE });
        group.heap.on_all(&[true]).expect("all are here");
        close(group);
    });
    let (start, stride) = sizes.into_inner().expect("no panic").expect("told");
    let object = stride.next_multiple_of(RECOMMENDED);
    let create = format!("create 4 GPUs {object}");
    for rank in 0..WORLD {
        let first = match rank {
            0 => vec!["granularity 4 GPUs", &create, "export"],
            _ => vec!["granularity 4 GPUs", import],
        };
        assert_eq!(
            switch.calls(rank),
            sequence(&[0], &first, object, [start, MORE]),
            "rank {rank}"
        );
    }
    let log = switch.log();
    let is = |name: &'static str| move |(_, call): &(u32, String)| call.starts_with(name);
    let last_add = log.iter().rposition(is("add")).expect("added");
    let first = ["bind", "map"].map(|name| log.iter().position(is(name)).expect("done"));
    let first_wait = first.into_iter().min();
    assert!(Some(last_add) < first_wait, "{log:?}");
    assert_eq!(switch.wrong(), [""; 0]);
    assert!(switch.is_empty());
}

/// The calls that come before it is on.
fn opening() -> impl Iterator<Item = &'static str> {
    CALLS.into_iter().take_while(|call| *call != "unmap")
}

#[test]
fn what_the_driver_refuses_in_one_process_is_no_multicast_with_the_reason() {
    for call in opening().filter(|call| !["export", "import"].contains(call)) {
        let ranks = if ["add", "bind"].contains(&call) {
            0..WORLD as usize
        } else {
            0..1
        };
        for before in ranks {
            let (group, switch) = (together(), Switch::new());
            switch.refuse(0, call, before);
            let start = backed(&group);
            let MulticastState::Off { why, help } = auto(&group, &switch, 0) else {
                panic!("{call} was refused");
            };
            assert_eq!(
                (&why[..], &help[..]),
                (&*format!("{call} of multicast"), "go on without it")
            );
            assert!(switch.is_empty(), "{call}: {:?}", switch.calls(0));
            assert_eq!(switch.wrong(), [""; 0], "{call}");
            // Asked for again with `On`, it is that error, and then it may be there.
            switch.refuse(0, call, 2 * before + 1);
            let on = |switch| open(&group.heap, Multicast::On, Ok(Recorder::of(switch, 0)));
            if before == 0 {
                let refused = Error::from(on(&switch).expect_err("refused"));
                assert_eq!(refused.kind(), "driver", "{call}");
            }
            switch.refuse_nothing();
            on(&switch).expect("nothing is refused");
            assert_eq!(group.multicast(), MulticastState::On { bytes: start });
        }
    }
}

#[test]
fn what_one_of_four_processes_is_refused_all_are_told_alike_and_go_on() {
    for (handles, _) in WAYS {
        all_are_told_alike_and_go_on(handles);
    }
}

fn all_are_told_alike_and_go_on(handles: Handles) {
    for call in opening() {
        // Without `WIDE`: the first that makes it, and the last.
        let some = |rank: &u32| crate::wide::wide() || [0, 1, WORLD - 1].contains(rank);
        for refused in (0..WORLD).filter(some) {
            let own = match call {
                "create" | "export" => refused == 0,
                "import" => refused > 0,
                _ => true,
            };
            if !own {
                continue;
            }
            let switch = Switch::new();
            switch.refuse(refused, call, 0);
            let all = &switch;
            let states = apart_by(handles, |rank, group| {
                let state = auto(group, all, rank);
                group.heap.reserve(MORE).expect("it goes on");
                let room = (("x", Owner::Program), 1 << 20);
                group
                    .heap
                    .allocate(room.0, room.1, Room::Heap, LIMIT)
                    .expect("it goes on");
                let on = open(
                    &group.heap,
                    Multicast::On,
                    Err(crate::multicast::not_built()),
                );
                assert!(on.is_err_and(|why| why.what().starts_with("rank 0: multicast in")));
                state
            });
            let told = MulticastState::Off {
                why: format!("rank {refused}: {call} of multicast"),
                help: "go on without it".into(),
            };
            assert_eq!(
                states,
                vec![told; WORLD as usize],
                "{call} of rank {refused}"
            );
            assert_eq!(switch.wrong(), [""; 0], "{call} of rank {refused}");
            assert!(
                switch.is_empty(),
                "{call} of rank {refused}: {:?}",
                switch.log()
            );
            let log = switch.log();
            let waits = log
                .iter()
                .any(|(_, call)| call.starts_with("bind") || call.starts_with("map"));
            assert_eq!(
                waits,
                ["bind", "map"].contains(&call),
                "nobody waits for who cannot come"
            );
        }
    }
}

#[test]
fn one_process_that_may_not_is_enough_for_none_on_all() {
    let switch = Switch::new();
    let all = &switch;
    let states = apart(|rank, group| {
        let calls = match rank {
            2 => Err(crate::multicast::not_built()),
            _ => Ok(Recorder::of(all, rank)),
        };
        open(&group.heap, Multicast::Auto, calls).expect("it goes on");
        group.multicast()
    });
    for state in states {
        let MulticastState::Off { why, help } = state else {
            panic!("rank 2 may not");
        };
        assert_eq!(
            why,
            "rank 2: multicast in a program that was built without it"
        );
        assert!(help.contains("docs/multicast.md"), "{help}");
    }
    assert!(
        switch
            .log()
            .iter()
            .all(|(_, call)| call.starts_with("granularity"))
    );
}

#[test]
fn memory_that_cannot_be_added_to_it_is_there_without_multicast_on_all_ranks() {
    let switch = Switch::new();
    let (all, wanted) = (&switch, "rank 3: bind of multicast");
    apart(|rank, group| {
        let start = backed(group);
        auto(group, all, rank);
        if rank == 3 {
            all.refuse(3, "bind", 1);
        }
        group.heap.reserve(MORE).expect("memory");
        assert_eq!(group.multicast(), MulticastState::On { bytes: start });
        let state = group.heap.state();
        assert!(state.multicast.address(start - LEAST, LEAST).is_ok());
        let told = state
            .multicast
            .address(start - LEAST, LEAST + 1)
            .expect_err("behind it")
            .to_string();
        assert_eq!(told, format!("memory that no multicast reaches: {wanted}"));
        drop(state);
        // It is not tried again: kernels may use what there is.
        group.heap.reserve(2 * MORE).expect("memory");
        group.heap.on_all(&[true]).expect("all are here");
        close(group);
    });
    let binds = |rank| {
        switch
            .calls(rank)
            .iter()
            .filter(|call| call.starts_with("bind"))
            .count()
    };
    assert_eq!([0, 1, 2, 3].map(binds), [2; 4]);
    assert_eq!(switch.wrong(), [""; 0]);
    assert!(switch.is_empty());
}

#[test]
fn what_is_refused_while_it_is_undone_keeps_nothing_else_from_being_undone() {
    for call in ["unmap", "unbind", "release"] {
        let (group, switch) = (together(), Switch::new());
        auto(&group, &switch, 0);
        switch.refuse(0, call, 0);
        close(&group);
        let calls = switch.calls(0);
        let undone = calls.iter().skip_while(|call| !call.starts_with("unmap"));
        let names: Vec<_> = undone.filter_map(|call| call.split(' ').next()).collect();
        assert_eq!(
            names,
            ["unmap", "unbind", "unbind", "unbind", "unbind", "release"],
            "{call}"
        );
    }
}

#[test]
fn new_memory_comes_in_multiples_of_what_the_driver_binds() {
    let (group, switch) = (together(), Switch::new());
    let start = backed(&group);
    // What is there can be bound.
    let coarse = 1 << 20;
    assert!(!start.is_multiple_of(coarse) && coarse > emulated::PAGE);
    group.heap.reserve(2 * coarse).expect("memory");
    switch.coarser(coarse);
    auto(&group, &switch, 0);
    group.heap.reserve(2 * coarse + 1).expect("memory");
    assert_eq!(group.multicast(), MulticastState::On { bytes: 3 * coarse });
    assert_eq!(switch.wrong(), [""; 0]);
    // What is there already cannot be changed.
    let (group, switch) = (together(), Switch::new());
    switch.coarser(coarse);
    let MulticastState::Off { why, help } = auto(&group, &switch, 0) else {
        panic!("it does not fit");
    };
    let wanted = format!(
        "multicast to {start} bytes at 0 of each slot, where it takes multiples of {coarse}"
    );
    assert_eq!(why, wanted);
    assert!(
        help.contains("`reserve` a multiple of 1048576 bytes first"),
        "{help}"
    );
    switch.coarser(3);
    assert!(
        matches!(auto(&group, &switch, 0), MulticastState::Off { why, .. } if why.contains("granularity"))
    );
}

#[test]
fn ranks_on_one_gpu_and_a_rank_alone_have_none() {
    let told = |gpus: &[&str]| {
        let gpus: Vec<String> = gpus.iter().map(|gpu| (*gpu).to_owned()).collect();
        must_be_apart(&gpus).map_err(|error| error.to_string())
    };
    assert_eq!(told(&["a", "b", "c"]), Ok(()));
    assert_eq!(
        told(&["a", "b", "a"]),
        Err("multicast to ranks 0 and 2, which share a".into())
    );
    assert_eq!(told(&["a"]), Err("multicast to one rank".into()));
    let machine = Machine::new(2, 0, u64::MAX);
    let gpus = [0, 1, 0].map(|gpu| emulated::Gpu::of(&machine, gpu).into());
    let group = Group::new(gpus.to_vec(), Some(SLOT), LIMIT).expect("a group");
    let switch = Switch::new();
    let MulticastState::Off { why, .. } = auto(&group, &switch, 0) else {
        panic!("two ranks share a GPU");
    };
    assert_eq!(why, "multicast to ranks 0 and 2, which share GPU 0");
    assert!(switch.log().is_empty());
}

#[test]
fn what_is_on_stays_on_and_what_is_off_is_told_by_every_call() {
    let (group, switch) = (together(), Switch::new());
    let off = |group: &Group| open(&group.heap, Multicast::Off, Ok(Recorder::of(&switch, 0)));
    off(&group).expect("it is");
    assert!(switch.log().is_empty());
    let told = group
        .heap
        .state()
        .multicast
        .address(0, 1)
        .expect_err("off")
        .to_string();
    assert_eq!(
        told,
        "memory that no multicast reaches: nobody asked for multicast"
    );
    auto(&group, &switch, 0);
    let refused = Error::from(off(&group).expect_err("kernels may use it"));
    assert_eq!(refused.kind(), "usage");
    let state = group.heap.state();
    assert_eq!(state.multicast.address(64, 16).expect("on"), (1 << 40) + 64);
    let told = state
        .multicast
        .address(SLOT - 1, 1)
        .expect_err("adopted")
        .to_string();
    assert!(told.contains("adopted memory lies behind"), "{told}");
}

#[test]
fn a_driver_that_would_wait_for_ever_is_found_by_the_recorder() {
    let switch = Switch::new();
    let calls = Recorder::of(&switch, 0);
    let granularity = Granularity {
        least: LEAST,
        recommended: RECOMMENDED,
    };
    let team = Team {
        gpus: 2,
        bytes: RECOMMENDED,
        handles: Handles::Fabric,
    };
    let mut view = View::create(&calls, (team, granularity), vec![0]).expect("made");
    view.add().expect("one of two");
    let part = Part {
        gpu: 0,
        offset: 0,
        address: 0,
        bytes: LEAST,
    };
    view.bind(&[part]).expect_err("a GPU is missing");
    view.map().expect_err("a GPU is missing");
    let wrong = switch.wrong().join("\n");
    assert_eq!(
        wrong
            .matches("it waits for ever: 1 of 2 GPUs are added")
            .count(),
        2,
        "{wrong}"
    );
    // By a fabric handle, it is the same object in another process.
    let handed = view.export().expect("handed over");
    let other = Recorder::of(&switch, 1);
    let mut theirs = View::import(&other, &handed, (team, granularity), vec![0]).expect("theirs");
    theirs.add().expect("the second");
    view.bind(&[part]).expect("both are added");
    theirs.bind(&[part]).expect("both are added");
    let released = switch.wrong().len();
    drop((view, theirs));
    assert_eq!(switch.wrong().len(), released);
    assert!(switch.is_empty());
}
