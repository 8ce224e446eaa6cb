//! The kernels, with what each reads and writes, and how its values are checked.

use crate::AROUND;
use crate::numbers::{looked_at, of_bf16, random, row, same};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::side::twin::{self, Mask};
use counterflow_layers::side::{ElementKernels, LossKernels, NormKernels, RopeKernels};
use counterflow_layers::{Activation, Norm, Normalization, Statistics};
use std::sync::Arc;

/// A kernel that is timed.
pub struct Case<'a> {
    pub name: String,
    /// What it reads and writes, each once.
    pub bytes: usize,
    /// Enqueues it on some of the data.
    pub run: Box<dyn FnMut(usize) -> Result<(), Error> + 'a>,
    /// Compares what it made of the first data with the twin.
    pub check: Box<dyn Fn() -> Result<(), Error> + 'a>,
}

/// A tensor of several sets of rows, which launches take in turns.
struct Sets(Vec<Tensor<bf16>>);

impl Sets {
    fn of(all: &Tensor<bf16>, rows: usize) -> Result<Sets, Error> {
        let sets = 0..all.shape()[0] / rows;
        let views = sets.map(|at| all.rows(at * rows..(at + 1) * rows));
        Ok(Sets(views.collect::<Result<_, Error>>()?))
    }

    fn at(&self, launch: usize) -> &Tensor<bf16> {
        &self.0[launch % self.0.len()]
    }

    /// Another handle of the same memory.
    fn to(&self, launch: usize) -> Tensor<bf16> {
        self.at(launch).clone()
    }
}

/// Operands and results.
pub struct Data {
    rows: usize,
    hidden: usize,
    between: usize,
    x: Sets,
    dy: Sets,
    residual: Sets,
    y: Sets,
    wide: Sets,
    of_wide: Sets,
    narrow: Sets,
    dz: Sets,
    z: Sets,
    heads: Sets,
    gamma: Tensor<bf16>,
    beta: Tensor<bf16>,
    statistics: Tensor<f32>,
    targets: Tensor<u32>,
    depth: usize,
}

impl Data {
    /// For so many rows of those sizes: hidden, between the products of an MLP, and of qkv.
    pub fn new(
        rank: &Communicator,
        rows: usize,
        [hidden, between, qkv]: [usize; 3],
        is_small: bool,
    ) -> Result<Data, Error> {
        let sets = match is_small {
            true => 2,
            false => (AROUND / (rows * hidden * size_of::<bf16>())).clamp(1, 8),
        };
        let made = |columns: usize, seed| {
            Sets::of(&random(rank, [sets * rows, columns], seed, 3.0)?, rows)
        };
        let statistics = rank.zeros::<f32>([rows, 2])?;
        let targets = rank.zeros::<u32>([rows])?;
        let classes = 2 * between;
        let target = |row: usize| (row * 7919 % classes) as u32;
        targets.write(&Vec::from_iter((0..rows).map(target)))?;
        Ok(Data {
            x: made(hidden, 1)?,
            dy: made(hidden, 2)?,
            residual: made(hidden, 3)?,
            y: made(hidden, 4)?,
            wide: made(2 * between, 5)?,
            of_wide: made(2 * between, 6)?,
            narrow: made(between, 7)?,
            dz: made(between, 8)?,
            z: made(between, 9)?,
            heads: made(qkv, 10)?,
            gamma: random(rank, [1, hidden], 11, 2.0)?,
            beta: random(rank, [1, hidden], 12, 2.0)?,
            rows,
            hidden,
            between,
            statistics,
            targets,
            depth: if is_small { 16 } else { 128 },
        })
    }

    fn bytes(&self, hidden: usize, between: usize) -> usize {
        self.rows * (hidden * self.hidden + between * self.between) * size_of::<bf16>()
    }

    /// Compares the rows that are looked at.
    fn rows_of(
        &self,
        what: &str,
        found: &Sets,
        wanted: impl Fn(usize) -> Result<Vec<bf16>, Error>,
    ) -> Result<(), Error> {
        looked_at(self.rows).into_iter().try_for_each(|at| {
            let found = row(found.at(0), at)?;
            same(
                &format!("{what} of row {at}"),
                &found,
                &wanted(at)?,
                of_bf16,
            )
        })
    }

    fn statistics_of(&self, at: usize) -> Result<Statistics, Error> {
        let found = row(&self.statistics, at)?;
        let (mean, rstd) = (found[0], found[1]);
        Ok(Statistics { mean, rstd })
    }

    /// Compares gradients of a norm's weights in some columns, over all rows. The first launch added to zeros.
    fn gradients_of_norm(
        &self,
        of_gamma: &Tensor<f32>,
        of_beta: Option<&Tensor<f32>>,
    ) -> Result<(), Error> {
        const SOME: usize = 8;
        let [x, dy] = [&self.x, &self.dy].map(|of| of.at(0).read());
        let (x, dy, statistics) = (x?, dy?, self.statistics.read()?);
        let of = statistics.chunks_exact(2).map(|of| Statistics {
            mean: of[0],
            rstd: of[1],
        });
        let of: Vec<Statistics> = of.collect();
        for first in [0, self.hidden - SOME] {
            let some = |of: &[bf16]| -> Vec<bf16> {
                let rows = of.chunks_exact(self.hidden);
                rows.flat_map(|row| row[first..first + SOME].to_vec())
                    .collect()
            };
            let (mut gamma, mut beta) = ([0f32; SOME], [0f32; SOME]);
            Norm::gradients(&some(&x), &some(&dy), &of, (&mut gamma, Some(&mut beta)));
            let found = &of_gamma.read()?[first..first + SOME];
            same("of gamma", found, &gamma, f32::to_bits)?;
            if let Some(of_beta) = of_beta {
                let found = &of_beta.read()?[first..first + SOME];
                same("of beta", found, &beta, f32::to_bits)?;
            }
        }
        Ok(())
    }
}

/// Every kernel that is timed, in an order in which those before leave what the next ones read.
pub fn all<'a>(rank: &Arc<Communicator>, data: &'a Data) -> Result<Vec<Case<'a>>, Error> {
    let mut all = Vec::new();
    for kind in [Normalization::RmsNorm, Normalization::LayerNorm] {
        all.extend(norms(rank, data, kind)?);
    }
    let elements = ElementKernels::load(rank)?;
    for activation in [Activation::SwiGlu, Activation::Gelu] {
        all.extend(activations(&elements, data, activation));
    }
    all.extend(sums(&elements, data));
    all.push(rope(rank, data)?);
    all.push(loss(rank, data)?);
    Ok(all)
}

fn norms<'a>(
    rank: &Arc<Communicator>,
    data: &'a Data,
    kind: Normalization,
) -> Result<Vec<Case<'a>>, Error> {
    let norm = Norm::new(kind);
    let kernels = Arc::new(NormKernels::load(rank, norm)?);
    let (name, beta) = match kind {
        Normalization::RmsNorm => ("rms_norm", None),
        Normalization::LayerNorm => ("layer_norm", Some(&data.beta)),
    };
    let shape = [data.rows, data.hidden];
    let affine = (&data.gamma, beta);
    let (own, mut statistics) = (kernels.clone(), data.statistics.clone());
    let forward = Case {
        name: name.into(),
        bytes: data.bytes(2, 0),
        run: Box::new(move |at| {
            let y = &mut data.y.to(at);
            own.forward(shape, data.x.at(at), affine, y, &mut statistics)
        }),
        check: Box::new(move || {
            let (gamma, beta) = (affine.0.read()?, affine.1.map(Tensor::read).transpose()?);
            data.rows_of("y", &data.y, |at| {
                let mut y = vec![bf16::ZERO; data.hidden];
                let found =
                    norm.forward(&row(data.x.at(0), at)?, (&gamma, beta.as_deref()), &mut y);
                let bits = |of: Statistics| [of.mean.to_bits(), of.rstd.to_bits()];
                let wanted = bits(data.statistics_of(at)?);
                same("statistics", &bits(found), &wanted, |bits| bits)?;
                Ok(y)
            })
        }),
    };
    let of_gamma = rank.zeros::<f32>([1, data.hidden])?;
    let of_beta = rank.zeros::<f32>([1, data.hidden])?;
    let (mut to_gamma, mut to_beta) = (of_gamma.clone(), beta.map(|_| of_beta.clone()));
    let backward = Case {
        name: format!("{name}_backward"),
        bytes: data.bytes(4, 0),
        run: Box::new(move |at| {
            let (both, of) = (
                (data.x.at(at), data.dy.at(at)),
                (&data.gamma, &data.statistics),
            );
            let (residual, dx) = (Some(data.residual.at(at)), &mut data.y.to(at));
            let to = (&mut to_gamma, to_beta.as_mut());
            kernels.backward(shape, both, of, residual, dx, to)
        }),
        check: Box::new(move || {
            let gamma = data.gamma.read()?;
            data.rows_of("dx", &data.y, |at| {
                let mut dx = vec![bf16::ZERO; data.hidden];
                let [x, dy, more] = [&data.x, &data.dy, &data.residual].map(|of| row(of.at(0), at));
                let of = (&gamma[..], data.statistics_of(at)?);
                norm.backward(&x?, &dy?, of, Some(&more?), &mut dx);
                Ok(dx)
            })?;
            data.gradients_of_norm(&of_gamma, beta.map(|_| &of_beta))
        }),
    };
    Ok(vec![forward, backward])
}

fn activations<'a>(
    kernels: &ElementKernels,
    data: &'a Data,
    activation: Activation,
) -> [Case<'a>; 2] {
    let (name, inputs, x, dx) = match activation {
        Activation::SwiGlu => ("swiglu", 2, &data.wide, &data.of_wide),
        Activation::Gelu => ("gelu", 1, &data.narrow, &data.of_wide),
    };
    let (rows, columns) = (data.rows, data.between);
    let own = kernels.clone();
    let forward = Case {
        name: name.into(),
        bytes: data.bytes(0, inputs + 1),
        run: Box::new(move |at| {
            own.activation(activation, [rows, columns], x.at(at), &mut data.z.to(at))
        }),
        check: Box::new(move || {
            data.rows_of("y", &data.z, |at| {
                let mut y = vec![bf16::ZERO; columns];
                activation.forward(&row(x.at(0), at)?, columns, &mut y);
                Ok(y)
            })
        }),
    };
    let own = kernels.clone();
    let dx = move |at| dx.at(at).shaped([rows, inputs * columns]);
    let backward = Case {
        name: format!("{name}_backward"),
        bytes: data.bytes(0, 2 * inputs + 1),
        run: Box::new(move |at| {
            let both = [x.at(at), data.dz.at(at)];
            own.activation_backward(activation, [rows, columns], both, &mut dx(at)?)
        }),
        check: Box::new(move || {
            let found = Sets(vec![dx(0)?]);
            data.rows_of("dx", &found, |at| {
                let mut wanted = vec![bf16::ZERO; inputs * columns];
                let (x, dy) = (row(x.at(0), at)?, row(data.dz.at(0), at)?);
                activation.backward(&x, &dy, columns, &mut wanted);
                Ok(wanted)
            })
        }),
    };
    [forward, backward]
}

fn sums<'a>(kernels: &ElementKernels, data: &'a Data) -> [Case<'a>; 3] {
    let mask = Mask::new(1234, 7, 0.1);
    let add = |name: &str, dropped: bool| {
        let own = kernels.clone();
        Case {
            name: name.into(),
            bytes: data.bytes(3, 0),
            run: Box::new(move |at| {
                let from = dropped.then_some((&mask, 0));
                let (x, residual) = (data.x.at(at), data.residual.at(at));
                own.dropout_add(x, residual, from, &mut data.y.to(at))
            }),
            check: Box::new(move || {
                data.rows_of("y", &data.y, |at| {
                    let mut y = vec![bf16::ZERO; data.hidden];
                    let from = dropped.then_some((&mask, (at * data.hidden) as u64));
                    let (x, more) = (row(data.x.at(0), at)?, row(data.residual.at(0), at)?);
                    twin::dropout_add(&x, &more, from, &mut y);
                    Ok(y)
                })
            }),
        }
    };
    let own = kernels.clone();
    let backward = Case {
        name: "dropout_backward".into(),
        bytes: data.bytes(2, 0),
        run: Box::new(move |at| own.dropout(data.dy.at(at), (&mask, 0), &mut data.y.to(at))),
        check: Box::new(move || {
            data.rows_of("dx", &data.y, |at| {
                let mut dx = vec![bf16::ZERO; data.hidden];
                let from = (&mask, (at * data.hidden) as u64);
                twin::dropout(&row(data.dy.at(0), at)?, from, &mut dx);
                Ok(dx)
            })
        }),
    };
    [
        add("residual_add", false),
        add("dropout_add", true),
        backward,
    ]
}

fn rope<'a>(rank: &Arc<Communicator>, data: &'a Data) -> Result<Case<'a>, Error> {
    const BASE: f64 = 10_000.0;
    let (rows, depth) = (data.rows, data.depth);
    let columns = data.heads.at(0).shape()[1];
    let kernels = RopeKernels::load(rank, rows, depth, BASE)?;
    let before: Result<Vec<_>, Error> = looked_at(rows)
        .into_iter()
        .map(|at| row(data.heads.at(0), at))
        .collect();
    let before = before?;
    Ok(Case {
        name: "rope".into(),
        bytes: 2 * rows * columns * size_of::<bf16>(),
        run: Box::new(move |at| kernels.turn(&mut data.heads.to(at), [columns / depth, 1], false)),
        check: Box::new(move || {
            let half = depth / 2;
            for (at, before) in looked_at(rows).into_iter().zip(&before) {
                let angle = |i: usize| at as f64 * BASE.powf(-(i as f64) / half as f64);
                let cosines = Vec::from_iter((0..half).map(|i| angle(i).cos() as f32));
                let sines = Vec::from_iter((0..half).map(|i| angle(i).sin() as f32));
                let mut wanted = before.clone();
                let heads = [columns / depth, depth, 1];
                twin::rope(&mut wanted, columns, heads, [&cosines, &sines], false);
                same("heads", &row(data.heads.at(0), at)?, &wanted, of_bf16)?;
            }
            Ok(())
        }),
    })
}

fn loss<'a>(rank: &Arc<Communicator>, data: &'a Data) -> Result<Case<'a>, Error> {
    const SCALE: f32 = 0.25;
    let kernels = LossKernels::load(rank)?;
    let losses = rank.zeros::<f32>([data.rows])?;
    let mut to = losses.clone();
    let columns = 2 * data.between;
    Ok(Case {
        name: "cross_entropy".into(),
        bytes: data.bytes(0, 4),
        run: Box::new(move |at| {
            let (x, dx) = (data.wide.at(at), &mut data.of_wide.to(at));
            kernels.cross_entropy(x, &data.targets, SCALE, &mut to, dx)
        }),
        check: Box::new(move || {
            let (losses, targets) = (losses.read()?, data.targets.read()?);
            data.rows_of("dx", &data.of_wide, |at| {
                let mut dx = vec![bf16::ZERO; columns];
                let wanted =
                    twin::cross_entropy(&row(data.wide.at(0), at)?, targets[at], SCALE, &mut dx);
                same("the loss", &[losses[at]], &[wanted], f32::to_bits)?;
                Ok(dx)
            })
        }),
    })
}
