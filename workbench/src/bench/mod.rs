//! `bench`: our kernels beside cuBLASLt, in one process, with interleaved samples, on random data. Results are checked
//! before they are timed.

mod apart;
mod baseline;
mod beside;
mod candidates;
mod check;
mod contenders;
mod cost;
mod counted;
mod family;
mod fp8;
mod fused_epilogue;
mod held;
mod interleaved;
mod meter;
mod object;
mod ours;
mod peer;
mod roles;
mod room;
mod setup;
mod stats;
mod summary;
mod table;
mod task;
mod timed;
mod unlike;
mod variants;
mod worker;
mod written;

use crate::args::Request;
use crate::cuda::Nccl;
use crate::outcome::Outcome;
use crate::render::Console;
use crate::suite::{self, Case};
use candidates::Candidates;
use counterflow_codegen::variant::{Asked, Tensors, Variant};
use counterflow_runtime::Error;
use ours::Ours;
use serde_json::{Map, json};
use setup::{Kernels, Setup};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// The missing device, with advice for `bench`: the emulator times nothing.
fn without_a_gpu(error: Error) -> Error {
    match error {
        Error::NoDevice { device, why, .. } => Error::NoDevice {
            device,
            why,
            help: "`bench` needs a GPU: run it where nvidia-smi shows a Hopper GPU and driver 580 or later; `predict` estimates without one".into(),
        },
        other => other,
    }
}

pub(super) fn bench(request: &Request, console: &mut Console<'_>) -> Result<Outcome, Error> {
    let options = &request.bench;
    let side = variants::side(&request.program);
    let world = if side.is_some() {
        request.variant.world
    } else {
        1
    };
    let cases = cases(request, side, world)?;
    let base = Variant {
        world,
        ..request.variant.clone()
    };
    // What cannot be measured is rejected on any machine.
    let built = variants::build(&request.program, &base)?;
    let mut candidates = Ours::new(request, &base)?;
    let fp8 = built
        .kernel
        .buffers
        .iter()
        .any(|buffer| buffer.dtype.is_fp8());
    let mut setup = Setup::new(world, |gpu| request.machine_of(gpu), fp8).map_err(without_a_gpu)?;
    let mut lacks = None;
    if options.nccl && side.is_some() {
        lacks = setup.add_nccl()?;
    }
    console.say(setup.describe());
    if let Some(lacks) = lacks {
        console.say(lacks);
    }
    // The product on each rank alone, if the schedule does more.
    let free = Variant {
        choices: BTreeMap::new(),
        ..base.encode(Tensors::PartialSums, Asked::default())
    };
    let alone = request.baseline.as_ref().filter(|_| side.is_some());
    let mut alone = alone.map(|program| Candidates::chosen(program, free));
    let mut notes = Vec::new();
    for case in &cases {
        let refused = candidates.choose(case, &setup)?;
        notes.extend(refused.map(|error| format!("{case}: {error}")));
        if let Some(candidates) = &mut alone {
            candidates.choose(case, &setup)?;
        }
    }
    for why in candidates.whys() {
        console.say(format!("  an op would be {why}"));
    }
    // A sweep compares ours with each other.
    let plain = match options.sweep {
        true => None,
        false => candidates.plain()?,
    };
    let (unlike, plain) = plain.unzip();
    let mut sources = candidates.sources()?;
    for candidates in alone.iter().chain(&plain) {
        sources.extend(candidates.sources()?);
    }
    setup.compile(&sources)?;
    let begin = Instant::now();
    let bar = console.bar(cases.len() as u64, "measuring");
    let (results, ended) = as_far_as(cases.iter().enumerate(), |(at, case)| {
        bar.say(&case.to_string());
        let taken = candidates.take(at, case, &setup)?;
        let alone = if_any(alone.as_ref(), |alone| alone.take(at, case, &setup))?;
        let plain = if_any(plain.as_ref(), |plain| plain.take(at, case, &setup))?;
        let kernels = Kernels {
            ours: &taken.ours,
            apart: &taken.apart,
            plain: &plain,
            unlike: unlike.as_deref().unwrap_or_default(),
            alone: alone.first(),
        };
        // If earlier products took too long, this one gets less time, and vice versa.
        let budget = options.seconds_a_product.map(|seconds| {
            let left = seconds * (at + 1) as f64 - begin.elapsed().as_secs_f64();
            left.max(seconds / 2.0)
        });
        let result = setup.measure(request, case, &kernels, budget)?;
        bar.step();
        Ok(result)
    });
    drop(bar);
    if let Some(error) = &ended {
        let (done, all) = (results.len(), cases.len());
        console.say(format!(
            "  **{}** at {}, with {done} of {all} products measured; it was measuring {}",
            error.kind(),
            cases[done],
            candidates.names(done)
        ));
    }
    let ended = match ended {
        Some(error) if results.is_empty() => return Err(error),
        ended => ended,
    };
    if results.len() <= summary::FEW {
        console.say(table::text(&results));
    }
    if let Some(text) = table::sustained(&results) {
        console.say(text);
    }
    for text in summary::text(&results) {
        console.say(text);
    }
    console.say(table::summary_text(&results));
    if let Some(text) = (unlike.as_ref()).and_then(|unlike| cost::text(unlike, &results)) {
        console.say(text);
    }
    for result in &results {
        let case = &result.case;
        let lacks = |kind: &String| format!("{case}: cuBLASLt has no algorithm with {kind}");
        notes.extend(result.absent.iter().map(lacks));
    }
    for note in &notes {
        console.say(format!("  left out at {note}"));
    }
    if options.sweep {
        console.say(setup.keep(request, world, &results)?);
    }
    let mut measured = object::object(&results);
    measured["gpu"] = setup.gpu().into();
    measured["world"] = world.into();
    measured["ranks_sharing_a_gpu"] = setup.sharing.into();
    measured["cublaslt"] = setup.workers[0].blas.version().into();
    measured["nccl"] = setup.workers[0].nccl.as_ref().map(Nccl::version).into();
    measured["left_out"] = json!(notes);
    measured["chosen"] = json!(candidates.whys());
    measured["cost"] = (unlike
        .as_ref()
        .and_then(|unlike| cost::object(unlike, &results)))
    .into();
    for (name, part) in summary::object(&results) {
        measured[name] = part;
    }
    let text = |path: &Path, text: String| {
        std::fs::write(path, text).map_err(|source| Error::File {
            path: path.into(),
            source,
        })
    };
    if let Some(path) = &options.save {
        text(path, format!("{measured}\n"))?;
    }
    if let Some(path) = &options.markdown {
        text(path, summary::markdown(&results, &setup.describe()))?;
    }
    match ended {
        Some(error) => Err(error),
        None => Ok(Outcome {
            good: !table::wrong(&results),
            fields: Map::from_iter([("measured".into(), measured)]),
        }),
    }
}

/// Applies `f` to some candidates, if there are any.
fn if_any<'a, T>(
    candidates: Option<&'a Candidates<'_>>,
    take: impl FnOnce(&'a Candidates<'_>) -> Result<Vec<T>, Error>,
) -> Result<Vec<T>, Error> {
    candidates.map_or_else(|| Ok(Vec::new()), take)
}

/// The results of `measure`, one by one. The first error ends it; results before it are kept.
fn as_far_as<T, R>(
    all: impl Iterator<Item = T>,
    mut measure: impl FnMut(T) -> Result<R, Error>,
) -> (Vec<R>, Option<Error>) {
    let mut done = Vec::new();
    for one in all {
        match measure(one) {
            Ok(result) => done.push(result),
            Err(error) => return (done, Some(error)),
        }
    }
    (done, None)
}

/// The products to measure: shapes, then suites, otherwise the one shape of the command line.
fn cases(request: &Request, side: Option<suite::Side>, world: u32) -> Result<Vec<Case>, Error> {
    let options = &request.bench;
    let mut cases: Vec<Case> = options.shapes.iter().copied().map(suite::single).collect();
    for name in &options.suites {
        cases.extend(suite::named(
            name,
            &options.rows,
            side,
            side.map(|_| world),
        )?);
    }
    if cases.is_empty() {
        let shape = &request.shape;
        cases.push(suite::single([shape.m, shape.n, shape.k]));
    }
    Ok(suite::distinct(cases))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_before_an_error_is_kept() {
        let odd = |at: u32| match at {
            3 => Err(Error::Usage {
                what: "3".into(),
                legal: "less".into(),
            }),
            at => Ok(2 * at),
        };
        let (done, ended) = as_far_as(0..6, odd);
        assert_eq!(done, [0, 2, 4]);
        assert_eq!(ended.map(|error| error.kind()), Some("usage"));
        let (done, ended) = as_far_as(0..3, odd);
        assert!(done.len() == 3 && ended.is_none());
    }
}
