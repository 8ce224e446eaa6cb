//! One launch of an op: what it is given, the checks, its place among the caller's work.

use super::argument::{self, Given};
use super::built::Inner;
use super::given::Argument;
use crate::communicator::Communicator;
use crate::driver::{Event, Stream};
use crate::error::Error;
use crate::launch::{How, Tensors};
use crate::pending::Pending;
use counterflow_codegen::program::TensorId;
use cudarc::driver::CudaStream;
use std::sync::Arc;

/// Whose order a launch is in.
#[derive(Clone, Debug)]
pub struct Caller<'a>(Kind<'a>);

#[derive(Clone, Debug)]
enum Kind<'a> {
    Rank(&'a Communicator),
    Stream(Stream),
}

impl<'a> From<&'a Communicator> for Caller<'a> {
    fn from(rank: &'a Communicator) -> Self {
        Caller(Kind::Rank(rank))
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

/// A launch that is being put together. Nothing is enqueued before [`Launch::launch`].
#[derive(Debug)]
#[must_use = "nothing is enqueued before `launch`"]
pub struct Launch<'a> {
    op: &'a Inner,
    caller: Caller<'a>,
    given: Vec<(String, Argument<'a>)>,
    rows: Option<usize>,
}

impl<'a> Launch<'a> {
    pub(super) fn new(op: &'a Inner, caller: Caller<'a>) -> Launch<'a> {
        Launch {
            op,
            caller,
            given: Vec::new(),
            rows: None,
        }
    }

    /// Gives the schedule's tensor of that name: `&` an input, `&mut` an output. What is gathered may be given by `&`.
    pub fn tensor(mut self, name: &str, memory: impl Into<Argument<'a>>) -> Self {
        self.given.push((name.into(), memory.into()));
        self
    }

    /// The rows of this launch over all ranks, at most those that the op was built for. All ranks give the same. If it
    /// is not called: as many as the op was built for.
    pub fn rows(mut self, m: usize) -> Self {
        self.rows = Some(m);
        self
    }

    /// Enqueues it and returns at once; it waits for no peer. What is given is kept for as long as the launch needs it.
    ///
    /// # Errors
    /// [`Error::Usage`], before anything is enqueued, for a tensor that is absent or has another name, type, shape,
    /// communicator or GPU than it needs, for an output given by `&`, for tensors that overlap where one is written, and
    /// for a stream that records a graph or is of another GPU. [`Error::Rejected`] for more rows than the op was built
    /// for. [`Error::Mismatch`] if a peer launches something else. [`Error::Stalled`] if an earlier launch gave up.
    /// Where ranks wait for each other, a refusal ends the communicator: the peers are told, instead of waiting.
    pub fn launch(self) -> Result<Pending, Error> {
        let op = self.op;
        op.rank.alive()?;
        self.checked().inspect_err(|error| {
            // What only this rank refuses, its peers would wait for.
            if op.loaded.waits(&op.rank) {
                let name = &op.kernel().name;
                op.rank
                    .ended_early(&format!("it does not launch {name}: {error}"));
            }
        })
    }

    fn checked(self) -> Result<Pending, Error> {
        let Launch {
            op,
            caller,
            given,
            rows,
        } = self;
        let rank = &op.rank;
        let outside = outside(rank, &caller)?;
        let m = match rows {
            Some(rows) => u32::try_from(rows).map_err(|_| Error::Usage {
                what: format!("a launch of {rows} rows"),
                legal: format!("at most {}", op.series.most().m),
            })?,
            None => op.series.most().m,
        };
        let plan = op.plan(m)?;
        let mut tensors = Tensors::new();
        let mut checked: Vec<(TensorId, Given)> = Vec::with_capacity(given.len());
        for (name, argument) in &given {
            let id = argument::find(op.kernel(), name)?;
            if checked.iter().any(|(known, _)| *known == id) {
                return Err(Error::Usage {
                    what: format!("{name} was given twice"),
                    legal: "give every tensor once".into(),
                });
            }
            let seen = argument.seen_from(rank);
            argument::check_one(op.kernel(), &plan, id, &seen)?;
            argument.bind(id, &mut tensors);
            checked.push((id, seen));
        }
        argument::check_all(op.kernel(), &checked)?;
        argument::check_overlap(op.kernel(), &plan, &checked)?;
        let own = rank.own_stream();
        let _turn = rank.turn();
        if let Some(stream) = outside {
            own.wait(&Event::order(stream)?)?;
        }
        let how = How {
            stream: own,
            early: outside.is_none() && (op.early || !rank.has_lent()),
            graph: false,
        };
        op.loaded.launch_as(rank, how, &plan, &tensors)?;
        let done = Event::order(own)?;
        if let Some(stream) = outside {
            stream.wait(&done)?;
        }
        Ok(Pending::new(rank, done))
    }
}

/// The caller's stream, if it is not the rank's.
fn outside<'b>(rank: &Communicator, caller: &'b Caller<'_>) -> Result<Option<&'b Stream>, Error> {
    match &caller.0 {
        Kind::Rank(own) if own.is(rank) => Ok(None),
        Kind::Rank(other) => Err(Error::Usage {
            what: format!(
                "an op of rank {} launched on rank {}",
                rank.rank(),
                other.rank()
            ),
            legal: "each rank launches the op that it built".into(),
        }),
        Kind::Stream(stream) if stream.is_capturing() => Err(Error::Usage {
            what: "a launch on a stream that records a graph".into(),
            legal: "record it by `Communicator::capture`: its graph keeps the tensors".into(),
        }),
        Kind::Stream(stream) if stream.is(rank.own_stream()) => Ok(None),
        Kind::Stream(stream) if !rank.gpu().has(stream) => Err(Error::Usage {
            what: format!("a stream of another GPU than rank {}'s", rank.rank()),
            legal: format!("give a stream of GPU {}", rank.gpu().ordinal()),
        }),
        Kind::Stream(stream) => Ok(Some(stream)),
    }
}
