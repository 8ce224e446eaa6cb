//! What partial sums in FP8 cost in accuracy, beside bf16 and beside one scale for a whole tensor.

use super::{THEIRS, program, series, variant};
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::rule::ScaleRule;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_emulator::{self as interp, Input, Options};
use ndarray::Array2;

const M: u32 = 64;
const N: u32 = 512;

/// How deep each rank's product is, and whether rows of `x` differ in size, by powers of two from 2⁻⁸ to 2⁸.
struct Inputs {
    k: u32,
    rows_differ: bool,
}

/// N(0, 1), rounded to bf16: the same for the same rank and tensor.
fn normal((rank, tensor): (u32, u16), of: &Inputs, values: &mut [f32]) {
    let mut state =
        ((u64::from(rank) << 20) | (u64::from(tensor) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    for (at, value) in values.iter_mut().enumerate() {
        let (a, b) = (uniform().max(f64::MIN_POSITIVE), uniform());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        let size = match of.rows_differ && tensor == 0 {
            true => f32::from((at / of.k as usize % 17) as u8 as i8 - 8).exp2(),
            false => 1.0,
        };
        *value = Bf16.round(normal as f32) * size;
    }
}

fn operand(rank: u32, tensor: u16, rows: u32, of: &Inputs) -> Array2<f32> {
    let k = of.k;
    let mut values = vec![0.0; (rows * k) as usize];
    normal((rank, tensor), of, &mut values);
    Array2::from_shape_vec((rows as usize, k as usize), values).expect("as many")
}

/// The emulator's sums over ranks, in the order of their rows.
fn emulated(variant: &Variant, of: &Inputs) -> Vec<f64> {
    let shape = Shape::new(M, N, of.k);
    let series = series(&program("gemm_rs"), variant, &shape);
    let plan = series
        .plan(&shape)
        .unwrap_or_else(|error| panic!("{error}"));
    let inputs =
        |input: Input<'_>, values: &mut [f32]| normal((input.rank, input.tensor.0), of, values);
    let ran = interp::run(&series, &[&plan], &Options::seed(1), inputs);
    let mut outputs = ran.unwrap_or_else(|error| panic!("{error}")).outputs;
    outputs.retain(|output| output.tensor.0 == 2);
    outputs.sort_by_key(|output| output.rank);
    let values = outputs.into_iter().flat_map(|output| output.values);
    values.map(f64::from).collect()
}

/// With one scale for all of what a rank sends, as TransformerEngine's reduce-scatter has.
fn of_one_scale(rule: &ScaleRule, world: u32, of: &Inputs) -> Vec<f64> {
    let shard = M.div_ceil(world);
    let mut sums = vec![0.0f32; (M * N) as usize];
    let mut own = sums.clone();
    for rank in 0..world {
        let partial = operand(rank, 0, M, of).dot(&operand(rank, 1, N, of).t());
        let amax = partial
            .iter()
            .fold(0.0f32, |amax, value| amax.max(value.abs()));
        let scale = rule.of_tensor(amax);
        for (at, value) in partial.iter().enumerate() {
            if at as u32 / N / shard == rank {
                own[at] = *value;
            } else {
                sums[at] += rule.to.value(rule.to.code(value * scale.multiplier)) * scale.stored;
            }
        }
    }
    let sums = sums
        .iter()
        .zip(&own)
        .map(|(others, own)| Bf16.round(own + others));
    sums.map(f64::from).collect()
}

fn exact(world: u32, of: &Inputs) -> Vec<f64> {
    let wide = |of: Array2<f32>| of.mapv(f64::from);
    let product = |rank| wide(operand(rank, 0, M, of)).dot(&wide(operand(rank, 1, N, of)).t());
    let sum = (1..world).fold(product(0), |sum, rank| sum + product(rank));
    sum.into_iter().collect()
}

/// Root of the mean square of the errors, and the largest, relative to that of the results of the same row, in percent.
fn errors(got: &[f64], exact: &[f64]) -> (f64, f64) {
    let (mut squares, mut largest) = (0.0, 0.0f64);
    for (got, exact) in got.chunks(N as usize).zip(exact.chunks(N as usize)) {
        let rms = (exact.iter().map(|it| it * it).sum::<f64>() / f64::from(N)).sqrt();
        for (got, exact) in got.iter().zip(exact) {
            let off = (got - exact).abs() / rms;
            squares += off * off;
            largest = largest.max(off);
        }
    }
    (
        100.0 * (squares / exact.len() as f64).sqrt(),
        100.0 * largest,
    )
}

/// In bf16, in blocks by powers of two and by any scale, and by one scale for all.
fn of(world: u32, inputs: &Inputs) -> [(f64, f64); 4] {
    let exact = exact(world, inputs);
    let plain = Variant::new(world).set("tiles", (128, 128));
    let any = ScaleRule {
        power_of_two: false,
        ..THEIRS
    };
    [
        emulated(&plain, inputs),
        emulated(&variant(world, THEIRS), inputs),
        emulated(&variant(world, any), inputs),
        of_one_scale(&any, world, inputs),
    ]
    .map(|got| errors(&got, &exact))
}

/// Numbers of one size have no better scales in blocks than in a tensor. Where rows differ in size, one scale leaves the small ones
/// nothing.
#[test]
fn partial_sums_of_fp8_are_off_by_a_few_percent() {
    for rows_differ in [false, true] {
        let k = 128;
        let [bf16, blocks, any, tensor] = of(4, &Inputs { k, rows_differ }).map(|(rms, _)| rms);
        assert!((0.1..0.3).contains(&bf16), "{bf16}");
        assert!((1.5..3.0).contains(&blocks), "{blocks}");
        assert!((1.5..3.0).contains(&any), "{any}");
        let wanted = if rows_differ { 4.0..100.0 } else { 1.5..3.0 };
        assert!(wanted.contains(&tensor), "{tensor}");
    }
}

#[test]
#[ignore = "no test but a measurement of minutes: it prints the table of errors in notes/bench/FIGURES.md"]
fn table_of_errors() {
    println!("| ranks | K of each | bf16 | 1×128, powers of two | 1×128 | one scale |");
    println!("|---|---|---|---|---|---|");
    for rows_differ in [false, true] {
        for world in [2, 4, 8] {
            for k in [1024, 2048, 4096, 8192] {
                let all = of(world, &Inputs { k, rows_differ });
                let all = all.map(|(rms, most)| format!("{rms:.2} ({most:.1})"));
                println!("| {world} | {k} | {} |", all.join(" | "));
            }
        }
    }
}
