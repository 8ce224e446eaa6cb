//! What each kind of work takes the host to enqueue: those that steps of FP8 have.

use super::{each, enqueued};
use counterflow::prelude::{bf16, e4m3};
use counterflow::quantise::{self, Delayed, Histories, Quantiser, ScaleRule, Scaling};
use counterflow::rule::Fp8;
use counterflow::schedules::AllGatherOp;
use counterflow::{Communicator, Dtype, Error};
use counterflow_layers::Activation;
use counterflow_layers::side::ElementKernels;
use std::sync::Arc;
use std::time::Instant;

/// Items of a sample: few enough that no queue is full.
const ITEMS: usize = 50;
const SAMPLES: usize = 41;

/// Median of microseconds for one item.
fn measure(rank: &Communicator, mut item: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut times = Vec::new();
    for _ in 0..SAMPLES {
        rank.synchronize()?;
        rank.barrier()?;
        let begun = Instant::now();
        for _ in 0..ITEMS {
            item()?;
        }
        times.push(1e6 * begun.elapsed().as_secs_f64() / ITEMS as f64);
    }
    rank.synchronize()?;
    times.sort_by(f64::total_cmp);
    Ok(times[SAMPLES / 2])
}

fn all(rank: &Arc<Communicator>) -> Result<Vec<(&'static str, f64)>, Error> {
    rank.reserve(4 << 20)?;
    let world = rank.world() as usize;
    let (from, to) = (rank.zeros::<f32>([1, 1])?, rank.zeros::<f32>([1, 1])?);
    let (large, other) = (
        rank.zeros::<f32>([512, 512])?,
        rank.zeros::<f32>([512, 512])?,
    );
    let heap = rank.allocate::<f32>("heap", [world, 128])?;
    let op = rank.op_of::<AllGatherOp>().dtype(Dtype::F32);
    let op = op.up_to(world, 128, 128).build()?;
    let recipe = quantise::Recipe::new(
        ScaleRule::transformer_engine(Fp8::E4M3),
        Scaling::Delayed,
        Dtype::Bf16,
    );
    let quantiser = Quantiser::shared(rank, recipe.with_transposed(), [128, 128])?;
    let delayed = Delayed::transformer_engine(Fp8::E4M3);
    let mut history = quantiser.history(delayed)?;
    let mut histories = Histories::new(rank, delayed, 8)?;
    for _ in 0..8 {
        histories.add(Fp8::E4M3)?;
    }
    let (x, mut y) = (
        rank.zeros::<bf16>([128, 128])?,
        rank.zeros::<bf16>([128, 128])?,
    );
    let (mut codes, mut turned) = (
        rank.zeros::<e4m3>([128, 128])?,
        rank.zeros::<e4m3>([128, 128])?,
    );
    let mut scale = rank.zeros::<f32>([1])?;
    let elements = ElementKernels::load(rank)?;
    rank.barrier()?;
    let mut found = Vec::new();
    let mut tell = |name, time| found.push((name, time));
    tell("copy of 4 bytes", measure(rank, || to.copy_from(&from))?);
    tell("copy of 1 MiB", measure(rank, || large.copy_from(&other))?);
    tell(
        "copy of 4 bytes into the heap",
        measure(rank, || heap.copy_from(&from))?,
    );
    tell(
        "copy of 4 bytes out of the heap",
        measure(rank, || heap.copy_to(&to))?,
    );
    let nothing = || {
        let step = rank.step(&**rank);
        // SAFETY: no kernel is launched.
        #[allow(unsafe_code, reason = "a step without a kernel")]
        unsafe { step.launch(|_| Ok(())) }.map(drop)
    };
    tell("step without a kernel", measure(rank, nothing)?);
    let activation = || elements.activation(Activation::Gelu, [128, 128], &x, &mut y);
    tell("side kernel", measure(rank, activation)?);
    let quantises = || {
        let launch = quantiser.on(&**rank, [128, 128]).x(&x).codes(&mut codes);
        let launch = launch.transposed(&mut turned).scales(&mut scale);
        launch.history(&mut history).launch().map(drop)
    };
    tell("quantiser", measure(rank, quantises)?);
    let ends = || histories.next_step(&**rank, None).map(drop);
    tell("end of 8 histories", measure(rank, ends)?);
    let gathers = || op.on(&**rank).x(&heap).launch().map(drop);
    tell("gather of a row", measure(rank, gathers)?);
    rank.barrier()?;
    Ok(found)
}

#[test]
#[ignore = "no test but a measurement: it prints what the host takes, by hand on GPUs of its own"]
fn what_each_kind_of_work_takes_the_host() {
    let found = each(2, all).expect("two ranks");
    for (at, (name, time)) in found[0].iter().enumerate() {
        let others = found.iter().map(|of| format!("{:.1}", of[at].1));
        println!(
            "{name:34} {time:7.1} µs | by rank {}",
            others.collect::<Vec<_>>().join(" ")
        );
    }
}

/// Steps of a sample. The first ones build, prove and allocate.
const STEPS: usize = 220;
const FIRST: usize = 20;

/// Parts of a step by name, and what each took.
type Parts = Vec<(&'static str, f64)>;

/// Medians of microseconds, pass by pass and of the step, and what a step enqueues.
fn step(rank: &Arc<Communicator>, layers: usize) -> Result<(Parts, u64), Error> {
    let (_, layers) = enqueued::LAYERS[layers];
    let counter = enqueued::steps(rank, (true, &[Some(true); STEPS]), layers)?;
    let took = counter.took();
    let passes = took.len() / STEPS;
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let late = &took[FIRST * passes..];
    let of = |pass: usize| {
        let times = late.iter().skip(pass).step_by(passes);
        (late[pass].0, median(times.map(|(_, time)| *time).collect()))
    };
    let whole = late
        .chunks(passes)
        .map(|step| step.iter().map(|(_, time)| time).sum());
    let mut found: Vec<_> = (0..passes).map(of).collect();
    found.push(("step", median(whole.collect())));
    Ok((found, counter.enqueued()))
}

/// Of FP8 with overlap, delayed scaling; the host waits for nobody but where a queue is full.
#[test]
#[ignore = "no test but a measurement: it prints what the host takes, by hand on GPUs of its own"]
fn what_a_step_takes_the_host() {
    for (layers, (name, _)) in enqueued::LAYERS.iter().enumerate() {
        let found = each(2, |rank| step(rank, layers)).expect("two ranks");
        let (passes, enqueued) = &found[0];
        println!("{name}: {enqueued} kernels and copies");
        for (at, (pass, _)) in passes.iter().enumerate() {
            let ranks = found.iter().map(|(of, _)| format!("{:7.1}", of[at].1));
            println!(
                "  {pass:14} {} µs by rank",
                ranks.collect::<Vec<_>>().join(" ")
            );
        }
    }
}
