//! Products that make scales of what they store: codes and scales are those of the twin of their f32 results, to the bit, and the
//! next product reads both as they lie.

mod chained;

use crate::shards::gather_of;
use crate::trained::Codes;
use crate::{emulated, fine, on_gpu};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::value::Value;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::{sm90, verify};
use counterflow_emitter::{self as cuda, CudaSource};
use counterflow_emulator::Numbers;
use counterflow_quantise::{Fp8, Granularity, Matrix, Quantised, RowsLast, ScaleRule, twin};
use counterflow_runtime::op::Launch;
use counterflow_runtime::{Communicator, Error, Tensor};
use half::bf16;

/// Rows and columns of the product, and its depth: no tile is full, nor is the last block of a row, behind which a tile of 256
/// columns has none.
const SHAPE: [usize; 2] = [301, 336];
const K: usize = 144;
/// Columns of the next product.
const NEXT: usize = 64;
/// Ranks that share a GPU.
const MOST_RANKS: u32 = 4;

/// y = x · wᵀ, or f(x · wᵀ + b) for a function that makes something of zero: what is beyond the end must not count.
fn product(y: Dtype, tile: (u32, u32), computed: bool) -> Program {
    let mut s = ScheduleBuilder::new("made");
    let (x, w) = (s.local("x", Dtype::Bf16), s.local("w", Dtype::Bf16));
    let b = computed.then(|| s.vector("b", Dtype::F32));
    let y = s.out("y", y);
    let tiles = s.tiles("tiles", y, tile);
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            let value = match b {
                Some(b) => {
                    let b = s.load(b);
                    product.bias(b) + Value::from(-3.0)
                }
                None => product,
            };
            s.store(y.at(t), value);
        });
    });
    s.finish()
}

/// y = all_gather(x) · wᵀ.
fn gather(x: Dtype, y: Dtype) -> Program {
    gather_of("made_behind_a_gather", [x, y], (128, 128))
}

/// z = y · vᵀ of codes with scales of 1×128 and 128×128.
fn next() -> Program {
    let mut s = ScheduleBuilder::new("next");
    let x = s.local("x", Dtype::E4M3);
    let (w, y) = (s.local("w", Dtype::E4M3), s.out("y", Dtype::Bf16));
    let tiles = s.tiles("tiles", y, (128, 64));
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.grouped(8), |s, t| {
            let product = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), product);
        });
    });
    s.finish()
}

/// Tiles, and whether more than the product is stored: of two blocks of rows there are no registers for that.
const TILES: [((u32, u32), bool); 5] = [
    ((128, 128), true),
    ((128, 256), true),
    ((256, 128), false),
    ((128, 256), false),
    ((128, 128), false),
];

/// Each convention, with powers of two and without.
fn rules() -> [ScaleRule; 5] {
    let theirs = ScaleRule::transformer_engine;
    [
        theirs(Fp8::E4M3),
        theirs(Fp8::E5M2).powers_of_two(),
        ScaleRule::deep_gemm(),
        ScaleRule::deep_gemm().powers_of_two(),
        theirs(Fp8::E4M3).powers_of_two().with_eps(1e-3),
    ]
}

/// What is chained has e4m3 with powers of two.
fn chained_rule() -> ScaleRule {
    ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two()
}

/// What GPUs run of it.
pub fn kernels() -> Vec<CudaSource> {
    let emitted = |(program, variant): (Program, Variant)| {
        let kernel = lower(&program, &variant).and_then(verify::kernel);
        let pipeline = kernel.and_then(|kernel| sm90::build(&kernel));
        let checked = pipeline.and_then(verify::pipeline);
        cuda::emit(&checked.unwrap_or_else(|error| panic!("{error}")))
    };
    let tiles = TILES.into_iter().flat_map(|(tile, computed)| {
        let of = |y: Dtype| product(y, tile, computed);
        let made = rules().map(|rule| (of(Dtype::Bf16), Variant::new(1).output_scales(rule)));
        made.into_iter().chain([(of(Dtype::F32), Variant::new(1))])
    });
    let worlds = (1..=MOST_RANKS).flat_map(|world| {
        let variant = Variant::new(world);
        let (bf16, blocks) = (Dtype::Bf16, Scales::Blocks1d2d);
        [
            (
                gather(bf16, bf16),
                variant.clone().output_scales(chained_rule()),
            ),
            (gather(bf16, Dtype::F32), variant.clone()),
            (
                product(bf16, (128, 128), false),
                variant.clone().output_scales(chained_rule()),
            ),
            (gather(Dtype::E4M3, bf16), variant.clone().scales(blocks)),
            (next(), variant.scales(blocks)),
        ]
    });
    tiles.chain(worlds).map(emitted).collect()
}

/// Numbers whose rows are of eight kinds: of one size, zero, tiny, so large that sums overflow, with NaN, with an infinity, of
/// many sizes.
fn numbers(rows: usize, seed: u64) -> Vec<bf16> {
    let mut numbers = Numbers::new(seed);
    let mut number = |at: usize| {
        let unit = numbers.below(2001) as f32 / 1000.0 - 1.0;
        let (row, column) = (at / K, at % K);
        bf16::from_f32(match (row % 8, column) {
            (1, _) => 0.0,
            (2, _) => unit * 1e-38,
            (3, _) => unit * 3e38,
            (4, 7) => f32::NAN,
            (5, 9) => f32::INFINITY,
            (6, _) => unit * 2f32.powi(column as i32 % 40 - 20),
            _ => unit,
        })
    };
    (0..rows * K).map(&mut number).collect()
}

/// Numbers that quantise to many codes.
fn plain(count: usize, seed: u64) -> Vec<bf16> {
    let mut numbers = Numbers::new(seed);
    let number = |_| bf16::from_f32(numbers.below(2001) as f32 / 1000.0 - 1.0);
    (0..count).map(number).collect()
}

/// What the twin makes of f32 results.
fn of_twin(y: &[f32], shape: [usize; 2], rule: &ScaleRule) -> Quantised {
    twin::quantise(
        &Matrix::new(y, shape, Dtype::F32),
        rule,
        Granularity::BLOCK_1X128,
    )
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Whether memory holds the codes and the plane of scales, padding and all.
fn holds(what: &str, codes: &[u8], scales: &[f32], wanted: &Quantised) {
    assert!(codes[..wanted.codes.len()] == wanted.codes, "codes, {what}");
    let plane = wanted.plane::<RowsLast>();
    assert!(bits(scales) == bits(plane.values()), "scales, {what}");
}

/// A launch with its inputs.
fn given<'a>(
    launch: Launch<'a>,
    [x, w]: [&'a Tensor<bf16>; 2],
    b: Option<&'a Tensor<f32>>,
) -> Launch<'a> {
    let launch = launch.tensor("x", x).tensor("w", w);
    match b {
        Some(b) => launch.tensor("b", b),
        None => launch,
    }
}

fn made(rank: &Communicator) -> Result<(), Error> {
    let mut launches = 0;
    let [most, n] = SHAPE;
    for (tile, computed) in TILES {
        let wide = product(Dtype::F32, tile, computed);
        let plain = rank.op(&wide).up_to(most, n, K).build()?;
        for (at, rule) in rules().iter().enumerate() {
            let narrow = product(Dtype::Bf16, tile, computed);
            let op = rank
                .op(&narrow)
                .output_scales(*rule)
                .up_to(most, n, K)
                .build()?;
            let (x, w) = (rank.zeros::<bf16>([most, K])?, rank.zeros::<bf16>([n, K])?);
            let b = rank.zeros::<f32>([n])?;
            x.write(&numbers(most, at as u64 + 1))?;
            w.write(&self::plain(n * K, 9))?;
            b.write(
                &self::plain(n, 10)
                    .into_iter()
                    .map(bf16::to_f32)
                    .collect::<Vec<_>>(),
            )?;
            let (operands, b) = ([&x, &w], computed.then_some(&b));
            for m in [most, 130, 1] {
                let what = format!("{rule} of {m} rows in tiles of {tile:?}");
                let mut y = rank.zeros::<f32>([m, n])?;
                given(plain.on(rank), operands, b)
                    .tensor("y", &mut y)
                    .rows(m)
                    .launch()?
                    .wait()?;
                let codes = Codes::new(rank, rule.to, [m, n])?;
                let needs = op.needs_at("y", m)?.scale.expect("scales");
                let [lines, padded] = needs.shape;
                // With a line more, which nobody may write.
                let scales = rank.zeros::<f32>([lines + 1, padded])?;
                scales.fill(0xff)?;
                let launch = given(op.on(rank), operands, b).rows(m);
                codes.made(launch, &scales)?.wait()?;
                let y = y.read()?;
                let wild = y.iter().any(|value| value.is_nan()) && y.contains(&f32::INFINITY);
                assert!(wild || m == 1, "{what}");
                let wanted = of_twin(&y, [m, n], rule);
                let scales = scales.read()?;
                let (scales, behind) = scales.split_at(lines * padded);
                holds(&what, &codes.read()?, scales, &wanted);
                assert!(behind.iter().all(|word| word.to_bits() == !0), "{what}");
                launches += 1;
            }
        }
    }
    println!(
        "  {launches} launches right: products that make the scales of what they store, {}",
        rank.gpu().name()
    );
    Ok(())
}

#[test]
fn products_on_a_gpu_make_the_scales_of_the_twin() {
    let Some(rank) = on_gpu() else { return };
    fine(made(&rank));
}

#[test]
fn products_on_an_emulated_rank_make_the_scales_of_the_twin() {
    fine(made(&emulated()));
}
