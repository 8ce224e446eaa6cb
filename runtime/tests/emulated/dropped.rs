//! Communicators that are dropped while their ops launch.

use crate::schedules::{self, Sender};
use counterflow_runtime::driver::Stream;
use counterflow_runtime::{Communicator, Error, Op, Tensor, UserBuffer};
use half::bf16;
use std::time::{Duration, Instant};

const SIDE: usize = 8;
/// Launches that each rank wants to make.
const LAUNCHES: u32 = 100;

/// All that a rank's launches use. Nothing of it borrows the communicator.
struct Ready {
    op: Op,
    stream: Stream,
    x: UserBuffer<bf16>,
    w: Tensor<bf16>,
    y: Tensor<bf16>,
}

impl Ready {
    fn new(rank: &Communicator) -> Result<Ready, Error> {
        rank.reserve(2 << 20)?;
        let program = schedules::gather(Sender::Ctas(4));
        let builder = rank.op(&program).up_to(SIDE, SIDE, SIDE);
        let ready = Ready {
            op: builder.first_options().build()?,
            stream: rank.gpu().stream()?,
            x: rank.allocate("x", [SIDE, SIDE])?,
            w: rank.zeros([SIDE, SIDE])?,
            y: rank.zeros([SIDE, SIDE])?,
        };
        ready.x.write(&[bf16::ONE; SIDE * SIDE])?;
        ready.w.write(&[bf16::ONE; SIDE * SIDE])?;
        rank.barrier().map(|()| ready)
    }

    /// How many launches it made, and how they ended.
    fn launch(mut self) -> (u32, Result<(), Error>) {
        for made in 0..LAUNCHES {
            let launch = self.op.on(&self.stream).tensor("x", &self.x);
            let launch = launch.tensor("w", &self.w).tensor("y", &mut self.y);
            if let Err(error) = launch.launch() {
                return (made, Err(error));
            }
        }
        let right = |y: Vec<bf16>| assert_eq!(y, [bf16::from_f32(SIDE as f32); SIDE * SIDE]);
        (LAUNCHES, self.y.read().map(right))
    }
}

#[test]
fn a_communicator_may_be_dropped_while_its_ops_launch() -> Result<(), Error> {
    let (mut cut, start) = (0, Instant::now());
    for round in 0..24 {
        let mut ranks = Communicator::emulated(2)?;
        let ready = Communicator::each(&ranks, Ready::new)?;
        let ended = std::thread::scope(|scope| {
            let launching = ready.into_iter().map(|one| scope.spawn(|| one.launch()));
            let launching: Vec<_> = launching.collect();
            std::thread::sleep(Duration::from_micros(round * 100));
            drop(ranks.remove(round as usize % 2));
            let ended = launching
                .into_iter()
                .map(|thread| thread.join().expect("no panic"));
            ended.collect::<Vec<_>>()
        });
        let gone = round % 2;
        for (made, ended) in &ended {
            let Err(error) = ended else {
                // Its peer made all of them, too.
                assert_eq!(*made, LAUNCHES);
                continue;
            };
            cut += 1;
            let told = format!("rank {gone} ended early: its communicator was dropped after ");
            assert_eq!(error.kind(), "aborted", "{error}");
            assert!(error.to_string().starts_with(&told), "{error}");
        }
    }
    assert!(cut > 0, "no drop came while a rank launched");
    assert!(
        start.elapsed() < Duration::from_secs(50),
        "a time limit ended it"
    );
    Ok(())
}
