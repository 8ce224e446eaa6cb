//! What goes on over several launches: histories, a known amax, a flag that skips, streams, graphs; and every code that a
//! cast can give.

use crate::cases::{Filling, delayed, filled};
use crate::right::{Codes, Source, given, same};
use crate::{emulated, fine, on_gpu};
use counterflow_codegen::dtype::Dtype;
use counterflow_quantise::{
    Delayed, Fp8, Granularity, History, Matrix, Pick, Quantiser, Recipe, ScaleRule, Scaling, twin,
};
use counterflow_runtime::{Communicator, Tensor};
use float8::F8E4M3;
use half::bf16;

/// Several steps with other numbers each, one of them zeros.
fn histories(rank: &Communicator) {
    let (shape, mut launches) = ([129, 272], 0);
    for (at, recipe) in delayed().into_iter().enumerate() {
        let rule = recipe.rule;
        let quantiser = fine(Quantiser::build(rank, recipe, shape));
        let delayed = Delayed {
            length: [1, 3, 1024][at % 3],
            pick: [Pick::Max, Pick::MostRecent][at / 2 % 2],
            margin: (at % 2) as i32,
            skips_zero: at % 4 < 2,
            ..Delayed::transformer_engine(rule.to)
        };
        let mut history = fine(quantiser.history(delayed));
        let mut wanted = History::new(delayed);
        let fillings = [
            Filling::Plain,
            Filling::Zero,
            Filling::Wild,
            Filling::Plain,
            Filling::Broken,
            Filling::Plain,
        ];
        for (step, filling) in fillings.into_iter().enumerate() {
            let what = format!("{recipe}, {delayed:?}, step {step}");
            let values = filled(shape, filling, recipe.from, step as u64);
            let x = Matrix::new(&values, shape, recipe.from);
            let turned = x.transposed();
            let turned = Matrix::new(&turned, [shape[1], shape[0]], recipe.from);
            let scale = wanted.scale();
            wanted.saw(twin::amax(&x, &ScaleRule::transformer_engine(rule.to)));
            wanted.update();
            let source = Source::of(rank, shape, recipe.from, &values);
            let mut codes = Codes::new(rank, shape, rule.to);
            let mut copy = (recipe.transposed).then(|| Codes::new(rank, [272, 144], rule.to));
            let each = if recipe.each_row { shape[0] } else { 1 };
            let mut stored = fine(rank.zeros::<f32>([each]));
            let launch = quantiser.on(rank, shape).scales(&mut stored);
            let launch = given!(launch, &source, &mut codes, &mut copy);
            fine(launch.history(&mut history).launch());
            fine(quantiser.next_step(rank, &mut history));
            let stored = fine(stored.read());
            assert_eq!(stored, vec![scale.stored; each], "{what}");
            launches += 1;
            same(
                &codes.read(),
                &twin::cast(&x, rule.to, scale.multiplier),
                &what,
            );
            if let Some(copy) = copy {
                let copy = copy.read();
                let wanted = twin::cast(&turned, rule.to, scale.multiplier);
                for column in 0..272 {
                    let (got, padding) = copy[column * 144..][..144].split_at(129);
                    same(
                        got,
                        &wanted[column * 129..][..129],
                        &format!("{what}, transposed"),
                    );
                    assert!(padding.iter().all(|code| *code == 0), "{what}");
                }
            }
            assert_eq!(fine(history.read()), wanted, "{what}");
            assert_eq!(fine(history.scale()), wanted.scale(), "{what}");
        }
    }
    println!(
        "  {launches} launches right: delayed scaling, {}",
        rank.gpu().name()
    );
}

#[test]
fn histories_on_a_gpu_go_on_as_the_twins() {
    let Some(rank) = on_gpu() else { return };
    histories(&rank);
}

#[test]
fn histories_on_an_emulated_rank_go_on_as_the_twins() {
    histories(&emulated());
}

/// Numbers around each one at which the code changes, those that codes have, and what is no number, in both signs.
fn boundaries(to: Fp8) -> Vec<f32> {
    let finite = (0..=0x7fu8).map(|code| to.value(code));
    let finite: Vec<f32> = finite.filter(|value| value.is_finite()).collect();
    let next = finite
        .windows(2)
        .map(|pair| f32::midpoint(pair[0], pair[1]));
    // Half a step above the largest.
    let [.., before, last] = finite[..] else {
        panic!("a type has numbers")
    };
    let beyond = last + (last - before) / 2.0;
    let ends = [f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN];
    let odd = [1, 0x7f80_0001, 0x7fbf_ffff, 0x7fff_ffff].map(f32::from_bits);
    let middles = next.chain(finite.iter().copied()).chain([beyond]);
    let around = |value: f32| [value.next_down(), value, value.next_up()];
    let all = middles.flat_map(around).chain(ends).chain(odd);
    let mut all: Vec<f32> = all.flat_map(|value| [value, -value]).collect();
    all.resize(all.len().next_multiple_of(16), 1.0);
    all
}

/// All patterns of 16 bits, and all boundaries in f32, by a scale of 1.
fn every_code(rank: &Communicator) {
    let patterns: Vec<f32> = (0..=u16::MAX)
        .map(|bits| bf16::from_bits(bits).to_f32())
        .collect();
    for to in [Fp8::E4M3, Fp8::E5M2] {
        for (from, values) in [(Dtype::Bf16, &patterns), (Dtype::F32, &boundaries(to))] {
            let shape = [values.len() / 16, 16];
            let rule = ScaleRule::transformer_engine(to);
            let recipe = Recipe::new(rule, Scaling::Delayed, from);
            let quantiser = fine(Quantiser::build(rank, recipe, shape));
            let mut history = fine(quantiser.history(Delayed::transformer_engine(to)));
            let x = if from == Dtype::Bf16 {
                // With the bits of each NaN.
                let x = fine(rank.zeros::<bf16>(shape));
                let bits: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
                fine(x.write(&bits));
                Source::Bf16(x)
            } else {
                Source::of(rank, shape, from, values)
            };
            let (mut codes, mut copy) = (Codes::new(rank, shape, to), None);
            let mut scale = fine(rank.zeros::<f32>([1]));
            let launch = quantiser.on(rank, shape).scales(&mut scale);
            let launch = given!(launch, &x, &mut codes, &mut copy);
            fine(launch.history(&mut history).launch());
            let got = codes.read();
            for (at, value) in values.iter().enumerate() {
                let wanted = to.code(*value);
                let bits = value.to_bits();
                assert_eq!(got[at], wanted, "{to:?} of {value:e}, {bits:#x}, {from}");
            }
        }
    }
    println!(
        "  4 launches right: codes of all 65,536 bf16 and of f32 at every boundary, {}",
        rank.gpu().name()
    );
}

#[test]
fn every_code_of_a_gpu_is_the_twins() {
    let Some(rank) = on_gpu() else { return };
    every_code(&rank);
}

#[test]
fn every_code_of_an_emulated_rank_is_the_twins() {
    every_code(&emulated());
}

/// A recipe of one scale, with memory for it.
struct Whole<'r> {
    quantiser: Quantiser<'r>,
    x: Tensor<bf16>,
    codes: Tensor<F8E4M3>,
    scale: Tensor<f32>,
}

const SHAPE: [usize; 2] = [64, 256];

impl<'r> Whole<'r> {
    fn new(rank: &'r Communicator) -> Whole<'r> {
        let rule = ScaleRule::transformer_engine(Fp8::E4M3);
        let recipe = Recipe::new(rule, Scaling::Current(Granularity::PerTensor), Dtype::Bf16);
        Whole {
            quantiser: fine(Quantiser::build(rank, recipe, SHAPE)),
            x: fine(rank.zeros(SHAPE)),
            codes: fine(rank.zeros(SHAPE)),
            scale: fine(rank.zeros([1])),
        }
    }

    fn fill(&self, with: f32) {
        fine(
            self.x
                .write(&vec![bf16::from_f32(with); SHAPE[0] * SHAPE[1]]),
        );
    }
}

/// A scale of what all ranks have, a flag, a stream of the caller's.
fn asides(rank: &Communicator) {
    let mut all = Whole::new(rank);
    all.fill(7.0);
    let stream = fine(rank.gpu().stream());
    fine(all.quantiser.on(&stream, SHAPE).x(&all.x).measure());
    assert_eq!(fine(all.quantiser.amax().read()), [7.0]);
    fine(all.quantiser.amax().write(&[14.0]));
    let launch = all.quantiser.on(&stream, SHAPE).x(&all.x);
    let done = fine(launch.codes(&mut all.codes).scales(&mut all.scale).cast());
    fine(done.wait());
    assert_eq!(fine(all.scale.read()), [1.0 / 32.0]);
    assert!(
        fine(all.codes.read())
            .iter()
            .all(|code| code.to_f32() == 224.0)
    );

    let skip = fine(rank.zeros::<u32>([1]));
    for (flag, wanted) in [(1, 224.0), (0, 448.0)] {
        fine(skip.write(&[flag]));
        let launch = all.quantiser.on(rank, SHAPE).x(&all.x).skip(&skip);
        fine(launch.codes(&mut all.codes).scales(&mut all.scale).launch());
        assert!(
            fine(all.codes.read())
                .iter()
                .all(|code| code.to_f32() == wanted)
        );
    }
    println!(
        "  4 launches right: an amax of all ranks, a flag, a stream, {}",
        rank.gpu().name()
    );
}

/// Codes into a user buffer, and a flag that keeps every kernel of every recipe from what it would write.
fn buffers_and_flags(rank: &Communicator) {
    let rule = ScaleRule::transformer_engine(Fp8::E4M3);
    let kinds = [
        Scaling::Current(Granularity::PerTensor),
        Scaling::Delayed,
        Scaling::Current(Granularity::PerRow),
        Scaling::Current(Granularity::BLOCK_1X128),
        Scaling::Current(Granularity::BLOCK_128X128),
    ];
    let x = fine(rank.zeros::<bf16>(SHAPE));
    fine(x.write(&vec![bf16::from_f32(7.0); SHAPE[0] * SHAPE[1]]));
    let flag = fine(rank.zeros::<u32>([1]));
    fine(rank.reserve(2 << 20));
    let mut codes = fine(rank.allocate::<F8E4M3>("codes", SHAPE));
    let mut turned = fine(rank.allocate::<F8E4M3>("turned", [SHAPE[1], SHAPE[0]]));
    for scaling in kinds {
        let recipe = Recipe::new(rule, scaling, Dtype::Bf16).with_transposed();
        let quantiser = fine(Quantiser::build(rank, recipe, SHAPE));
        let mut history = fine(quantiser.history(Delayed::transformer_engine(Fp8::E4M3)));
        let mut scales = fine(rank.zeros::<f32>([1024]));
        let mut of_turned = fine(rank.zeros::<f32>([1024]));
        // Delayed scaling begins with a scale of 1.
        let (code, scale) = match scaling {
            Scaling::Delayed => (7.0, 1.0),
            Scaling::Current(_) => (448.0, 1.0 / 64.0),
        };
        for (skips, code, scale) in [(3, 0.0, 0.0), (0, code, scale)] {
            fine(flag.write(&[skips]));
            if skips != 0 {
                fine(codes.fill(0));
                fine(turned.fill(0));
            }
            let launch = quantiser.on(rank, SHAPE).x(&x).skip(&flag);
            let launch = launch.codes(&mut codes).transposed(&mut turned);
            let launch = launch.scales(&mut scales);
            let launch = match scaling {
                Scaling::Delayed => launch.history(&mut history),
                Scaling::Current(Granularity::PerTensor) => launch,
                Scaling::Current(_) => launch.transposed_scales(&mut of_turned),
            };
            fine(launch.launch().and_then(|done| done.wait()));
            let what = format!("{recipe}, flag {skips}");
            for codes in [&codes, &turned] {
                let all = fine(codes.read());
                assert!(all.iter().all(|each| each.to_f32() == code), "{what}");
            }
            assert_eq!(fine(scales.read())[0], scale, "{what}");
            let seen = if skips == 0 { 7.0 } else { 0.0 };
            if scaling == Scaling::Delayed {
                assert_eq!(fine(history.amax().read()), [seen], "{what}");
            }
        }
    }
    println!(
        "  10 launches right: user buffers, flags, {}",
        rank.gpu().name()
    );
}

#[test]
fn buffers_and_flags_on_a_gpu() {
    let Some(rank) = on_gpu() else { return };
    buffers_and_flags(&rank);
}

#[test]
fn buffers_and_flags_on_an_emulated_rank() {
    buffers_and_flags(&emulated());
}

#[test]
fn asides_on_a_gpu() {
    let Some(rank) = on_gpu() else { return };
    asides(&rank);
}

#[test]
fn asides_on_an_emulated_rank() {
    asides(&emulated());
}

#[test]
fn a_graph_goes_on_with_its_history() {
    let Some(rank) = on_gpu() else { return };
    let recipe = Recipe::new(
        ScaleRule::transformer_engine(Fp8::E4M3),
        Scaling::Delayed,
        Dtype::Bf16,
    );
    let quantiser = fine(Quantiser::build(&rank, recipe, SHAPE));
    let mut all = Whole::new(&rank);
    let mut history = fine(quantiser.history(Delayed {
        length: 4,
        ..Delayed::transformer_engine(Fp8::E4M3)
    }));
    let graph = fine(rank.capture(|recording| {
        let launch = quantiser.on(recording, SHAPE).x(&all.x);
        let launch = launch.codes(&mut all.codes).scales(&mut all.scale);
        launch.history(&mut history).launch()?;
        quantiser.next_step(recording, &mut history)?;
        let launch = all.quantiser.on(recording, SHAPE).x(&all.x);
        launch
            .codes(&mut all.codes)
            .scales(&mut all.scale)
            .launch()
            .map(drop)
    }));
    let mut wanted = History::new(Delayed {
        length: 4,
        ..Delayed::transformer_engine(Fp8::E4M3)
    });
    for step in 1..=6 {
        all.fill(step as f32);
        wanted.saw(step as f32);
        wanted.update();
        fine(graph.launch(&*rank).and_then(|done| done.wait()));
        assert_eq!(fine(history.read()), wanted, "step {step}");
        assert!(
            fine(all.codes.read())
                .iter()
                .all(|code| code.to_f32() == 448.0)
        );
    }
    println!(
        "  6 launches right: replays of delayed and current scaling, {}",
        rank.gpu().name()
    );
}

#[test]
fn no_emulated_rank_records_a_quantiser() {
    let rank = &emulated();
    let mut all = Whole::new(rank);
    let told = rank.capture(|recording| {
        let launch = all.quantiser.on(recording, SHAPE).x(&all.x);
        launch
            .codes(&mut all.codes)
            .scales(&mut all.scale)
            .launch()
            .map(drop)
    });
    assert_eq!(told.map(drop).expect_err("refused").kind(), "usage");
}
