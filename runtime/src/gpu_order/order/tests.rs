use super::*;
use std::cell::RefCell;

/// Events by their numbers: which are past.
#[derive(Default)]
struct Past(RefCell<Vec<bool>>);

impl Past {
    fn event(&self) -> usize {
        self.0.borrow_mut().push(false);
        self.0.borrow().len() - 1
    }

    fn pass(&self, event: usize) {
        self.0.borrow_mut()[event] = true;
    }

    fn is(&self, event: usize) -> bool {
        self.0.borrow()[event]
    }
}

fn at(gpu: u32) -> Where {
    Where { machine: 0, gpu }
}

/// Communicators on GPUs of so many SMs.
struct Machine {
    order: Order<(), usize>,
    past: Past,
    sms: u32,
}

impl Machine {
    /// Communicator 0, 1 and so on, with the GPU of each rank.
    fn new(sms: u32, members: &[&[u32]]) -> Machine {
        let mut order = Order::new();
        for (member, gpus) in (0..).zip(members) {
            order.join(member, gpus.iter().map(|gpu| (at(*gpu), ())));
        }
        Machine {
            order,
            past: Past::default(),
            sms,
        }
    }

    fn begin(
        &mut self,
        (member, launches): (u64, RangeInclusive<u64>),
        (gpu, index): (u32, usize),
        ctas: u32,
    ) -> Turn<usize> {
        let past = &self.past;
        let (ours, rank) = ((member, &launches), (at(gpu), index));
        self.order
            .begin(ours, rank, (ctas, self.sms), |event| past.is(*event))
    }

    /// Enqueues a launch; what it waits for, and its event.
    fn launch(&mut self, ours: Launch, gpu: u32, index: usize, ctas: u32) -> (Vec<usize>, usize) {
        self.replay((ours.0, ours.1..=ours.1), gpu, index, ctas)
    }

    /// Replays launches in a row.
    fn replay(
        &mut self,
        ours: (u64, RangeInclusive<u64>),
        gpu: u32,
        index: usize,
        ctas: u32,
    ) -> (Vec<usize>, usize) {
        let last = (ours.0, *ours.1.end());
        let Turn::After(waits) = self.begin(ours, (gpu, index), ctas) else {
            panic!("{last:?} is not enqueued on GPU {gpu}");
        };
        let event = self.past.event();
        self.order.end(last, at(gpu), index, Last::Marked(event));
        (waits, event)
    }

    /// Number of turns that a communicator's ranks on a GPU have yet to take.
    fn turns(&mut self, member: u64, gpu: u32) -> usize {
        let place = self.order.place(member, at(gpu));
        place.map_or(0, |place| place.turns.len())
    }
}

#[test]
fn what_fits_runs_side_by_side_and_what_does_not_waits() {
    let mut machine = Machine::new(132, &[&[0], &[0], &[0]]);
    let (waits, first) = machine.launch((0, 0), 0, 0, 60);
    assert!(waits.is_empty());
    let (waits, second) = machine.launch((1, 0), 0, 0, 72);
    assert!(waits.is_empty(), "60 and 72 CTAs fit");
    let (waits, third) = machine.launch((2, 0), 0, 0, 1);
    assert_eq!(waits, [first, second]);
    machine.past.pass(first);
    machine.past.pass(second);
    let (waits, _) = machine.launch((0, 1), 0, 0, 132);
    assert_eq!(waits, [third], "what is past needs no wait");
}

/// So no order of a trial's launches and the program's is refused, and none of the program's comes behind a trial.
#[test]
fn nobody_waits_for_who_yields_and_that_waits_for_others() {
    let mut machine = Machine::new(132, &[&[0, 1], &[0, 1]]);
    machine.order.yields(1);
    machine.launch((1, 0), 0, 0, 132);
    let (waits, first) = machine.launch((0, 0), 0, 0, 132);
    assert!(
        waits.is_empty(),
        "the trial runs, and the program's launch does not wait"
    );
    assert_eq!(machine.launch((1, 1), 0, 0, 132).0, [first]);
    let (waits, other) = machine.launch((0, 0), 1, 0, 132);
    assert!(waits.is_empty());
    assert_eq!(
        machine.launch((1, 0), 1, 0, 132).0,
        [other],
        "in the other order there"
    );
}

#[test]
fn a_communicator_alone_on_its_gpus_waits_for_nobody() {
    let mut machine = Machine::new(132, &[&[0, 1], &[2]]);
    for launch in 0..3 {
        assert_eq!(
            machine.begin((0, launch..=launch), (0, 0), 132),
            Turn::After(Vec::new())
        );
        assert!(machine.order.end_alone((0, launch), at(0), 0));
    }
}

#[test]
fn two_communicators_in_two_orders_are_told_both() {
    let mut machine = Machine::new(132, &[&[0, 1], &[0, 1]]);
    let (_, first) = machine.launch((0, 0), 0, 0, 132);
    assert_eq!(machine.launch((1, 0), 0, 0, 132).0, [first]);
    machine.launch((1, 0), 1, 0, 132);
    let Turn::Crossed(crossed) = machine.begin((0, 0..=0), (1, 0), 132) else {
        panic!("each would wait for the other");
    };
    assert_eq!(
        crossed.to_string(),
        "two communicators take turns in two orders: on GPU 1 launch 0 of communicator 0 comes after launch 0 of communicator 1, and on GPU 0 that waits for it"
    );
}

#[test]
fn three_communicators_in_a_circle_are_told() {
    let mut machine = Machine::new(132, &[&[0, 1], &[1, 2], &[2, 0]]);
    machine.launch((0, 0), 0, 0, 100);
    machine.launch((2, 0), 0, 0, 100);
    machine.launch((1, 0), 1, 0, 100);
    machine.launch((0, 0), 1, 0, 100);
    machine.launch((2, 0), 2, 0, 100);
    // 0 before 2 on GPU 0, 1 before 0 on GPU 1, and so 1 may not come after 2.
    assert!(matches!(
        machine.begin((1, 0..=0), (2, 0), 100),
        Turn::Crossed(_)
    ));
    // In the same order they may.
    let mut machine = Machine::new(132, &[&[0, 1], &[1, 2], &[2, 0]]);
    machine.launch((0, 0), 0, 0, 100);
    machine.launch((2, 0), 0, 0, 100);
    machine.launch((1, 0), 1, 0, 100);
    machine.launch((0, 0), 1, 0, 100);
    machine.launch((1, 0), 2, 0, 100);
    machine.launch((2, 0), 2, 0, 100);
}

#[test]
fn ranks_of_one_gpu_take_their_turn_together() {
    let mut machine = Machine::new(132, &[&[0, 0], &[0, 0]]);
    let (_, first) = machine.launch((0, 0), 0, 0, 66);
    let (waits, other) = machine.launch((1, 0), 0, 0, 66);
    assert_eq!(waits, [first]);
    // The other communicator is there, but behind this one's first rank.
    assert!(machine.launch((0, 0), 0, 1, 66).0.is_empty());
    assert_eq!(machine.launch((1, 0), 0, 1, 66).0, [first]);
    assert!(machine.launch((0, 1), 0, 0, 66).0.contains(&other));
}

#[test]
fn a_launch_from_before_another_communicator_came_counts() {
    let mut machine = Machine::new(132, &[&[0, 0]]);
    assert_eq!(
        machine.begin((0, 0..=0), (0, 0), 66),
        Turn::After(Vec::new())
    );
    assert!(machine.order.end_alone((0, 0), at(0), 0));
    machine.order.join(1, [(at(0), ())]);
    assert_eq!(machine.begin((1, 0..=0), (0, 0), 132), Turn::Busy);
    let unmarked = machine.order.unmarked(&[at(0)]);
    assert_eq!(unmarked, [(0, at(0), 0, ())]);
    let event = machine.past.event();
    machine.order.mark((0, at(0), 0), event);
    assert_eq!(machine.launch((1, 0), 0, 0, 132).0, [event]);
    // The second rank of the launch from before does not wait for who waits for the first.
    assert!(machine.launch((0, 0), 0, 1, 66).0.is_empty());
    // And while a launch is being enqueued, others ask again.
    assert!(matches!(
        machine.begin((0, 1..=1), (0, 0), 66),
        Turn::After(_)
    ));
    assert_eq!(machine.begin((1, 1..=1), (0, 0), 132), Turn::Busy);
}

#[test]
fn a_graph_on_one_rank_and_launches_on_another_are_one_turn() {
    let mut machine = Machine::new(132, &[&[0, 0], &[0]]);
    for round in 0..100 {
        let first = 3 * round;
        // Either rank comes first.
        let (replays, launches) = ((round % 2) as usize, (1 - round % 2) as usize);
        machine.replay((0, first..=first + 2), 0, replays, 60);
        for launch in first..first + 3 {
            machine.launch((0, launch), 0, launches, 60);
        }
        assert_eq!(machine.turns(0, 0), 0, "round {round}");
    }
    for round in 100..200 {
        let first = 3 * round;
        machine.launch((0, first), 0, 0, 60);
        machine.replay((0, first..=first + 2), 0, 1, 60);
        machine.launch((0, first + 1), 0, 0, 60);
        machine.launch((0, first + 2), 0, 0, 60);
        assert_eq!(machine.turns(0, 0), 0, "round {round}");
    }
}

#[test]
fn a_graph_does_not_wait_between_its_launches_for_another_communicator() {
    // Rank 1 replays launches 0 to 2 behind rank 0's launch 0, and the other communicator comes in between.
    let mut machine = Machine::new(132, &[&[0, 0], &[0]]);
    machine.launch((0, 0), 0, 0, 60);
    machine.launch((1, 0), 0, 0, 132);
    let Turn::Split(split) = machine.begin((0, 0..=2), (0, 1), 60) else {
        panic!("launch 1 of rank 0 would wait for who waits for its peer");
    };
    assert_eq!(
        split.to_string(),
        "a rank on GPU 0 replays launches 0 to 2 of communicator 0 at once, and another rank there lets launch 0 of communicator 1 come between them"
    );
    // Rank 0 waits for it before launch 1.
    let mut machine = Machine::new(132, &[&[0, 0], &[0]]);
    machine.launch((0, 0), 0, 0, 60);
    let (_, event) = machine.launch((1, 0), 0, 0, 132);
    machine.launch((0, 1), 0, 0, 60);
    let begin = |machine: &mut Machine| machine.begin((0, 0..=1), (0, 1), 60);
    assert!(matches!(begin(&mut machine), Turn::Split(_)));
    machine.past.pass(event);
    assert!(matches!(begin(&mut machine), Turn::After(_)));
    // Rank 0 replays, so the other waits for all of it, and rank 1 for none of that.
    let mut machine = Machine::new(132, &[&[0, 0], &[0]]);
    let (_, replayed) = machine.replay((0, 0..=2), 0, 0, 60);
    assert_eq!(machine.launch((1, 0), 0, 0, 132).0, [replayed]);
    for launch in 0..3 {
        assert!(machine.launch((0, launch), 0, 1, 60).0.is_empty());
    }
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// A launch of one rank in its stream.
struct Queued {
    launch: Launch,
    rank: usize,
    gpu: u32,
    ctas: u32,
    waits: Vec<usize>,
    event: usize,
    resident: bool,
}

/// Communicators on three GPUs of four SMs. A rank's launches run in order, and a launch ends once all its ranks are
/// resident. Gives how many of the launches never end, and how many were refused.
fn simulate(seed: u64, ordered: bool) -> (usize, usize) {
    const SMS: u32 = 4;
    const LAUNCHES: u64 = 4;
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
    let members: Vec<Vec<u32>> = (0..3)
        .map(|_| {
            (0..2 + numbers.below(2))
                .map(|_| numbers.below(3) as u32)
                .collect()
        })
        .collect();
    let gpus: Vec<&[u32]> = members.iter().map(Vec::as_slice).collect();
    let mut machine = Machine::new(SMS, &gpus);
    let most = |member: usize| {
        let sharing = |gpu: &u32| members[member].iter().filter(|other| *other == gpu).count();
        SMS as usize / members[member].iter().map(sharing).max().unwrap_or(1)
    };
    let ctas: Vec<Vec<u32>> = (0..members.len())
        .map(|member| {
            (0..LAUNCHES)
                .map(|_| 1 + numbers.below(most(member)) as u32)
                .collect()
        })
        .collect();
    let mut next: Vec<Vec<u64>> = members.iter().map(|gpus| vec![0; gpus.len()]).collect();
    let mut queued: Vec<Queued> = Vec::new();
    let mut refused = Vec::new();
    loop {
        let waiting: Vec<(usize, usize)> = (0..members.len())
            .filter(|member| !refused.contains(member))
            .flat_map(|member| (0..members[member].len()).map(move |rank| (member, rank)))
            .filter(|(member, rank)| next[*member][*rank] < LAUNCHES)
            .collect();
        // A rank launches, or a GPU takes a launch.
        if !waiting.is_empty() && numbers.below(2) == 0 {
            let (member, rank) = waiting[numbers.below(waiting.len())];
            let gpu = members[member][rank];
            let first = next[member][rank];
            let last = (first + numbers.below(2) as u64).min(LAUNCHES - 1);
            let member = member as u64;
            let most = (first..=last).map(|launch| ctas[member as usize][launch as usize]);
            let most = most.max().unwrap_or(0);
            let index = members[member as usize][..rank]
                .iter()
                .filter(|other| **other == gpu)
                .count();
            match machine.begin((member, first..=last), (gpu, index), most) {
                Turn::After(waits) => {
                    for launch in first..=last {
                        // The first of a graph's launches waits for others.
                        let waits = match ordered && launch == first {
                            true => waits.clone(),
                            false => Vec::new(),
                        };
                        queued.push(Queued {
                            launch: (member, launch),
                            rank,
                            gpu,
                            ctas: ctas[member as usize][launch as usize],
                            waits,
                            event: machine.past.event(),
                            resident: false,
                        });
                    }
                    let event = queued.last().map_or(0, |last| last.event);
                    machine
                        .order
                        .end((member, last), at(gpu), index, Last::Marked(event));
                    next[member as usize][rank] = last + 1;
                }
                Turn::Busy => panic!("nobody is enqueueing"),
                // Its communicator is dead: what it has enqueued drains.
                Turn::Crossed(_) | Turn::Split(_) => {
                    refused.push(member as usize);
                    queued.retain(|one| {
                        let dead = one.launch.0 == member;
                        if dead {
                            machine.past.pass(one.event);
                        }
                        !dead
                    });
                }
            }
            continue;
        }
        let taken = |gpu| -> u32 {
            let here = queued.iter().filter(|one| one.resident && one.gpu == gpu);
            here.map(|one| one.ctas).sum()
        };
        let ready: Vec<usize> = (0..queued.len())
            .filter(|at| {
                let one = &queued[*at];
                let first = !queued[..*at]
                    .iter()
                    .any(|before| (before.launch.0, before.rank) == (one.launch.0, one.rank));
                !one.resident
                    && first
                    && one.waits.iter().all(|event| machine.past.is(*event))
                    && taken(one.gpu) + one.ctas <= SMS
            })
            .collect();
        if ready.is_empty() {
            if waiting.is_empty() {
                return (queued.len(), refused.len());
            }
            continue;
        }
        let at = ready[numbers.below(ready.len())];
        queued[at].resident = true;
        let launch = queued[at].launch;
        let ranks = members[launch.0 as usize].len();
        let resident = queued
            .iter()
            .filter(|one| one.launch == launch && one.resident);
        if resident.count() == ranks {
            queued.retain(|one| {
                if one.launch == launch {
                    machine.past.pass(one.event);
                }
                one.launch != launch
            });
        }
    }
}

#[test]
fn whatever_is_not_refused_ends() {
    let (mut stuck, mut refused) = (0, 0);
    let seeds: usize = if crate::wide::wide() { 3000 } else { 1000 };
    for seed in 0..seeds as u64 {
        let (left, crossed) = simulate(seed, true);
        assert_eq!(left, 0, "seed {seed}: launches wait for each other");
        refused += usize::from(crossed > 0);
        stuck += usize::from(simulate(seed, false).0 > 0);
    }
    assert!(
        stuck > seeds / 15,
        "without an order only {stuck} of {seeds} hang"
    );
    assert!(
        refused > seeds / 30 && refused < seeds,
        "{refused} seeds were refused"
    );
}

#[test]
fn who_is_on_the_same_gpus_is_company_but_for_trials() {
    let mut machine = Machine::new(132, &[&[0, 1], &[1, 2], &[3], &[0, 1]]);
    machine.order.leave(3);
    let company = |machine: &Machine| [0, 1, 2].map(|member| machine.order.has_company(member));
    assert_eq!(company(&machine), [true, true, false]);
    machine.order.yields(1);
    // The trial itself is beside somebody.
    assert_eq!(company(&machine), [false, true, false]);
    machine.order.leave(1);
    assert_eq!(company(&machine), [false; 3]);
}

#[test]
fn a_gpu_is_busy_beside_a_communicator_until_others_launches_end() {
    let mut machine = Machine::new(132, &[&[0, 1], &[0, 1], &[0]]);
    let busy = |machine: &Machine, member, gpu| {
        let past = |event: &usize| machine.past.is(*event);
        machine.order.is_busy_beside(member, at(gpu), past)
    };
    assert!(!busy(&machine, 0, 0));
    let Turn::After(_) = machine.begin((1, 1..=1), (0, 0), 8) else {
        panic!("it is enqueued");
    };
    assert!(busy(&machine, 0, 0), "it is being enqueued");
    let event = machine.past.event();
    machine.order.end((1, 1), at(0), 0, Last::Marked(event));
    assert!(busy(&machine, 0, 0) && !busy(&machine, 0, 1));
    assert!(!busy(&machine, 1, 0), "its own");
    machine.past.pass(event);
    assert!(!busy(&machine, 0, 0));
    // A trial's launches count, too.
    machine.order.yields(2);
    let (_, event) = machine.launch((2, 1), 0, 0, 8);
    assert!(busy(&machine, 0, 0));
    machine.past.pass(event);
    assert!(!busy(&machine, 0, 0));
}
