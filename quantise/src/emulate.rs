//! Quantisers on emulated ranks: the twin, on the host.

use crate::history::{Delayed, History};
use crate::job::{Job, Steps, Words};
use crate::kernels::Scaling;
use crate::twin::{self, Matrix, Quantised};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::encoding::Granularity;
use counterflow_codegen::rule::{Fp8, Scale};
use counterflow_runtime::Error;
use counterflow_runtime::driver::Element;
use counterflow_runtime::op::Running;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// Does a launch.
pub(crate) fn quantise(running: &Running<'_>, job: &Job) -> Result<(), Error> {
    if let Some(skip) = job.at.skip
        && running.read::<u32>(skip, 1)? != [0]
    {
        return Ok(());
    }
    let values = values(running, job)?;
    let x = Matrix::new(&values, job.shape, job.recipe.from);
    let turned = x.transposed();
    let turned = Matrix::new(&turned, job.turned_shape(), job.recipe.from);
    let rule = &job.recipe.rule;
    match job.recipe.scaling {
        Scaling::Current(Granularity::PerTensor) => {
            let state = job.at.state.unwrap_or_default();
            let amax = match job.steps {
                Steps::All | Steps::Measure => twin::amax(&x, rule),
                Steps::Cast => running.read::<f32>(state, 1)?[0],
            };
            let scale = rule.of_tensor(amax);
            running.write(state, &[amax, scale.multiplier])?;
            if job.steps == Steps::Measure {
                return Ok(());
            }
            one(running, job, &x, &turned, scale)
        }
        Scaling::Delayed => {
            let [state, of_step] = [job.at.state, job.at.amax].map(Option::unwrap_or_default);
            let held: Vec<f32> = running.read(state, 2)?;
            let scale = Scale {
                multiplier: held[0],
                stored: held[1],
            };
            let before = running.read::<f32>(of_step, 1)?[0];
            let amax = values
                .iter()
                .fold(before, |amax, value| amax.max(value.abs()));
            running.write(of_step, &[amax])?;
            one(running, job, &x, &turned, scale)
        }
        Scaling::Current(pieces) => {
            let q = twin::quantise(&x, rule, pieces);
            codes(running, job.at.codes, rule.to, &q.codes)?;
            plane(running, job.plane(), job.at.scales, &q)?;
            let Some(at) = job.at.turned else {
                return Ok(());
            };
            let q = twin::quantise(&turned, rule, pieces);
            codes(running, at, rule.to, &copied(job, &q))?;
            plane(running, job.turned_plane(), job.at.turned_scales, &q)
        }
    }
}

/// Ends a step of delayed scaling of these histories, whose memory are the parts in the order of [`crate::histories`].
pub(crate) fn next_step(
    running: &Running<'_>,
    recipes: &[Delayed],
    of_ranks: Option<[usize; 2]>,
) -> Result<(), Error> {
    let (count, past) = (recipes.len(), recipes.first().map_or(0, |of| of.length - 1));
    let mut scales: Vec<f32> = running.read(0, 2 * count)?;
    let mut amaxes: Vec<f32> = running.read(1, count)?;
    let mut pasts: Vec<f32> = running.read(2, count * past)?;
    if let Some([ranks, pitch]) = of_ranks {
        let all: Vec<f32> = running.read(4, ranks * pitch)?;
        for (at, amax) in amaxes.iter_mut().enumerate() {
            *amax = (0..ranks).fold(0.0, |most, rank| most.max(all[rank * pitch + at]));
        }
    }
    for (at, recipe) in recipes.iter().enumerate() {
        let scale = Scale {
            multiplier: scales[2 * at],
            stored: scales[2 * at + 1],
        };
        let own = at * past..(at + 1) * past;
        let mut history = History::held(*recipe, scale, amaxes[at], &pasts[own.clone()]);
        history.update();
        let Scale { multiplier, stored } = history.scale();
        scales[2 * at..2 * at + 2].copy_from_slice(&[multiplier, stored]);
        amaxes[at] = history.amaxes()[0];
        pasts[own].copy_from_slice(&history.amaxes()[1..]);
    }
    running.write(0, &scales)?;
    running.write(1, &amaxes)?;
    running.write(2, &pasts)
}

/// One scale for all elements.
fn one(
    running: &Running<'_>,
    job: &Job,
    x: &Matrix<'_>,
    turned: &Matrix<'_>,
    scale: Scale,
) -> Result<(), Error> {
    let to = job.recipe.rule.to;
    codes(
        running,
        job.at.codes,
        to,
        &twin::cast(x, to, scale.multiplier),
    )?;
    if let Some(at) = job.at.turned {
        let q = Quantised {
            codes: twin::cast(turned, to, scale.multiplier),
            scales: Vec::new(),
            pieces: Granularity::PerTensor,
            shape: turned.shape(),
        };
        codes(running, at, to, &copied(job, &q))?;
    }
    let words = job.plane().len();
    job.at
        .scales
        .map_or(Ok(()), |at| running.write(at, &vec![scale.stored; words]))
}

/// The elements.
fn values(running: &Running<'_>, job: &Job) -> Result<Vec<f32>, Error> {
    fn read<T: Element>(
        running: &Running<'_>,
        job: &Job,
        value: impl Fn(T) -> f32,
    ) -> Result<Vec<f32>, Error> {
        let elements = running.read(job.at.x, job.shape[0] * job.shape[1])?;
        Ok(elements.into_iter().map(value).collect())
    }
    match job.recipe.from {
        Dtype::Bf16 => read(running, job, bf16::to_f32),
        Dtype::F16 => read(running, job, f16::to_f32),
        Dtype::F32 => read(running, job, |value: f32| value),
        Dtype::E4M3 => read(running, job, |value: F8E4M3| value.to_f32()),
        Dtype::E5M2 => read(running, job, |value: F8E5M2| value.to_f32()),
    }
}

fn codes(running: &Running<'_>, at: usize, to: Fp8, codes: &[u8]) -> Result<(), Error> {
    let each = codes.iter().copied();
    match to {
        Fp8::E4M3 => running.write(at, &each.map(F8E4M3::from_bits).collect::<Vec<_>>()),
        Fp8::E5M2 => running.write(at, &each.map(F8E5M2::from_bits).collect::<Vec<_>>()),
    }
}

/// The codes of the transposed copy, as they lie in memory.
fn copied(job: &Job, q: &Quantised) -> Vec<u8> {
    let Some(piece) = job.piece else {
        return q.with_pitch(job.pitch());
    };
    let [columns, rows] = q.shape;
    let of_piece = |first| (0..columns).map(move |column| column * rows + first);
    let firsts = (0..rows).step_by(piece).flat_map(of_piece);
    firsts
        .flat_map(|first| &q.codes[first..first + piece])
        .copied()
        .collect()
}

/// The scales of pieces, with the padding that their order has.
fn plane(
    running: &Running<'_>,
    words: Words,
    at: Option<usize>,
    q: &Quantised,
) -> Result<(), Error> {
    let Some(at) = at else {
        return Ok(());
    };
    let [rows, blocks] = q.pieces.count(q.shape);
    let mut plane = vec![0.0f32; words.len()];
    for row in 0..rows {
        for block in 0..blocks {
            plane[row * words.strides[0] + block * words.strides[1]] =
                q.scales[row * blocks + block];
        }
    }
    running.write(at, &plane)
}
