//! Products that make scales of what they store: codes and scales are those of the twin of their f32 results, to the bit, and the
//! next product reads both as they lie.

use crate::trained::Codes;
use crate::{emulated, fine, on_gpu};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me, ranks};
use counterflow_codegen::cuda::{self, CudaSource};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::interp::Numbers;
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::Program;
use counterflow_codegen::value::Value;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::{sm90, verify};
use counterflow_quantise::{
    Convention, Fp8, Matrix, Pieces, Quantised, RowsLast, Rule, SquarePadded, twin,
};
use counterflow_runtime::op::Launch;
use counterflow_runtime::{Communicator, Error, Tensor};
use float8::F8E4M3;
use half::bf16;
use proptest::prelude::*;
use std::sync::PoisonError;

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
    let mut s = ScheduleBuilder::new("made_behind_a_gather");
    let (x, w, y) = (s.gathered("x", x), s.local("w", x), s.out("y", y));
    let (pieces, tiles) = (s.pieces("pieces", x, 128), s.tiles("tiles", y, (128, 128)));
    let arrived = s.counters("arrived", [pieces.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("p", pieces.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("chunk", ranks().from_me(), |s, chunk| {
            s.for_items("t", tiles.of(&chunk), |s, t| {
                s.wait(arrived.at(t.rows()));
                let product = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), product);
            });
        });
    });
    s.finish()
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
fn rules() -> [Rule; 5] {
    let theirs = Rule::transformer_engine;
    let on_gpu = Rule {
        convention: Convention::DeepGemmOnGpu,
        ..Rule::deep_gemm()
    };
    [
        theirs(Fp8::E4M3),
        theirs(Fp8::E5M2).powers_of_two(),
        Rule::deep_gemm(),
        on_gpu.powers_of_two(),
        theirs(Fp8::E4M3).powers_of_two().with_eps(1e-3),
    ]
}

/// What is chained has e4m3 with powers of two.
fn chained_rule() -> Rule {
    Rule::transformer_engine(Fp8::E4M3).powers_of_two()
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
fn of_twin(y: &[f32], shape: [usize; 2], rule: &Rule) -> Quantised {
    twin::quantise(&Matrix::new(y, shape, Dtype::F32), rule, Pieces::OneBy128)
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
                let mut codes = Codes::new(rank, rule.to, [m, n])?;
                let [lines, padded] = op.needs_at("y.scale", m)?.shape;
                // With a line more, which nobody may write.
                let mut scales = rank.zeros::<f32>([lines + 1, padded])?;
                scales.fill(0xff)?;
                let launch = codes
                    .given(given(op.on(rank), operands, b), "y")
                    .tensor("y.scale", &mut scales);
                launch.rows(m).launch()?.wait()?;
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

/// The next product's second operand, quantised by 128×128.
struct Second {
    codes: Tensor<F8E4M3>,
    scales: Tensor<f32>,
}

impl Second {
    /// Of so much depth.
    fn new(rank: &Communicator, depth: usize) -> Result<Second, Error> {
        let v: Vec<f32> = plain(NEXT * depth, 11)
            .into_iter()
            .map(bf16::to_f32)
            .collect();
        let v = Matrix::new(&v, [NEXT, depth], Dtype::F32);
        let v = twin::quantise(&v, &chained_rule(), Pieces::Square);
        let plane = v.plane::<SquarePadded>();
        let lines = NEXT.div_ceil(128);
        let second = Second {
            codes: rank.zeros([NEXT, depth])?,
            scales: rank.zeros([lines, plane.values().len() / lines])?,
        };
        second.codes.write(&of_bits(&v.codes))?;
        second.scales.write(plane.values())?;
        Ok(second)
    }
}

fn of_bits(codes: &[u8]) -> Vec<F8E4M3> {
    codes.iter().map(|code| F8E4M3::from_bits(*code)).collect()
}

/// A launch of ranks that wait for each other: beside it, none that shares the GPU allocates or copies, which may wait for all
/// kernels there.
fn alone(rank: &Communicator, launch: Launch<'_>) -> Result<(), Error> {
    rank.barrier()?;
    launch.launch()?.wait()?;
    rank.barrier()
}

/// A product behind a gather makes scales, and each rank's next product reads them: the bits of quantising in between.
fn chained(all: &[Communicator], m: usize, n: usize) -> Result<(), Error> {
    let rule = chained_rule();
    let [narrow, wide] = [Dtype::Bf16, Dtype::F32].map(|y| gather(Dtype::Bf16, y));
    let (all_x, all_w) = (plain(m * K, 3), plain(n * K, 4));
    let second = next();
    Communicator::each(all, |rank| {
        rank.reserve(4 << 20)?;
        let op = rank
            .op(&narrow)
            .output_scales(rule)
            .up_to(m, n, K)
            .build()?;
        let plain = rank.op(&wide).up_to(m, n, K).build()?;
        let next = rank
            .op(&second)
            .scales(Scales::Blocks1d2d)
            .up_to(m, NEXT, n)
            .build()?;
        let [full, _] = op.needs("x")?.shape;
        let chunk = full / all.len();
        let x = rank.allocate::<bf16>("x", [full, K])?;
        let w = rank.zeros::<bf16>([n, K])?;
        w.write(&all_w)?;
        let me = rank.rank() as usize;
        let mine = (me * chunk).min(m)..((me + 1) * chunk).min(m);
        x.rows(mine.clone())?
            .write(&all_x[mine.start * K..mine.end * K])?;
        let mut wanted = rank.zeros::<f32>([m, n])?;
        let launch = plain.on(rank).tensor("x", &x).tensor("w", &w);
        alone(rank, launch.tensor("y", &mut wanted))?;
        let wanted = of_twin(&wanted.read()?, [m, n], &rule);
        let mut codes = rank.zeros::<F8E4M3>([m, n])?;
        let mut scales = rank.zeros::<f32>(op.needs("y.scale")?.shape)?;
        scales.fill(0xff)?;
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        let launch = launch
            .tensor("y", &mut codes)
            .tensor("y.scale", &mut scales);
        alone(rank, launch)?;
        let read: Vec<u8> = codes.read()?.iter().map(F8E4M3::to_bits).collect();
        holds(&format!("{m} rows of {n}"), &read, &scales.read()?, &wanted);

        let second = Second::new(rank, n)?;
        let after = |codes: &Tensor<F8E4M3>, scales: &Tensor<f32>| -> Result<Vec<u16>, Error> {
            let mut z = rank.zeros::<bf16>([m, NEXT])?;
            let launch = next.on(rank).tensor("x", codes).tensor("w", &second.codes);
            let launch = launch
                .tensor("x.scale", scales)
                .tensor("w.scale", &second.scales);
            launch.tensor("y", &mut z).launch()?.wait()?;
            Ok(z.read()?.iter().map(|value| value.to_bits()).collect())
        };
        let theirs = (rank.zeros([m, n])?, rank.zeros(scales.shape())?);
        theirs.0.write(&of_bits(&wanted.codes))?;
        theirs.1.write(wanted.plane::<RowsLast>().values())?;
        let (ours, theirs) = (after(&codes, &scales)?, after(&theirs.0, &theirs.1)?);
        assert!(ours == theirs, "{m} rows of {n}, then {NEXT}");
        assert!(ours.iter().any(|bits| *bits != 0));
        rank.barrier()
    })?;
    println!(
        "  {} launches right: products whose scales the next one reads, {}",
        all.len(),
        all[0].gpu().name()
    );
    Ok(())
}

/// A product of a rank's own rows writes codes and scales where the next launch gathers them from.
fn gathered(all: &[Communicator], rows: usize, n: usize) -> Result<(), Error> {
    let (rule, m) = (chained_rule(), rows * all.len());
    let (narrow, wide) = (
        product(Dtype::Bf16, (128, 128), false),
        gather(Dtype::E4M3, Dtype::Bf16),
    );
    let (all_x, all_w) = (plain(m * K, 5), plain(n * K, 6));
    let second = next();
    Communicator::each(all, |rank| {
        rank.reserve(8 << 20)?;
        let op = rank
            .op(&narrow)
            .output_scales(rule)
            .up_to(rows, n, K)
            .build()?;
        let gather = rank
            .op(&wide)
            .scales(Scales::Blocks1d2d)
            .up_to(m, NEXT, n)
            .build()?;
        let whole = rank
            .op(&second)
            .scales(Scales::Blocks1d2d)
            .up_to(m, NEXT, n)
            .build()?;
        let codes = rank.allocate::<F8E4M3>("x", gather.needs("x")?.shape)?;
        let [lines, chunk] = gather.needs("x.scale")?.shape;
        let (planes, lines) = (
            rank.allocate::<f32>("x.scale", [lines, chunk])?,
            lines / all.len(),
        );
        let me = rank.rank() as usize;
        let (x, w) = (rank.zeros::<bf16>([rows, K])?, rank.zeros::<bf16>([n, K])?);
        x.write(&all_x[me * rows * K..(me + 1) * rows * K])?;
        w.write(&all_w)?;
        let mut own = codes.rows(me * rows..(me + 1) * rows)?;
        let mut own_scales = planes.rows(me * lines..(me + 1) * lines)?;
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        launch
            .tensor("y", &mut own)
            .tensor("y.scale", &mut own_scales)
            .launch()?
            .wait()?;
        let second = Second::new(rank, n)?;
        let mut z = rank.zeros::<bf16>([m, NEXT])?;
        let launch = gather
            .on(rank)
            .tensor("x", &codes)
            .tensor("w", &second.codes);
        let launch = launch
            .tensor("x.scale", &planes)
            .tensor("w.scale", &second.scales);
        alone(rank, launch.tensor("y", &mut z))?;

        // All rows on one rank, with the same codes and scales in one plane.
        let local = rank.zeros::<F8E4M3>([m, n])?;
        local.write(&codes.read()?[..m * n])?;
        let scales = rank.zeros::<f32>(whole.needs("x.scale")?.shape)?;
        let of_ranks = planes.read()?;
        let [_, padded] = scales.shape();
        let mut together = vec![0.0; lines * padded];
        for (line, row) in (0..lines).flat_map(|line| (0..m).map(move |row| (line, row))) {
            together[line * padded + row] =
                of_ranks[(row / rows * lines + line) * chunk + row % rows];
        }
        scales.write(&together)?;
        let mut wanted = rank.zeros::<bf16>([m, NEXT])?;
        let launch = whole
            .on(rank)
            .tensor("x", &local)
            .tensor("w", &second.codes);
        let launch = launch
            .tensor("x.scale", &scales)
            .tensor("w.scale", &second.scales);
        launch.tensor("y", &mut wanted).launch()?.wait()?;
        let of = |y: Vec<bf16>| y.into_iter().map(bf16::to_bits).collect::<Vec<_>>();
        let (z, wanted) = (of(z.read()?), of(wanted.read()?));
        assert!(
            z == wanted && z.iter().any(|bits| *bits != 0),
            "{m} rows of {n}"
        );
        rank.barrier()
    })?;
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

#[test]
fn ranks_that_share_a_gpu_chain_products() {
    if !crate::has_gpu() {
        return;
    }
    let _alone = crate::GPU.write().unwrap_or_else(PoisonError::into_inner);
    for world in 1..=MOST_RANKS {
        for (m, n) in [(512, 256), (301, 464)] {
            fine(chained(&fine(Communicator::loopback(world)), m, n));
        }
        fine(gathered(&fine(Communicator::loopback(world)), 132, 272));
    }
}

#[test]
fn emulated_ranks_gather_what_they_wrote() {
    for (world, rows, n) in [(1, 4, 16), (2, 132, 272), (3, 20, 128)] {
        fine(gathered(&fine(Communicator::emulated(world)), rows, n));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Worlds of 1 to 8, with chunks that are short or empty, and rows of every number of blocks.
    #[test]
    fn emulated_ranks_chain_products(world in 1u32..=8, m in 1usize..200, sixteens in 1usize..24) {
        fine(chained(&fine(Communicator::emulated(world)), m, 16 * sixteens));
    }
}
