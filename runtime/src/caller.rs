//! Whose order a launch is in.

use crate::communicator::Communicator;
use crate::driver::{Event, Stream};
use crate::error::Error;
use crate::pending::Pending;
use crate::recording::Recording;
use cudarc::driver::CudaStream;
use std::sync::Arc;

/// Whose order a launch is in: that of a stream, of a rank itself, or of a graph that is recorded.
#[derive(Clone, Debug)]
pub struct Caller<'a>(Kind<'a>);

#[derive(Clone, Debug)]
enum Kind<'a> {
    Rank(&'a Communicator),
    Stream(Stream),
    Recording(&'a Recording),
}

/// The same, seen from the rank that launches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// The rank's own stream, alone.
    Own,
    /// Another stream: after what is in it, before what comes later.
    Outside(&'a Stream),
    /// A graph.
    Recording(&'a Recording),
}

impl<'a> From<&'a Communicator> for Caller<'a> {
    fn from(rank: &'a Communicator) -> Self {
        Caller(Kind::Rank(rank))
    }
}

impl<'a> From<&'a Recording> for Caller<'a> {
    fn from(recording: &'a Recording) -> Self {
        Caller(Kind::Recording(recording))
    }
}

impl From<&Stream> for Caller<'_> {
    fn from(stream: &Stream) -> Self {
        Caller(Kind::Stream(stream.clone()))
    }
}

impl From<&Arc<CudaStream>> for Caller<'_> {
    fn from(stream: &Arc<CudaStream>) -> Self {
        Caller(Kind::Stream(stream.clone().into()))
    }
}

impl Caller<'_> {
    /// Whether nothing runs now.
    pub(crate) fn records(&self) -> bool {
        matches!(self.0, Kind::Recording(_))
    }

    /// Where a launch of that rank goes.
    ///
    /// # Errors
    /// [`Error::Usage`] for another rank, a stream of another GPU, and a stream that records a graph: this one, or the
    /// rank's own, where a launch would be recorded that nothing keeps.
    pub(crate) fn place(&self, rank: &Communicator) -> Result<Place<'_>, Error> {
        let others = |other: &Communicator| {
            Err(Error::Usage {
                what: format!("a launch of rank {} on rank {}", rank.rank(), other.rank()),
                legal: "each rank launches what it built".into(),
            })
        };
        let records = |whose: &str| {
            Err(Error::Usage {
                what: format!("a launch on {whose} that records a graph"),
                legal: "launch on what `Communicator::capture` gives its closure: its graph keeps the tensors".into(),
            })
        };
        match &self.0 {
            Kind::Rank(other) if !other.is(rank) => others(other),
            Kind::Recording(recording) if recording.rank().is(rank) => {
                Ok(Place::Recording(recording))
            }
            Kind::Recording(recording) => others(recording.rank()),
            Kind::Stream(stream) if stream.is_capturing() => records("a stream"),
            // Nobody records a stream that nobody has.
            Kind::Rank(_) | Kind::Stream(_)
                if rank.has_lent() && rank.own_stream().is_capturing() =>
            {
                records("a rank's own stream")
            }
            Kind::Rank(_) => Ok(Place::Own),
            Kind::Stream(stream) if stream.is(rank.own_stream()) => Ok(Place::Own),
            Kind::Stream(stream) if !rank.gpu().has(stream) => Err(Error::Usage {
                what: format!("a stream of another GPU than rank {}'s", rank.rank()),
                legal: format!("give a stream of GPU {}", rank.gpu().ordinal()),
            }),
            Kind::Stream(stream) => Ok(Place::Outside(stream)),
        }
    }
}

/// Enqueues `work` in the rank's stream: after what is in the other stream, and before what comes later there. `waits`
/// says whether it waits for peers. The caller has the rank's turn.
pub(crate) fn in_order(
    rank: &Arc<Communicator>,
    outside: Option<&Stream>,
    waits: bool,
    work: impl FnOnce() -> Result<(), Error>,
) -> Result<Pending, Error> {
    let own = rank.own_stream();
    if let Some(stream) = outside {
        own.wait(&Event::order(stream)?)?;
    }
    work()?;
    let done = Arc::new(Event::order(own)?);
    if let Some(stream) = outside {
        stream.wait(&done)?;
        if waits {
            rank.stands(stream, &done);
        }
    }
    Ok(Pending::new(rank, done))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::{Gpu, Machine};
    use crate::schedules::{Sender, gather};
    use crate::tensor::Tensor;
    use std::time::Duration;

    /// Each rank of one GPU launches on its stream of these; how it ends on both.
    fn launched(own: impl Fn(u32) -> usize + Sync) -> Vec<Result<(), String>> {
        let machine = Machine::new(1, 0, u64::MAX);
        let gpus = (0..2).map(|_| Gpu::of(&machine, 0).into());
        let ranks = Communicator::of(gpus.collect(), Some(8 << 20), Duration::from_secs(60));
        let ranks = ranks.expect("emulated ranks");
        let streams = [0, 1].map(|_| ranks[0].gpu().stream().expect("a stream"));
        let ended = Communicator::each(&ranks, |rank| {
            rank.reserve(4 << 20)?;
            let program = gather(Sender::Ctas(4));
            let op = rank.op(&program).up_to(8, 8, 8);
            let op = op.first_options().build()?;
            let x = rank.allocate::<half::bf16>("x", [8, 8])?;
            let (w, mut y) = (rank.zeros::<half::bf16>([8, 8])?, rank.zeros([8, 8])?);
            let y: &mut Tensor<half::bf16> = &mut y;
            let mut launch = |stream: &Stream| {
                let launch = op.on(stream).tensor("x", &x).tensor("w", &w);
                launch.tensor("y", &mut *y).launch().map(drop)
            };
            let stream = &streams[own(rank.rank())];
            if rank.rank() == 0 {
                launch(stream)?;
            }
            rank.barrier()?;
            let ended = match rank.rank() {
                0 => rank.synchronize(),
                _ => launch(stream).and_then(|()| rank.synchronize()),
            };
            Ok(ended.map_err(|error| error.to_string()))
        });
        ended.expect("no rank fails")
    }

    #[test]
    fn a_rank_is_refused_in_a_stream_behind_a_launch_that_waits_for_it() {
        assert_eq!(launched(|rank| rank as usize), [Ok(()), Ok(())]);
        let told = "launch 0 of rank 1 comes after launch 0 of rank 0 in one stream, and that waits for it";
        let [Err(first), Err(second)] = &launched(|_| 0)[..] else {
            panic!("each waits for the other");
        };
        assert_eq!(second, told);
        assert_eq!(
            first,
            &format!("rank 1 ended early: it does not launch gather: {told}")
        );
    }
}
