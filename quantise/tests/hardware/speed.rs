//! How long each quantiser takes, beside a copy of as many bytes in the same run. Nothing is asserted: a table is printed.

use crate::right::{Codes, Source, given};
use crate::{cases, fine, on_gpu};
use counterflow_codegen::dtype::Dtype;
use counterflow_quantise::{
    AllReduceNorm, Delayed, Fp8, Granularity, Quantiser, Recipe, ScaleRule, Scaling,
};
use counterflow_runtime::driver::{Event, Stream};
use counterflow_runtime::{Communicator, Error, QuantTensor};
use float8::F8E4M3;
use half::bf16;
use std::sync::PoisonError;

/// Rounds of a quantiser and a copy in turn, and launches of each in a round.
const ROUNDS: usize = 21;
const LAUNCHES: usize = 10;

/// Beyond the L2, and as activations of models are.
const SHAPES: [[usize; 2]; 3] = [[8192, 8192], [4096, 7168], [16384, 2048]];

/// From bf16 by the defaults of TransformerEngine.
pub fn recipes() -> Vec<Recipe> {
    let rule = ScaleRule::transformer_engine(Fp8::E4M3);
    let blocks = rule.powers_of_two();
    let kinds = [
        (rule, Scaling::Current(Granularity::PerTensor)),
        (rule, Scaling::Delayed),
        (rule, Scaling::Current(Granularity::PerRow)),
        (blocks, Scaling::Current(Granularity::BLOCK_1X128)),
        (blocks, Scaling::Current(Granularity::BLOCK_128X128)),
    ];
    let each = kinds.map(|(rule, scaling)| Recipe::new(rule, scaling, Dtype::Bf16));
    each.iter()
        .flat_map(|recipe| [*recipe, recipe.with_transposed()])
        .collect()
}

/// Bytes that must be read and written. What needs an amax before its first code is read twice: a whole tensor, and rows
/// with columns.
fn bytes(recipe: &Recipe, [rows, columns]: [usize; 2]) -> usize {
    let elements = rows * columns;
    let twice = match recipe.scaling {
        Scaling::Current(Granularity::PerTensor) => true,
        Scaling::Current(Granularity::PerRow) => recipe.transposed,
        Scaling::Current(Granularity::Block(_)) | Scaling::Delayed => false,
    };
    let of_codes = |codes: usize| match recipe.scaling {
        Scaling::Current(Granularity::BLOCK_1X128) => codes + codes / 32,
        Scaling::Current(_) | Scaling::Delayed => codes,
    };
    let written = of_codes(elements) * (1 + usize::from(recipe.transposed));
    elements * 2 * (1 + usize::from(twice)) + written
}

/// Microseconds of one launch, in a round of several.
fn round(stream: &Stream, mut launch: impl FnMut() -> Result<(), Error>) -> f64 {
    let start = fine(Event::record(stream));
    (0..LAUNCHES).for_each(|_| fine(launch()));
    let end = fine(Event::record(stream));
    fine(end.wait());
    fine(end.since(&start)).as_secs_f64() * 1e6 / LAUNCHES as f64
}

/// The median, and the quarter below and above it.
fn quartiles(mut times: Vec<f64>) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| times[times.len() * quarter / 4])
}

fn measure(rank: &Communicator, recipe: Recipe, shape: [usize; 2]) {
    let quantiser = fine(Quantiser::build(rank, recipe, shape));
    let values = cases::filled(shape, cases::Filling::Plain, Dtype::Bf16, 1);
    let x = Source::of(rank, shape, Dtype::Bf16, &values);
    let side = [shape[1], shape[0]];
    let mut codes = Codes::new(rank, shape, Fp8::E4M3);
    let mut copy = (recipe.transposed).then(|| Codes::new(rank, side, Fp8::E4M3));
    let mut scales = fine(rank.zeros::<f32>([shape[0] * shape[1]]));
    let mut of_copy = fine(rank.zeros::<f32>([shape[0] * shape[1]]));
    let mut history = fine(quantiser.history(Delayed::transformer_engine(Fp8::E4M3)));
    let whole = matches!(
        recipe.scaling,
        Scaling::Current(Granularity::PerTensor) | Scaling::Delayed
    );
    let moved = bytes(&recipe, shape);
    let from = fine(rank.zeros::<u8>([moved / 2]));
    let to = fine(rank.zeros::<u8>([moved / 2]));
    let stream = rank.stream();
    let mut quantise = || {
        let launch = quantiser.on(rank, shape).scales(&mut scales);
        let launch = given!(launch, &x, &mut codes, &mut copy);
        let launch = match recipe.transposed && !whole {
            true => launch.transposed_scales(&mut of_copy),
            false => launch,
        };
        match recipe.scaling {
            Scaling::Delayed => launch.history(&mut history).launch().map(drop),
            Scaling::Current(_) => launch.launch().map(drop),
        }
    };
    let (mut ours, mut copies) = (Vec::new(), Vec::new());
    for measured in 0..ROUNDS + 3 {
        let times = [
            round(stream, &mut quantise),
            round(stream, || to.copy_from(&from)),
        ];
        // The first ones warm up.
        if measured >= 3 {
            ours.push(times[0]);
            copies.push(times[1]);
        }
    }
    let (ours, copies) = (quartiles(ours), quartiles(copies));
    println!(
        "  {:38} {:5} x {:5}  {:7.1} us ({:.1} to {:.1}), {:4.2} TB/s; copy {:7.1} us ({:.1} to {:.1}); {:.2} of a copy",
        recipe.to_string(),
        shape[0],
        shape[1],
        ours[1],
        ours[0],
        ours[2],
        moved as f64 / ours[1] / 1e6,
        copies[1],
        copies[0],
        copies[2],
        copies[1] / ours[1]
    );
}

#[test]
#[ignore = "a measurement, which wants a GPU for itself: the packed suite (`.ci/hardware`) runs it alone"]
fn quantisers_beside_copies() {
    let Some(rank) = on_gpu() else { return };
    println!(
        "  medians of {ROUNDS} rounds of {LAUNCHES} launches, {}",
        rank.gpu().name()
    );
    for shape in SHAPES {
        for recipe in recipes() {
            measure(&rank, recipe, shape);
        }
    }
}

/// Rows and columns of all-reduces with a norm: those that others publish times for, and a model's.
const NORMS: [[usize; 2]; 6] = [
    [1, 6144],
    [6, 6144],
    [138, 6144],
    [1, 8192],
    [16, 8192],
    [128, 8192],
];

/// Results of them.
fn results() -> [Option<Recipe>; 2] {
    let blocks = Scaling::Current(Granularity::BLOCK_1X128);
    [
        None,
        Some(Recipe::new(ScaleRule::deep_gemm(), blocks, Dtype::Bf16)),
    ]
}

/// The texts of their kernels.
pub fn norms() -> Vec<String> {
    let mut texts = Vec::new();
    for world in [1, 2] {
        let ranks = fine(Communicator::emulated(world));
        for result in results() {
            let norm = AllReduceNorm::of(&ranks[0]);
            let norm = result
                .into_iter()
                .fold(norm, |norm, recipe| norm.quantised(recipe));
            texts.extend(NORMS.map(|[_, columns]| norm.text(columns)));
        }
    }
    texts
}

/// Microseconds of a launch in a graph of several, and of one that the host enqueues, by quartiles: the slower rank's.
fn of_norm(
    all: &[Communicator],
    result: Option<Recipe>,
    [rows, columns]: [usize; 2],
) -> [[f64; 3]; 2] {
    let each = Communicator::each(all, |rank| {
        let norm = AllReduceNorm::of(rank).up_to(rows, columns);
        let norm = result
            .into_iter()
            .fold(norm, |norm, recipe| norm.quantised(recipe));
        rank.reserve(norm.workspace()?.heap + (2 << 20))?;
        let norm = norm.build()?;
        let (x, gamma) = (
            rank.zeros::<bf16>([rows, columns])?,
            rank.zeros::<bf16>([columns])?,
        );
        let [mut residual, mut y] = [(); 2].map(|()| fine(rank.zeros::<bf16>([rows, columns])));
        let values = cases::filled([rows, columns], cases::Filling::Plain, Dtype::Bf16, 1);
        x.write(
            &values
                .iter()
                .map(|value| bf16::from_f32(*value))
                .collect::<Vec<_>>(),
        )?;
        gamma.write(&vec![bf16::ONE; columns])?;
        let codes = rank.zeros::<F8E4M3>([rows, columns])?;
        let scales = rank.zeros::<f32>([columns.div_ceil(128), rows.next_multiple_of(4)])?;
        let mut quantised = QuantTensor::new(codes, scales, Granularity::BLOCK_1X128)?;
        let mut launch = |on: counterflow_runtime::op::Caller<'_>| {
            let launch = norm.on(on).x(&x).gamma(&gamma).residual(&mut residual);
            match result {
                None => launch.y(&mut y).launch().map(drop),
                Some(_) => launch.y(&mut quantised).launch().map(drop),
            }
        };
        let graph =
            rank.capture(|recording| (0..LAUNCHES).try_for_each(|_| launch(recording.into())))?;
        rank.synchronize()?;
        let stream = rank.stream();
        let mut times = [Vec::new(), Vec::new()];
        for measured in 0..4 * ROUNDS + 20 {
            rank.barrier()?;
            // The first replay lets the ranks meet.
            graph.launch(rank)?;
            let start = Event::record(stream)?;
            (0..3).try_for_each(|_| graph.launch(rank).map(drop))?;
            let replayed = Event::record(stream)?;
            (0..LAUNCHES).try_for_each(|_| launch(rank.into()))?;
            let end = Event::record(stream)?;
            rank.synchronize()?;
            // The first ones warm up.
            if measured >= 20 {
                let micros = |from: &Event, to: &Event| fine(to.since(from)).as_secs_f64() * 1e6;
                times[0].push(micros(&start, &replayed) / (3 * LAUNCHES) as f64);
                times[1].push(micros(&replayed, &end) / LAUNCHES as f64);
            }
        }
        Ok(times.map(quartiles))
    });
    let slower = |a: [[f64; 3]; 2], b: [[f64; 3]; 2]| if a[0][1] > b[0][1] { a } else { b };
    fine(each).into_iter().reduce(slower).expect("a rank")
}

#[test]
#[ignore = "a measurement, which wants GPUs for itself: the packed suite (`.ci/hardware`) runs it alone"]
fn all_reduces_with_a_norm() {
    if !crate::has_gpu() {
        return;
    }
    let _alone = crate::GPU.write().unwrap_or_else(PoisonError::into_inner);
    let apart = fine(counterflow_runtime::cuda::Gpu::count()) > 1;
    let pair = || match apart {
        true => fine(Communicator::local(2)),
        // They share its SMs and move no byte over a link.
        false => fine(Communicator::loopback(2)),
    };
    println!(
        "  medians, quartiles in brackets, us a launch in a graph of {LAUNCHES} and from the host; 2 ranks {}, and 1",
        if apart { "on a GPU each" } else { "on one GPU" }
    );
    for shape in NORMS {
        for result in results() {
            let told = result.map_or("bf16".into(), |recipe| recipe.to_string());
            for ranks in [pair(), fine(Communicator::local(1))] {
                let [graph, host] = of_norm(&ranks, result, shape);
                println!(
                    "  {:4} x {:5} {told:34} {} ranks: {:5.2} ({:.2} to {:.2}), {:5.2} ({:.2} to {:.2})",
                    shape[0],
                    shape[1],
                    ranks.len(),
                    graph[1],
                    graph[0],
                    graph[2],
                    host[1],
                    host[0],
                    host[2]
                );
            }
        }
    }
}
