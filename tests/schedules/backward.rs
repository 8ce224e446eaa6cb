//! Products of a backward pass, whose operands are MN-major, against what was measured on an H100.

use counterflow::codegen::lower::lower;
use counterflow::codegen::program::{Program, Setting};
use counterflow::codegen::verify;
use counterflow::tuned::{self, Ranking};
use counterflow::{Layout, Machine, Shape, Variant, schedules};
use std::collections::BTreeMap;

/// The gradients of a layer's inputs (`gemm` in layout nn) and of its weights (`wgrad` in layout tn), of Llama-3 70B at TP 2 with 8192
/// and 2048 rows: times back to back, at the power limit. `apart`: each launch in turns with the others.
const MEASURED: &str = include_str!("../measured/h100_backward.csv");

/// What a schedule, a layout and a shape took, variant by variant, in microseconds.
type Runs = BTreeMap<(&'static str, &'static str, [u32; 3]), Vec<(Variant, f64)>>;

fn runs() -> Runs {
    let mut runs = Runs::new();
    let mut lines = MEASURED.lines();
    let head: Vec<&str> = lines.next().expect("names").split(',').collect();
    for line in lines {
        let words: Vec<&str> = line.split(',').collect();
        let word = |name| words[head.iter().position(|known| *known == name).expect(name)];
        let number = |name| word(name).parse().expect("a size");
        let layout = Layout::from_name(word("layout")).expect("a layout");
        let program = schedule(word("op"));
        let choices = tuned::choices(&program).into_keys();
        let variant = choices.fold(Variant::new(1).layout(layout), |variant, name| {
            let setting = Setting::parse(word(name)).expect("a setting");
            variant.set(name, setting)
        });
        let microseconds = word("microseconds").parse().expect("a time");
        let of = (word("op"), word("layout"), ["m", "n", "k"].map(number));
        runs.entry(of).or_default().push((variant, microseconds));
    }
    runs
}

fn schedule(name: &str) -> Program {
    match name {
        "gemm" => schedules::gemm(),
        "wgrad" => schedules::wgrad(),
        other => panic!("no schedule {other}"),
    }
}

/// The model took an H200's rate for such operands on every card, and chose 128x128 in ping-pong on an H100: 9.99 ms for
/// 28672x8192x8192, where 128x256 takes 5.82.
#[test]
fn the_models_favourites_for_a_backward_pass_are_about_the_fastest_measured_on_an_h100() {
    let machine = Machine::h100();
    let mut logs = Vec::new();
    for ((name, layout, [m, n, k]), measured) in runs() {
        let program = schedule(name);
        let lowered = measured.iter().map(|(variant, _)| lower(&program, variant));
        let kernels = lowered.map(|kernel| kernel.and_then(verify::kernel).expect("legal"));
        let kernels: Vec<_> = kernels.collect();
        let first = Ranking::new(&kernels, &Shape::new(m, n, k), &machine).next();
        let (variant, took) = &measured[first.expect("a variant").which];
        let times = measured.iter().map(|(_, took)| *took);
        let ratio = took / times.fold(f64::INFINITY, f64::min);
        println!("{name} {m}x{n}x{k} {layout}: {variant} takes {ratio:.3} of the fastest");
        assert!(
            ratio < 1.1,
            "{name} {m}x{n}x{k}: {variant} takes {ratio:.3}"
        );
        logs.push(ratio.ln());
    }
    let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    assert!(logs.len() == 16 && mean < 1.02, "geometric mean {mean:.3}");
}
