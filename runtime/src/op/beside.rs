//! Communicators that share a GPU, one of which captured a launch: none waits for what another one's host waits for.

use super::Op;
use crate::communicator::Communicator;
use crate::driver::{Graph, Stream};
use crate::emulated::{self, Machine};
use crate::error::Error;
use crate::op::captured::LONG;
use crate::pending::Pending;
use crate::schedules::{Sender, gather, product};
use crate::tensor::Tensor;
use half::bf16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

const SIDE: usize = 8;

/// Two ranks, each on a GPU, and a rank alone on the first one's.
pub(super) fn three(limit: Duration) -> (Vec<Communicator>, Communicator) {
    let machine = Machine::new(2, 0, u64::MAX);
    let ranks = |gpus: &[u32]| {
        let gpus = gpus
            .iter()
            .map(|gpu| emulated::Gpu::of(&machine, *gpu).into());
        Communicator::of(gpus.collect(), Some(8 << 20), limit).expect("ranks")
    };
    (ranks(&[0, 1]), ranks(&[0]).remove(0))
}

/// A rank with a launch that waits for nobody.
pub(super) struct Local {
    op: Op,
    w: Tensor<bf16>,
    y: Tensor<bf16>,
}

impl Local {
    pub(super) fn new(rank: &Communicator) -> Local {
        let program = product((64, 64));
        let built = rank.op(&program).up_to(SIDE, SIDE, SIDE).first_options();
        Local {
            op: built.build().expect("an op"),
            w: rank.zeros([SIDE, SIDE]).expect("w"),
            y: rank.zeros([SIDE, SIDE]).expect("y"),
        }
    }

    pub(super) fn launch(&mut self, on: &Stream) -> Result<Pending, Error> {
        let launch = self.op.on(on).tensor("x", &self.w).tensor("w", &self.w);
        launch.tensor("y", &mut self.y).launch()
    }

    /// A graph with that launch: from then on, all that is enqueued on the GPU comes in one order.
    pub(super) fn capture(&mut self, rank: &Communicator) -> Graph {
        let stream = rank.gpu().stream().expect("a stream");
        Graph::record(&stream).expect("recording");
        self.launch(&stream).expect("captured");
        Graph::recorded(&stream).expect("a graph")
    }
}

#[test]
fn a_rank_that_is_held_back_by_a_slow_peer_holds_no_other_communicator() {
    const MANY: u32 = 4096;
    let (pair, alone) = three(LONG);
    let mut local = Local::new(&alone);
    let _graph = local.capture(&alone);
    let (made, late) = (&AtomicU32::new(0), &AtomicBool::new(false));
    let done = scope(|scope| {
        let ranks = scope.spawn(|| {
            Communicator::each(&pair, |rank| {
                let program = gather(Sender::Ctas(4));
                rank.reserve(4 << 20)?;
                let op = rank.op(&program).up_to(SIDE, SIDE, SIDE);
                let op = op.first_options().build()?;
                while rank.rank() == 1 && !late.load(Ordering::Acquire) {
                    sleep(Duration::from_millis(1));
                }
                for _ in 0..=MANY {
                    op.on(rank).rows(0).launch()?;
                    made.fetch_add(1 - rank.rank(), Ordering::AcqRel);
                }
                rank.synchronize()?;
                rank.barrier()
            })
        });
        while made.load(Ordering::Acquire) < MANY {
            sleep(Duration::from_millis(1));
        }
        // The next one waits for rank 1.
        sleep(Duration::from_millis(50));
        let launch = scope.spawn(|| local.launch(alone.own_stream()).map(drop));
        let start = Instant::now();
        while !launch.is_finished() && start.elapsed() < Duration::from_secs(2) {
            sleep(Duration::from_millis(1));
        }
        let waited = start.elapsed();
        late.store(true, Ordering::Release);
        let launched = launch.join().expect("no panic");
        ranks.join().expect("no panic").expect("all launch");
        launched.map(|()| waited)
    });
    let waited = done.expect("a launch");
    assert!(waited < Duration::from_secs(2), "it waited for rank 1");
}

#[test]
fn a_thread_waits_for_another_ones_turn_on_the_gpu_as_long_as_the_communicator_says() {
    let (pair, alone) = three(Duration::from_millis(300));
    let mut local = Local::new(&alone);
    let _graph = local.capture(&alone);
    let holding = alone.own_stream().enter().expect("nobody is in");
    let start = Instant::now();
    let told = scope(|scope| {
        let launch = scope.spawn(|| Local::launch(&mut Local::new(&pair[0]), pair[0].own_stream()));
        launch.join()
    });
    // To allocate the tensors is to enqueue, too.
    let waited = start.elapsed();
    drop(holding);
    assert!(told.is_err(), "somebody was in");
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

/// A launch that entered before the first capture is enqueued before it, or after it: not beside it.
#[test]
fn the_order_of_a_gpu_opens_when_nobody_is_enqueueing() {
    let (pair, alone) = three(LONG);
    let (rank, opened) = (Arc::new(pair[0].handle()), &AtomicBool::new(false));
    let entering = alone.own_stream().enter().expect("nobody is in");
    scope(|scope| {
        let opens = scope.spawn(|| {
            let current = rank.gpu().current()?;
            rank.open_lane(current).map(drop)?;
            opened.store(true, Ordering::Release);
            Ok::<(), Error>(())
        });
        sleep(Duration::from_millis(100));
        assert!(!opened.load(Ordering::Acquire), "somebody is in");
        drop(entering);
        opens.join().expect("no panic").expect("opened");
    });
}

#[test]
fn a_local_launch_takes_tensors_of_its_ranks_own_ancestors_alone() {
    let machine = Machine::new(1, 0, u64::MAX);
    let gpus = (0..2).map(|_| emulated::Gpu::of(&machine, 0).into());
    let ranks = Communicator::of(gpus.collect(), Some(8 << 20), LONG).expect("ranks");
    let made = Communicator::each(&ranks, |rank| {
        let group = rank.split(rank.rank(), 0)?;
        let below = group.split(0, 0)?;
        let beside = rank.split(rank.rank(), 0)?;
        let tensors = [rank, &group, &beside].map(|of| of.zeros::<bf16>([SIDE, SIDE]));
        Ok((below, beside, tensors))
    });
    let made = made.expect("groups");
    let strange = Communicator::of(vec![emulated::Gpu::of(&machine, 0).into()], None, LONG);
    let strange = strange.expect("a rank").remove(0);
    let strange = strange.zeros::<bf16>([SIDE, SIDE]).expect("memory");
    for rank in 0..2 {
        let (below, _, [of_world, of_group, of_beside]) = &made[rank];
        let (_, _, [of_peer, ..]) = &made[1 - rank];
        let Local { op, w, mut y } = Local::new(below);
        let mut launch = |x: &Tensor<bf16>| {
            let launch = op.on(below).tensor("x", x).tensor("w", &w);
            launch.tensor("y", &mut y).launch().map(drop)
        };
        for x in [of_world.as_ref(), of_group.as_ref()] {
            launch(x.expect("memory")).expect("an ancestor's");
        }
        for x in [of_peer.as_ref(), of_beside.as_ref(), Ok(&strange)] {
            let told = launch(x.expect("memory")).expect_err("of somebody else");
            assert_eq!(told.kind(), "usage", "{told}");
            assert!(
                told.to_string().contains("memory of another rank"),
                "{told}"
            );
        }
    }
}

/// The parent's stream comes after a local launch that has a tensor of it. So that may not stand behind what waits for the
/// parent's rank.
#[test]
fn a_local_launch_does_not_lead_its_ancestor_behind_a_peer_that_waits_for_it() {
    let machine = Machine::new(1, 0, u64::MAX);
    let gpus = (0..2).map(|_| emulated::Gpu::of(&machine, 0).into());
    let ranks = Communicator::of(gpus.collect(), Some(8 << 20), LONG).expect("ranks");
    let nobodys = ranks[0].gpu().stream().expect("a stream");
    let done = Communicator::each(&ranks, |rank| {
        rank.reserve(4 << 20)?;
        let group = rank.split(rank.rank(), 0)?;
        let program = gather(Sender::Ctas(4));
        let op = rank.op(&program).up_to(SIDE, SIDE, SIDE);
        let op = op.first_options().build()?;
        let x = rank.allocate::<bf16>("x", [SIDE, SIDE])?;
        let w = rank.zeros::<bf16>([SIDE, SIDE])?;
        let mut y = rank.zeros::<bf16>([SIDE, SIDE])?;
        let gather = |on: &Stream, y: &mut Tensor<bf16>| {
            let launch = op.on(on).tensor("x", &x).tensor("w", &w);
            launch.tensor("y", y).launch().map(drop)
        };
        let Local {
            op: local,
            y: mut z,
            ..
        } = Local::new(&group);
        if rank.rank() == 0 {
            gather(&nobodys, &mut y)?;
        }
        rank.barrier()?;
        if rank.rank() == 1 {
            let launch = local.on(&nobodys).tensor("x", &w).tensor("w", &w);
            let told = launch
                .tensor("y", &mut z)
                .launch()
                .expect_err("it would hang");
            assert!(
                told.to_string()
                    .starts_with("rank 1 comes behind launch 0 of rank 0 in one stream"),
                "{told}"
            );
            gather(rank.own_stream(), &mut y)?;
        }
        rank.synchronize()?;
        rank.barrier()
    });
    done.map(drop).expect("fine");
}
