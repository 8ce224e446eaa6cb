//! Partial sums that travel in FP8, with scales of 1×128 that the tile makes.

use crate::fixtures::library;
use crate::fixtures::wide::{in_turn, sampled, wide};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me, others, ranks, world};
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::dtype::Dtype::{Bf16, E4M3};
use counterflow_codegen::lower::lower;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::{Program, TensorId};
use counterflow_codegen::rule::{Convention, Fp8, ScaleRule};
use counterflow_codegen::shape::{Extent, Shape};
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::verify::{self, Series};
use counterflow_codegen::warp::{Elements, FragmentOp, Node, Pipeline, ReadInto, ScalesTo};
use counterflow_emitter as cuda;
use counterflow_emulator::{self as interp, Options};

mod accuracy;
mod refused;

fn program(name: &str) -> Program {
    let mut all = library::all().into_iter();
    all.find(|program| program.name == name)
        .expect("a schedule")
}

const THEIRS: ScaleRule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();

fn variant(world: u32, rule: ScaleRule) -> Variant {
    Variant::new(world)
        .quantised_reduction(rule)
        .set("tiles", (128, 128))
}

fn built(program: &Program, variant: &Variant) -> Result<Pipeline, Diagnostics> {
    sm90::build(&lower(program, variant).and_then(verify::kernel)?)
}

fn series(program: &Program, variant: &Variant, shape: &Shape) -> Series {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|error| panic!("{} {variant}: {error}", program.name));
    let series = verify::series(&kernel, shape, &Machine::h200());
    series.unwrap_or_else(|error| panic!("{} {variant}: {error}", program.name))
}

fn rules() -> [ScaleRule; 4] {
    let wide = ScaleRule::transformer_engine(Fp8::E5M2).with_eps(8.0);
    [
        THEIRS,
        ScaleRule::transformer_engine(Fp8::E4M3),
        ScaleRule::deep_gemm(),
        wide,
    ]
}

/// An overflow is seen behind DeepGEMM's rule alone; NaN is behind all.
#[test]
fn what_is_read_of_infinities_and_nan() {
    for rule in rules() {
        let read = |odd: f32| {
            let mut values = [1.0; 128];
            values[5] = odd;
            let scale = rule.scale_lines(&mut values, 128)[0];
            values.map(|value| rule.to.dtype().round(value) * scale)
        };
        let (infinite, nan) = (read(f32::INFINITY), read(f32::NAN));
        match rule.convention {
            Convention::TransformerEngine => {
                assert!(infinite.iter().all(|value| value.is_finite()), "{rule}");
                assert!(nan[5].is_nan() && nan[4].is_finite(), "{rule}");
            }
            Convention::DeepGemm => {
                let all = infinite.iter().chain(&nan);
                assert!(all.copied().all(f32::is_nan), "{rule}");
            }
        }
    }
}

/// The numbers of a rank's tensor, which the product of integers has exactly.
fn integers(seed: u64, rank: u32, tensor: usize, name: &str, sides: (u32, u32)) -> Vec<f32> {
    let mut values = vec![0.0; (sides.0 * sides.1) as usize];
    let input = interp::Input {
        launch: 0,
        rank,
        tensor: TensorId(tensor as u16),
        name,
        rows: Extent {
            start: 0,
            end: sides.0,
        },
        columns: sides.1,
    };
    interp::integers(seed)(input, &mut values);
    values
}

/// What rank `owner` has of the sum over ranks: codes times scales of all others, in their order, and its own product.
fn twin(rule: &ScaleRule, world: u32, [m, n, k]: [u32; 3], owner: u32, seed: u64) -> Vec<f32> {
    let shard = m.div_ceil(world);
    let rows = (shard * owner).min(m)..(shard * (owner + 1)).min(m);
    let product = |rank: u32| {
        let x = integers(seed, rank, 0, "x", (m, k));
        let w = integers(seed, rank, 1, "w", (n, k));
        let mut product = Vec::new();
        for row in rows.clone() {
            for column in 0..n {
                let along = |of: &[f32], at: u32| of[(at * k) as usize..][..k as usize].to_vec();
                let (x, w) = (along(&x, row), along(&w, column));
                product.push(x.iter().zip(&w).map(|(x, w)| x * w).sum::<f32>());
            }
        }
        product
    };
    let own = product(owner);
    let mut others = vec![0.0; own.len()];
    for rank in (0..world).filter(|rank| *rank != owner) {
        let mut partial = product(rank);
        let lines = rule.scale_lines(&mut partial, n as usize);
        for (at, value) in partial.iter().enumerate() {
            let (row, column) = (at / n as usize, at % n as usize);
            let scale = lines[column / 128 * rows.len() + row];
            others[at] += rule.to.value(rule.to.code(*value)) * scale;
        }
    }
    let sum = own.iter().zip(&others).map(|(own, others)| own + others);
    sum.map(|sum| Bf16.round(sum)).collect()
}

/// Worlds of 1 to 8, with shards that are short or empty and columns that are no whole blocks: the bits of each rank's sum are those of
/// codes and scales that a quantiser makes, added in the order of ranks.
#[test]
fn sums_are_of_codes_times_scales_in_the_order_of_ranks() {
    let gemm_rs = program("gemm_rs");
    let worlds = (1..=8).zip([[13, 144, 80], [34, 400, 48]].into_iter().cycle());
    for (world, sizes) in sampled(worlds, 3) {
        let [m, n, k] = sizes;
        let [a, b, c, d] = rules();
        for rule in in_turn([[a, b], [c, d]], world as usize).flatten() {
            let shape = Shape::new(m, n, k);
            let series = series(&gemm_rs, &variant(world, rule), &shape);
            let plan = series.plan(&shape);
            let plan = plan.unwrap_or_else(|error| panic!("{error}"));
            let run = |seed| {
                let ran = interp::run(&series, &[&plan], &Options::seed(seed), interp::integers(7));
                ran.unwrap_or_else(|error| panic!("world {world} {rule}: {error}"))
            };
            let (ran, again) = (run(1), run(2));
            for rank in 0..world {
                let of = |ran: &interp::Outcome| {
                    let mut outputs = ran.outputs.iter();
                    let y =
                        outputs.find(|output| (output.rank, output.tensor) == (rank, TensorId(2)));
                    y.expect("an output").values.clone()
                };
                assert_eq!(of(&ran), of(&again), "world {world} {rule}");
                let wanted = twin(&rule, world, sizes, rank, 7);
                assert!(of(&ran) == wanted, "rank {rank} of {world} {rule}");
            }
        }
    }
}

/// In f64 with the bounds of its roundings, of integers and of other numbers; and the bounds are not so wide that a wrong scale fits.
#[test]
fn sums_are_within_the_bounds_of_their_roundings() {
    for name in ["gemm_rs", "gemm_ar"] {
        let program = program(name);
        for (world, (m, n, k)) in [(1, (130, 144, 80)), (3, (130, 400, 48)), (8, (61, 144, 80))] {
            let shape = Shape::new(m, n, k);
            // The worlds have the rules in turn.
            let first = if wide() { 0 } else { world as usize % 2 };
            for rule in sampled(rules().into_iter().skip(first), 2) {
                let of = variant(world, rule);
                let series = series(&program, &of, &shape);
                let plan = series.plan(&shape);
                let plan = plan.unwrap_or_else(|error| panic!("{error}"));
                let inputs = || interp::uniform(3);
                let ran = interp::run(&series, &[&plan], &Options::seed(1), inputs());
                let mut ran = ran.unwrap_or_else(|error| panic!("{name} {of}: {error}"));
                let known = interp::reference(series.kernel(), &plan, 0, inputs());
                let known = known.unwrap_or_else(|error| panic!("{name} {of}: {error}"));
                interp::compare(&ran, &known)
                    .unwrap_or_else(|error| panic!("{name} {of}: {error}"));
                let y = ran
                    .outputs
                    .iter_mut()
                    .find(|output| !output.values.is_empty());
                let y = y.expect("an output");
                let most = y
                    .values
                    .iter()
                    .fold(0.0f32, |most, value| most.max(value.abs()));
                for value in &mut y.values {
                    *value += most;
                }
                assert!(interp::compare(&ran, &known).is_err(), "{name} {of}");
            }
        }
    }
}

/// What is sent is rounded after its scales were made and written, and what is added is multiplied by them.
#[test]
fn each_tile_is_sent_and_added_with_its_scales() {
    let operands = [
        Variant::new(2).quantised_reduction(THEIRS),
        Variant::new(2)
            .quantised_reduction(ScaleRule::deep_gemm())
            .dtype(E4M3)
            .scales(Scales::Blocks1d2d),
    ];
    let kinds = [
        ("gemm_rs", (128, 256)),
        ("gemm_rs", (128, 128)),
        ("gemm_ar", (128, 256)),
    ];
    for (at, variant) in operands.into_iter().enumerate() {
        for (name, tile) in kinds
            .into_iter()
            .enumerate()
            .filter(|(nth, _)| wide() || (nth + at) % 2 == 0)
            .map(|(_, kind)| kind)
        {
            let variant = variant.clone().set("tiles", tile);
            let pipeline = built(&program(name), &variant).and_then(verify::pipeline);
            let pipeline = pipeline.unwrap_or_else(|error| panic!("{name} {variant}: {error}"));
            let (mut made, mut sent, mut read, mut added) = (Vec::new(), 0, 0, 0);
            pipeline.visit(|node| match node {
                Node::Fragment(FragmentOp::Quantize {
                    elements,
                    to: ScalesTo::Registers,
                    ..
                }) => made.push(*elements),
                Node::Fragment(FragmentOp::Quantize {
                    to: ScalesTo::Slot { .. },
                    ..
                }) => sent += 1,
                Node::Fragment(FragmentOp::ReadTileScales { .. }) => read += 1,
                Node::Fragment(FragmentOp::ReadSubtile {
                    into: ReadInto::Product { scaled, .. },
                    ..
                }) => added += u32::from(*scaled),
                _ => {}
            });
            assert_eq!(made, [Elements::Product(0)], "{name} {variant}");
            assert_eq!((sent, read, added), (1, 1, 1), "{name} {variant}");
            let text = cuda::emit(&pipeline).text;
            assert!(text.contains("float* partial_scale;"), "{text}");
        }
    }
}

/// A product whose tiles are 128x256, and then partial sums of others.
fn behind_a_product() -> Program {
    let mut s = ScheduleBuilder::new("behind_a_product");
    let [x, v, w] = ["x", "v", "w"].map(|name| s.local(name, Bf16));
    let (z, y) = (s.out("z", Bf16), s.reduce_scattered("y", Bf16));
    let first = s.tiles("first", z, (128, 256));
    let tiles = s.tiles("tiles", y, (256, 128));
    let partial = s.symmetric("partial", Bf16, y, world());
    let landed = s.counters("landed", [world().into(), tiles.into()]);
    s.gemm(GemmOptions::default(), |s| {
        s.for_ranks("shard", ranks(), |s, shard| {
            s.for_items("t", first.of(&shard), |s, t| {
                let product = s.dot(x.at(t), v.at(t));
                s.store(z.at(t), product);
            });
        });
        s.for_ranks("owner", ranks().after_me(), |s, owner| {
            s.for_items("t", tiles.of(&owner), |s, t| {
                let product = s.dot(x.at(t), w.at(t));
                s.store(partial.on(&owner).at(me()).at(t), product);
                s.signal(landed.on(&owner).at(me()).at(t), 1);
            });
        });
        s.for_items("t", tiles.of(me()), |s, t| {
            let mine = s.dot(x.at(t), w.at(t));
            s.wait(landed.at(others()).at(t));
            let theirs = s.sum(partial.at(others()).at(t));
            s.store(y.at(t), mine + theirs);
        });
    });
    s.finish()
}

/// Of rows that do not exist nothing is added, wherever a warpgroup's begin; and tiles may have other rows than those before them.
#[test]
fn scales_belong_to_the_rows_of_their_tile() {
    let squares = variant(4, THEIRS).dtype(E4M3).scales(Scales::Blocks2d1d);
    let tall = Variant::new(4).quantised_reduction(THEIRS);
    for (program, variant) in [(program("gemm_rs"), squares), (behind_a_product(), tall)] {
        let pipeline = built(&program, &variant).and_then(verify::pipeline);
        pipeline.unwrap_or_else(|error| panic!("{} {variant}: {error}", program.name));
    }
}

#[test]
fn a_kernel_sends_scales() {
    let gemm_rs = program("gemm_rs");
    let of = variant(2, THEIRS);
    let find = |text: &str, what: &str| -> String {
        let mut lines = text.lines();
        let line = lines.find(|line| line.contains(what));
        line.unwrap_or_else(|| panic!("{what} in {text}"))
            .trim()
            .into()
    };
    let kernel = lower(&gemm_rs, &of).expect("it is legal");
    insta::assert_snapshot!(find(&kernel.text(), "partial.scale  symmetric"), @"partial.scale  symmetric<f32>          m×n.blocks  world slots, own shard, rows contiguous");
    insta::assert_snapshot!(find(&kernel.text(), "scales of |"), @"partial.on(owner)[me][t] = acc0 / partial.scale; partial.scale = scales of |acc0|");
    let pipeline = built(&gemm_rs, &of).unwrap_or_else(|error| panic!("{error}"));
    let text = pipeline.text();
    insta::assert_snapshot!(find(&text, "make scales"), @"make scales of |acc[part]| of [(t.column * TILE_N + part * SUBTILE_N) / 128 * 128..n]");
    insta::assert_snapshot!(find(&text, "<- scales of"), @"partial.scale on owner, slot me [t.row * TILE_M..rows(owner), (t.column * TILE_N + part * SUBTILE_N) / 128] <- scales of |acc[part]| of [..n]");
    insta::assert_snapshot!(find(&text, "scales <-"), @"scales <- partial.scale, slot from [t.row * TILE_M..rows(me), t.column * TILE_N..n]");
    insta::assert_snapshot!(find(&text, "acc[part + i] += "), @"acc[part + i] += stage.w[i] by its scales");
    let text = cuda::emit(&verify::pipeline(pipeline).expect("it is right")).text;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "float* partial_scale; // numbers of rows, a line for each 128 columns",
        "scales_make<128, TRANSFORMER_ENGINE, true>(acc_multipliers, acc_scales, acc + part * SUBTILE_N / 2 / 64 * 64,",
        "scales_write(scales_on(plan.partial_scale, plan.cells, me, owner) + (static_cast<u64>(me) * plan.n_blocks +",
        "float scales[TILE_N / 128][2]; scales_read<TILE_N / 128>(scales, plan.partial_scale + (static_cast<u64>(from) * plan.n_blocks +",
        "subtile_add_scaled<e4m3, SUBTILE_N>(acc + (part + i) * SUBTILE_N / 2, scales[(part + i) * SUBTILE_N / 128],",
    ] {
        assert!(words.contains(line), "{line} in {text}");
    }
}
