//! One launch of an op: what it is given, the checks, its place among the caller's work.

use super::argument::{self, Given};
use super::built::Inner;
use super::given::{Argument, Open};
use crate::caller::{Caller, Place, in_order};
use crate::error::Error;
use crate::launch::{How, Tensors};
use crate::pending::Pending;
use counterflow_codegen::program::TensorId;

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
        let now = !self.caller.records();
        self.checked().inspect_err(|error| {
            // What only this rank refuses, its peers would wait for.
            if now && op.loaded.waits(&op.rank) {
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
            mut given,
            rows,
        } = self;
        let rank = &op.rank;
        let place = caller.place(rank)?;
        let m = match rows {
            Some(rows) => u32::try_from(rows).map_err(|_| Error::Usage {
                what: format!("a launch of {rows} rows"),
                legal: format!("at most {}", op.series.most().m),
            })?,
            None => op.series.most().m,
        };
        let plan = op.plan(m)?;
        let own = rank.own_stream();
        let outside = match place {
            Place::Outside(stream) => Some(stream),
            Place::Own | Place::Recording(_) => None,
        };
        let users = match place {
            Place::Recording(_) => None,
            Place::Own | Place::Outside(_) => Some(outside.unwrap_or(own)),
        };
        let mut tensors = Tensors::new();
        let mut checked: Vec<(TensorId, Given)> = Vec::with_capacity(given.len());
        let mut opened = Vec::with_capacity(given.len());
        for (name, argument) in &mut given {
            let id = argument::find(op.kernel(), name)?;
            if checked.iter().any(|(known, _)| *known == id) {
                return Err(Error::Usage {
                    what: format!("{name} was given twice"),
                    legal: "give every tensor once".into(),
                });
            }
            let open = argument.open(name, rank, users)?;
            argument::check_one(op.kernel(), &plan, id, &open.given)?;
            open.bind(id, &mut tensors);
            checked.push((id, open.given.clone()));
            opened.push(open);
        }
        argument::check_all(op.kernel(), &checked)?;
        argument::check_overlap(op.kernel(), &plan, &checked)?;
        let foreign = opened.iter().any(Open::is_foreign);
        let _turn = rank.turn();
        if let Place::Recording(recording) = place {
            let how = How {
                stream: recording.stream(),
                early: false,
                graph: true,
            };
            op.loaded.launch_as(rank, how, &plan, &tensors)?;
            let entry = op.loaded.entry(rank, &plan, &tensors);
            let kept = opened.iter().filter_map(Open::kept);
            let ctas = plan.grid.gemm + plan.grid.comm;
            recording.add((op.loaded.clone(), entry, ctas), kept);
            return Ok(Pending::recorded(rank));
        }
        let how = How {
            stream: own,
            early: outside.is_none() && !foreign && (op.early || !rank.has_lent()),
            graph: false,
        };
        let done = in_order(rank, outside, || {
            op.loaded.launch_as(rank, how, &plan, &tensors)
        })?;
        for open in opened {
            open.close(&done)?;
        }
        Ok(done)
    }
}
