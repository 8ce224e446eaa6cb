//! How long each quantiser takes, beside a copy of as many bytes in the same run. Nothing is asserted: a table is printed.

use crate::right::{Codes, Source, given};
use crate::{cases, fine, on_gpu};
use counterflow_codegen::dtype::Dtype;
use counterflow_quantise::{Delayed, Fp8, Granularity, Quantiser, Recipe, Rule, Scaling};
use counterflow_runtime::driver::{Event, Stream};
use counterflow_runtime::{Communicator, Error};

/// Rounds of a quantiser and a copy in turn, and launches of each in a round.
const ROUNDS: usize = 21;
const LAUNCHES: usize = 10;

/// Beyond the L2, and as activations of models are.
const SHAPES: [[usize; 2]; 3] = [[8192, 8192], [4096, 7168], [16384, 2048]];

/// From bf16 by the defaults of TransformerEngine.
pub fn recipes() -> Vec<Recipe> {
    let rule = Rule::transformer_engine(Fp8::E4M3);
    let blocks = rule.powers_of_two();
    let kinds = [
        (rule, Scaling::Current(Granularity::PerTensor)),
        (rule, Scaling::Delayed),
        (rule, Scaling::Current(Granularity::PerRow)),
        (blocks, Scaling::Current(Granularity::Block1x128)),
        (blocks, Scaling::Current(Granularity::Block128x128)),
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
        Scaling::Current(Granularity::Block1x128 | Granularity::Block128x128)
        | Scaling::Delayed => false,
    };
    let of_codes = |codes: usize| match recipe.scaling {
        Scaling::Current(Granularity::Block1x128) => codes + codes / 32,
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
