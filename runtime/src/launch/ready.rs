//! A launch in two steps: all that may refuse it, and then what enqueues it. Launches that belong together are all ready
//! before the first is enqueued, so none of them is refused behind another.

use super::code::Code;
use super::prepared::Parameters;
use super::which::Which;
use super::{How, Loaded, State, Tensors};
use crate::begins::Begins;
use crate::communicator::Communicator;
use crate::cuda::{Function, LaunchConfig};
use crate::driver::Address;
use crate::error::Error;
use crate::group::Entry;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::verify::Checked;
use std::sync::{Arc, MutexGuard, PoisonError};

/// A launch that was checked, with its parameters. Nothing of it is enqueued.
pub(crate) struct Ready<'a> {
    loaded: &'a Loaded,
    rank: &'a Communicator,
    how: How<'a>,
    plan: &'a Plan,
    tensors: &'a Tensors,
    /// State whose latest parameters, table and copies are this launch's.
    state: MutexGuard<'a, State>,
    /// Its number in the ledger, once it is written.
    written: Option<u64>,
}

impl Loaded {
    /// Checks and prepares a launch. The caller has the rank's turn, and saw that the communicator is alive.
    ///
    /// # Errors
    /// As [`Loaded::launch`], but for what peers say.
    pub(crate) fn ready<'a>(
        &'a self,
        rank: &'a Communicator,
        how: How<'a>,
        plan: &'a Checked<Plan>,
        tensors: &'a Tensors,
    ) -> Result<Ready<'a>, Error> {
        self.is_of(rank)?;
        self.series.owns([plan]).map_err(Diagnostics::from)?;
        self.fits(rank, plan)?;
        if let Some((strange, place)) = tensors.strange(rank) {
            return Err(Error::Usage {
                what: format!("{} is in {place}", self.name(strange)),
                legal: "allocate it with this communicator, in the order of its stream".into(),
            });
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State {
            prepared,
            maps,
            tables,
            copies,
        } = &mut *state;
        let capturing = how.records;
        let arrivals = match &self.code {
            Code::LowLatency { .. } => Address::of(0),
            Code::Cuda { .. } | Code::Emulated { .. } => {
                tables.of(rank, &self.pipeline, plan, (&self.cells, &how), capturing)?
            }
        };
        prepared.of((Which::of(plan), arrivals), tensors.places(), || {
            self.admit(rank, plan)?;
            let mut parameters = Parameters::default();
            match &self.code {
                Code::Cuda { source, .. } => {
                    let arguments = &mut parameters.arguments;
                    self.fill(source, (arguments, maps), rank, plan, tensors, arrivals)?;
                }
                Code::Emulated { .. } => {
                    let launch = self.emulated(rank, plan, tensors)?;
                    parameters.emulated = Some(Arc::new(launch));
                }
                Code::LowLatency { largest, dtype, .. } => {
                    let sizes = (largest, *dtype);
                    self.exchanges(&mut parameters, sizes, rank, plan, tensors)?;
                }
            }
            Ok((parameters, self.entry(rank, plan, tensors)))
        })?;
        if let Some(cells) = &self.placed.cells {
            cells.ready(rank.rank())?;
        }
        self.scratch.ready(rank.rank())?;
        if let Some(slots) = self.slots() {
            slots.ready(rank.rank())?;
        }
        tensors.ready(rank.rank())?;
        if how.keeps.is_some() {
            // Replays come after what was enqueued in the rank's stream for them.
            drop(rank.own_stream().enter()?);
        }
        if self.copies {
            self.check_copies(rank, how.records, plan, tensors, copies)?;
        }
        Ok(Ready {
            loaded: self,
            rank,
            how,
            plan,
            tensors,
            state,
            written: None,
        })
    }
}

impl Ready<'_> {
    /// CTAs that are on the GPU while it waits for peers: its own, and those of the launch behind it that may begin meanwhile.
    pub fn ctas(&self) -> u32 {
        match self.state.prepared.latest().parameters.ctas {
            // It lets none come before its end.
            Some(own) => own,
            None => {
                let own = self.plan.grid.gemm + self.plan.grid.comm;
                (own + self.how.follower).min(self.rank.gpu().sms())
            }
        }
    }

    /// Its entry in the ledger, if a peer waits for it. A captured launch is compared at each replay.
    fn entry(&self) -> Option<&Entry> {
        let entry = self.state.prepared.latest().entry.as_ref();
        entry.filter(|_| !self.how.records)
    }

    /// Lets peers know of it. Nobody waits for a launch without an entry, so a rank that does not make it is not missed.
    /// From here on the host waits for nobody.
    ///
    /// # Errors
    /// As [`Attempt::write`](crate::attempt::Attempt::write).
    pub fn write(&mut self) -> Result<(), Error> {
        let written = self.entry().map(|entry| self.how.attempt.write(entry));
        self.written = written.transpose()?;
        Ok(())
    }

    /// Enqueues it, behind what `begins`. Peers know of it by then.
    ///
    /// # Errors
    /// What the driver refuses; what it had enqueued by then stays.
    pub fn enqueue(mut self, begins: Option<&dyn Begins>) -> Result<(), Error> {
        let ctas = self.ctas();
        let Ready {
            loaded,
            rank,
            how,
            plan,
            written,
            ..
        } = self;
        let State {
            prepared,
            tables,
            copies,
            ..
        } = &mut *self.state;
        let _entering = match how.records {
            true => None,
            false => rank.own_stream().enter()?,
        };
        let order = |launch: u64| rank.order(how.current, launch..=launch, ctas);
        let _enqueueing = written.map(order).transpose()?;
        let prepared = prepared.latest();
        if let (Some(launch), Some(entry)) = (written, &prepared.entry) {
            how.attempt.compare(launch, entry)?;
        }
        let Parameters {
            arguments,
            emulated,
            twin,
            ctas: exchanges,
        } = &prepared.parameters;
        let started = |function: &Function, grid: LaunchConfig| {
            let started = loaded.start(how.stream, function, grid, arguments);
            if let (Err(_), Some(unfinished)) = (&started, how.unfinished) {
                unfinished.unknown();
            }
            started
        };
        let kernel = || match &loaded.code {
            Code::Cuda {
                source, function, ..
            } => {
                let grid = loaded.grid((rank, &how), plan, source.threads, self.tensors);
                started(function, grid)
            }
            Code::LowLatency {
                function: Some(function),
                ..
            } => started(
                function,
                loaded.exchange_grid(&how, exchanges.unwrap_or(1), self.tensors),
            ),
            Code::LowLatency { function: None, .. } => {
                let mut twin = twin.iter();
                twin.try_for_each(|twin| how.stream.twin(twin.clone()))
            }
            Code::Emulated { .. } => {
                let mut launch = emulated.iter();
                launch.try_for_each(|launch| how.stream.emulate(launch.clone()))
            }
        };
        if let Some(begins) = begins {
            begins.begin()?;
        }
        if !loaded.copies {
            return kernel();
        }
        loaded.submit(rank, how, plan, self.tensors, copies, kernel)?;
        copies.launched(tables.everyone());
        Ok(())
    }
}
