//! What is printed of a rank's things: who they are, and not all that they lead to.

use crate::schedules::{self, Sender};
use counterflow_runtime::driver::Event;
use counterflow_runtime::{Communicator, Error};
use half::bf16;

/// More than is ever read of a line.
const MOST: usize = 4000;

#[test]
fn what_is_printed_of_a_launch_has_no_memory_in_it() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        rank.reserve(4 << 20)?;
        let program = schedules::gather(Sender::Ctas(4));
        let op = rank.op(&program).up_to(256, 64, 64).build()?;
        let x = rank.allocate::<bf16>("x", [256, 64])?;
        let (w, mut y) = (
            rank.zeros::<bf16>([64, 64])?,
            rank.zeros::<bf16>([256, 64])?,
        );
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        let done = launch.tensor("y", &mut y).launch()?;
        done.wait()?;
        let marked = Event::record(rank.stream())?;
        let shown = [
            ("a launch", format!("{done:?}")),
            ("a rank", format!("{rank:?}")),
            ("a buffer", format!("{x:?}")),
            ("a tensor", format!("{w:?}")),
            ("an op", format!("{op:?}")),
            ("a stream", format!("{:?}", rank.stream())),
            ("an event", format!("{marked:?}")),
        ];
        for (name, text) in shown {
            let start: String = text.chars().take(MOST).collect();
            assert!(text.len() < MOST, "{name}: {} bytes: {start}", text.len());
        }
        assert_eq!(
            format!("{rank:?}"),
            format!(
                "Communicator {{ rank: {0}, world: 2, gpu: {0}, .. }}",
                rank.rank()
            )
        );
        rank.barrier()
    })
    .map(drop)
}
