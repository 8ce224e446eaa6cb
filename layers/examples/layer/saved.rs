//! What overlap saves: steps with it and without it, side by side.

use crate::Options;
use crate::average::Averages;
use crate::model::Model;
use counterflow::{Error, Tensor, prelude::bf16};
use counterflow_layers::{Autocast, RngTracker, Userbuffers};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Times of a step: forward and backward, without the optimizer or averages over replicas.
#[derive(Clone, Debug)]
pub struct Times {
    /// With communication beside products, and with the same communication before and after them: by rounds, in turns.
    rounds: Vec<[Duration; 2]>,
    /// With communication beside products, the median round.
    overlapped: Duration,
    /// With the same communication before and after them.
    sequential: Duration,
    /// Of that, communication by itself.
    communication: Duration,
}

impl Times {
    /// What overlap saves of a step, in milliseconds: less than 0 where it costs.
    fn saved(&self) -> f64 {
        milliseconds(self.sequential) - milliseconds(self.overlapped)
    }

    /// The part of the communication that products hide: 0 where there is none.
    fn efficiency(&self) -> f64 {
        match self.communication.is_zero() {
            true => 0.0,
            false => self.saved() / milliseconds(self.communication),
        }
    }

    /// Lines for the log.
    pub fn told(&self, is_emulated: bool) -> Vec<String> {
        let mut lines = vec![
            format!(
                "Step without overlap: {:.3} ms, of which communication: {:.3} ms",
                milliseconds(self.sequential),
                milliseconds(self.communication)
            ),
            format!("Step with overlap: {:.3} ms", milliseconds(self.overlapped)),
            format!(
                "Time saved: {:.3} ms ({:.1} %), overlap efficiency: {:.1} %",
                self.saved(),
                100.0 * self.saved() / milliseconds(self.sequential),
                100.0 * self.efficiency()
            ),
        ];
        let rounds = self.rounds.iter();
        let saved = rounds.map(|[on, off]| milliseconds(*off) - milliseconds(*on));
        let saved = Vec::from_iter(saved.map(|saved| format!("{saved:.3}")));
        lines.push(format!(
            "Saved in each round after warm-up: {} ms",
            saved.join(", ")
        ));
        if is_emulated {
            lines.push("Times are the emulator's: a GPU's are others".into());
        }
        lines
    }
}

fn milliseconds(of: Duration) -> f64 {
    1e3 * of.as_secs_f64()
}

const STEPS: u32 = 3;
const ROUNDS: usize = 3;

/// A step.
fn once(
    buffers: &Userbuffers,
    model: &mut Model,
    sizes: [usize; 2],
    x: &Tensor<bf16>,
) -> Result<(), Error> {
    let in_fp8 = model.is_fp8().then(|| buffers.autocast(None)).transpose()?;
    let (y, saved) = model.forward(sizes, x)?;
    model.backward(saved, &y, &Averages::new(None, &|| 0))?;
    in_fp8.map_or(Ok(()), Autocast::end)
}

/// A step's time, in the mean of some.
fn step(
    buffers: &Userbuffers,
    model: &mut Model,
    sizes: [usize; 2],
    x: &Tensor<bf16>,
) -> Result<Duration, Error> {
    let rank = buffers.rank();
    rank.synchronize()?;
    rank.barrier()?;
    let start = Instant::now();
    for _ in 0..STEPS {
        once(buffers, model, sizes, x)?;
    }
    rank.synchronize()?;
    Ok(start.elapsed() / STEPS)
}

/// The middle of an odd number of rounds.
fn median(of: impl Iterator<Item = Duration>) -> Duration {
    let mut all = Vec::from_iter(of);
    all.sort();
    all[all.len() / 2]
}

/// Time on the GPU of what moves data and multiplies nothing, in a step of such a model.
fn communication(
    buffers: &Userbuffers,
    model: &mut Model,
    sizes: [usize; 2],
    x: &Tensor<bf16>,
) -> Result<Duration, Error> {
    let rank = buffers.rank();
    let moves = || {
        let counts = rank.op_counts().into_iter();
        let moves = counts.filter(|of| {
            let name = &of.schedule;
            name.starts_with("all_gather") || name.starts_with("reduce_scatter")
        });
        moves.map(|of| of.gpu_time).sum::<Duration>()
    };
    rank.synchronize()?;
    let before = moves();
    rank.time_launches(true);
    for _ in 0..STEPS {
        once(buffers, model, sizes, x)?;
    }
    rank.synchronize()?;
    let after = moves();
    rank.time_launches(false);
    Ok((after - before) / STEPS)
}

/// Times of a model that overlaps, and of the same one without overlap, which is built for it. Collective.
pub fn times(
    buffers: &Userbuffers,
    options: &Options,
    rng: &Arc<RngTracker>,
    model: &mut Model,
    (sizes, x): ([usize; 2], &Tensor<bf16>),
) -> Result<Times, Error> {
    let without = Options {
        no_comm_overlap: true,
        ..options.clone()
    };
    let mut without = Model::new(buffers, &without, rng)?;
    let mut round = || {
        Ok::<_, Error>([
            step(buffers, model, sizes, x)?,
            step(buffers, &mut without, sizes, x)?,
        ])
    };
    round()?; // warms up
    let rounds = (0..ROUNDS).map(|_| round());
    let rounds: Vec<_> = rounds.collect::<Result<_, Error>>()?;
    Ok(Times {
        overlapped: median(rounds.iter().map(|of| of[0])),
        sequential: median(rounds.iter().map(|of| of[1])),
        communication: communication(buffers, &mut without, sizes, x)?,
        rounds,
    })
}
