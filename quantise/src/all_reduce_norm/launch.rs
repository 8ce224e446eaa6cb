//! A launch of [`AllReduceNorm`]: its memory, checked, and its kernel or twin.
#![allow(unsafe_code)]

use super::op::AllReduceNorm;
use super::row::threads;
use super::text::{Loaded, NAME, each};
use super::twin::{At, Launched};
use crate::job::{Job, Order, Steps, Words};
use crate::kernels::{Recipe, Scaling};
use crate::plane::RowsLast;
use counterflow_codegen::encoding::Granularity;
use counterflow_codegen::rule::Fp8;
use counterflow_runtime::cuda::{Arguments, LaunchConfig};
use counterflow_runtime::op::{Argument, Caller, Input, Output, Part, Running, ScaleUse};
use counterflow_runtime::slots::Slots;
use counterflow_runtime::{Error, Pending};
use float8::{F8E4M3, F8E5M2};
use half::bf16;
use std::sync::Arc;

impl AllReduceNorm {
    /// A launch in the order of a stream, of the rank's launches, or in a graph. All ranks make the same ones, in one order.
    pub fn on<'a>(&'a self, caller: impl Into<Caller<'a>>) -> AllReduceNormLaunch<'a> {
        AllReduceNormLaunch {
            op: self,
            caller: caller.into(),
            rows: self.most[0],
            x: None,
            residual: None,
            gamma: None,
            y: None,
            amax: None,
        }
    }
}

/// A launch that is being put together. Nothing is enqueued before [`AllReduceNormLaunch::launch`].
///
/// [`AllReduceNorm`] has an example.
#[derive(Debug)]
#[must_use = "nothing is enqueued before `launch`"]
pub struct AllReduceNormLaunch<'a> {
    op: &'a AllReduceNorm,
    caller: Caller<'a>,
    rows: usize,
    x: Option<Argument<'a>>,
    residual: Option<Argument<'a>>,
    gamma: Option<Argument<'a>>,
    y: Option<Argument<'a>>,
    amax: Option<Argument<'a>>,
}

impl<'a> AllReduceNormLaunch<'a> {
    /// This rank's rows of bf16, which are added to those of the others. They may be anywhere on the rank's GPU.
    pub fn x(mut self, x: impl Input<'a>) -> Self {
        self.x = Some(x.into());
        self
    }

    /// Rows of bf16 that are added to the sum, the same on every rank. The new residual, which is the sum with them, takes their
    /// place.
    ///
    /// A launch that gives up does so in place, too, with NaN for what did not come: the old rows are lost. Whoever goes on
    /// after [`Error::Stalled`], with a new communicator, begins again from rows that were saved.
    pub fn residual(mut self, residual: impl Output<'a>) -> Self {
        self.residual = Some(residual.into());
        self
    }

    /// Factors of the columns: bf16.
    pub fn gamma(mut self, gamma: impl Input<'a>) -> Self {
        self.gamma = Some(gamma.into());
        self
    }

    /// Takes the normalised rows: bf16, or a `QuantTensor` as the recipe says. Of [`Scaling::Delayed`] that is
    /// `QuantTensor::output(codes, multiplier)`: the number is read when the kernel runs.
    pub fn y(mut self, y: impl Output<'a>) -> Self {
        self.y = Some(y.into());
        self
    }

    /// A number that becomes the largest absolute value of the result, of all rows of this launch and of itself: of
    /// [`Scaling::Delayed`] alone. [`DeviceHistory::amax`](crate::DeviceHistory::amax) is one. A launch that gives up raises it,
    /// too, by rows that are not whole: do not use it after [`Error::Stalled`].
    pub fn amax(mut self, amax: impl Output<'a>) -> Self {
        self.amax = Some(amax.into());
        self
    }

    /// The rows of this launch, the same on every rank. If it is not called: as many as it was built for. A launch of no rows
    /// enqueues no kernel, and counts as one where ranks wait for each other: all make it.
    pub fn rows(mut self, rows: usize) -> Self {
        self.rows = rows;
        self
    }

    /// Enqueues it and returns at once; it waits for no peer. Every wait of the kernel ends by the communicator's time limit. A
    /// graph may be replayed between launches of other rows.
    ///
    /// # Errors
    /// [`Error::Usage`], before anything is enqueued, for memory that is absent or not asked for, of another type, too
    /// small, of another rank or GPU, or that overlaps, and for more rows than it was built for. [`Error::Mismatch`] if a
    /// peer launches something else. [`Error::Stalled`] if an earlier launch gave up. When this one gives up, the wait for it
    /// tells so. It has written `y`, its scales, the residual and the amax by then, from what had come: none of them is a
    /// result, and the residual before is lost.
    pub fn launch(self) -> Result<Pending, Error> {
        let AllReduceNormLaunch {
            op,
            caller,
            rows,
            x,
            residual,
            gamma,
            y,
            amax,
        } = self;
        let [most, columns] = op.most;
        if rows > most {
            return Err(Error::Usage {
                what: format!("{rows} rows of {NAME}"),
                legal: format!("{most} at most: build it for more"),
            });
        }
        let mut y = y.ok_or_else(|| absent("y"))?;
        let amax = match (amax, y.take_amax()) {
            (Some(_), Some(_)) => {
                return Err(Error::Usage {
                    what: format!("two amaxes of {NAME}"),
                    legal: "give one: with y, or by `amax`".into(),
                });
            }
            (one, other) => one.or(other),
        };
        let (scales, words) = results(op.recipe, [rows, columns], &mut y)?;
        if amax.is_some() && op.recipe.map(|recipe| recipe.scaling) != Some(Scaling::Delayed) {
            return Err(Error::Usage {
                what: format!("an amax of {NAME} that does not measure it"),
                legal: "give no amax, or build it `quantised` with `Scaling::Delayed`".into(),
            });
        }
        let elements = rows * columns;
        let given = op.recipe.map(|recipe| recipe.scaling) == Some(Scaling::Delayed);
        let mut launches = op.launches.clone();
        let step = op.exchange.rank().step(caller);
        let mut step = match &op.kernel {
            Some(kernel) => step.keep(kernel.clone()),
            None => step,
        };
        let part = Part::of::<u32>(launches.len()).written("launches");
        let launches = step.add(part, &mut launches);
        let bf16s = Part::of::<bf16>(elements);
        let x = step.add(bf16s.read("x"), x.ok_or_else(|| absent("x"))?);
        let residual = residual.ok_or_else(|| absent("residual"))?;
        let residual = step.add(bf16s.written("residual"), residual);
        let gamma = gamma.ok_or_else(|| absent("gamma"))?;
        let gamma = step.add(Part::of::<bf16>(columns).read("gamma"), gamma);
        let codes = match op.recipe.map(|recipe| recipe.rule.to) {
            None => bf16s,
            Some(Fp8::E4M3) => Part::of::<F8E4M3>(elements),
            Some(Fp8::E5M2) => Part::of::<F8E5M2>(elements),
        };
        let y = step.add(codes.written("y"), y);
        let numbers = scales.map(|scales| {
            let part = match given {
                true => Part::of::<f32>(1).read("multiplier"),
                false => Part::of::<f32>(words.len()).by_elements().written("scales"),
            };
            step.add(part, scales)
        });
        let amax = amax.map(|amax| step.add(Part::of::<f32>(1).written("amax"), amax));
        let ctas = (rows as u32).min(op.exchange.most_ctas());
        let work = |running: &Running<'_>| {
            if rows == 0 {
                return Ok(());
            }
            let at = |part: usize| running.address(part).get();
            let at = At {
                launches: at(launches),
                x: at(x),
                residual: at(residual),
                gamma: at(gamma),
                y: at(y),
                scales: numbers.filter(|_| !given).map(at),
                multiplier: numbers.filter(|_| given).map(at),
                amax: amax.map(at),
            };
            match &op.kernel {
                // SAFETY: parts and slots are as large as so many rows need them, and written where the kernel writes; each
                // CTA has a word of `launches`; every wait ends by `gives_up`.
                Some(kernel) => unsafe { op.enqueue(kernel, running, (at, words), (rows, ctas)) },
                None => {
                    let twin = op.launched(at, words, rows as u64);
                    op.exchange.run_twin(running, Arc::new(twin))
                }
            }
        };
        // SAFETY: as above.
        unsafe { op.exchange.launch(step, (rows as u32, ctas), work) }
    }
}

impl AllReduceNorm {
    /// # Safety
    /// Memory at these addresses is as the kernel uses it.
    unsafe fn enqueue(
        &self,
        Loaded(kernel): &Loaded,
        running: &Running<'_>,
        (at, words): (At, Words),
        (rows, ctas): (usize, u32),
    ) -> Result<(), Error> {
        let columns = self.most[1];
        let mut arguments = Arguments::new();
        arguments.bytes(&self.exchange.watch());
        let Slots { first, each, .. } = self.slots();
        let (slots, stride) = first.unwrap_or_default();
        let slots = [slots, stride, each];
        arguments.bytes(&slots.map(u64::to_le_bytes).concat());
        let optional = [at.scales, at.multiplier, at.amax].map(Option::unwrap_or_default);
        let memory = [at.launches, at.x, at.residual, at.gamma, at.y];
        for address in memory.into_iter().chain(optional) {
            arguments.bytes(&address.to_le_bytes());
        }
        for number in [self.launches.len(), rows, columns, words.padded[0]] {
            arguments.number(number as u32);
        }
        let grid = LaunchConfig::of(ctas, threads(columns).0 as u32);
        // SAFETY: the caller's promise; the step keeps the memory until the kernel has ended.
        unsafe { kernel.launch(running.stream().cuda()?, grid, &arguments) }
    }

    fn slots(&self) -> Slots {
        let rank = self.exchange.rank();
        let [rows, columns] = self.most;
        Slots {
            rank: rank.rank().into(),
            world: rank.world().into(),
            first: (self.exchange.slots()).map(|(first, stride)| (first.get(), stride)),
            each: each(rows, columns),
        }
    }

    fn launched(&self, at: At, plane: Words, rows: u64) -> Launched {
        Launched {
            slots: self.slots(),
            rows,
            columns: self.most[1],
            eps: self.eps,
            recipe: self.recipe,
            plane,
            at,
        }
    }
}

/// The scales of a result, or the number that it is multiplied by, and their places. None of bf16.
fn results<'a>(
    recipe: Option<Recipe>,
    shape: [usize; 2],
    y: &mut Argument<'a>,
) -> Result<(Option<Argument<'a>>, Words), Error> {
    let none = Words {
        strides: [0, 0],
        padded: [0, 0],
    };
    // Without a recipe, codes with scales are refused as bf16 that has them.
    let Some(recipe) = recipe else {
        return Ok((None, none));
    };
    let wanted = match recipe.scaling {
        Scaling::Delayed => ScaleUse::Quantises,
        Scaling::Current(granularity) => ScaleUse::Dequantises(granularity),
    };
    let scales = match y.take_scales() {
        Some((is, scales)) if is == wanted => scales,
        found => {
            let found = found.map_or("without scales".to_owned(), |(is, _)| format!("with {is}"));
            return Err(Error::Usage {
                what: format!("y of {NAME} is given {found}"),
                legal: format!("give a `QuantTensor` with {wanted}"),
            });
        }
    };
    let blocks = recipe.scaling == Scaling::Current(Granularity::BLOCK_1X128);
    let mut job = Job {
        recipe,
        shape,
        order: blocks.then(Order::of::<RowsLast>),
        lines: [None; 2],
        piece: None,
        steps: Steps::All,
        at: Default::default(),
    };
    job.lines[0] = job.line("scales", job.plane(), scales.shape())?;
    Ok((Some(scales), job.plane()))
}

fn absent(name: &str) -> Error {
    Error::Usage {
        what: format!("{NAME} without {name}"),
        legal: format!("give {name}: every launch has it"),
    }
}
