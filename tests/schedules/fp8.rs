//! Which schedules of the library multiply FP8, unchanged in their text, and with which kinds of scales.

use crate::wide::wide;

use counterflow::codegen::diag::Diagnostics;
use counterflow::codegen::interp::{self, Options};
use counterflow::codegen::lower::lower;
use counterflow::codegen::program::{ScaleBlock, Setting};
use counterflow::codegen::verify;
use counterflow::{
    Arch, Checked, Dtype, Machine, Plan, Program, Scales, Shape, Variant, schedules,
};
use std::fmt::Write as _;

/// Operands that are what their codes say, and each kind of scales.
const KINDS: [Option<Scales>; 6] = [
    None,
    Some(Scales::PerTensor),
    Some(Scales::PerRow),
    Some(Scales::Blocks1d2d),
    Some(Scales::Blocks2d1d),
    Some(Scales::Blocks1d1d),
];

const TABLE: &str = "\
schedule             none  whole  rows  1d2d  2d1d  1d1d
gemm                  yes    yes   yes   yes   yes   yes
linear_gelu           yes    yes   yes   yes   yes   yes
linear_residual       yes    yes   yes   yes   yes   yes
swiglu                yes    yes   yes   yes   yes   yes
experts               yes    yes   yes   yes   yes   yes
wgrad                 yes    yes   yes   yes   yes   yes
ag_gemm               yes    yes   yes   yes   yes   yes
ag_gemm_across        yes    yes   yes     a   yes     a
ag_gemm_pull          yes    yes   yes   yes   yes   yes
ag_gemm_ring          yes    yes   yes   yes   yes   yes
ag_gemm_double_ring   yes    yes   yes   yes   yes   yes
ag_gemm_slabs         yes    yes     b     b     b     b
ag_swiglu             yes    yes   yes   yes   yes   yes
fsdp_gemm             yes    yes   yes   yes   yes   yes
gemm_rs               yes    yes   yes   yes   yes   yes
gemm_rs_across        yes    yes   yes   yes   yes   yes
gemm_rs_add           yes    yes   yes   yes   yes   yes
rs_ring               yes    yes   yes   yes   yes   yes
gemm_ar               yes    yes   yes   yes   yes   yes
gemm_ar_one_shot      yes    yes   yes   yes   yes   yes
gemm_ag               yes    yes   yes   yes   yes   yes
all_to_all            yes    yes   yes   yes   yes   yes
mlp                   yes      c     c     c     c     c
bulk                  yes    yes   yes   yes   yes   yes
bulk_rs               yes    yes   yes   yes   yes   yes
all_gather            yes      d     d     d     d     d
reduce_scatter          e      f     f     f     f     f
all_reduce              e      g     g     g     g     g
a: a tile of `x.scale` in several shards, whose rows are contiguous: each is a matrix of its own
b: slabs of columns, with which `x.scale` would have to travel
c: `hidden` is computed, and has no scale
d: scales for all_gather, which multiplies nothing of FP8
e: `g` of e4m3, which a tile is added to or read from
f: scales for reduce_scatter, which multiplies nothing of FP8
g: scales for all_reduce, which multiplies nothing of FP8
";

/// A kind's name in the table, and how wide its column is.
fn column(scales: Option<Scales>) -> (&'static str, usize) {
    let name = scales.map_or("none", Scales::name);
    (name, name.len().max(4) + 2)
}

/// The first thing that is said against it.
fn told(refused: &Diagnostics) -> String {
    let mut all = refused.iter();
    all.next().map_or(String::new(), |one| one.message.clone())
}

/// A variant of e4m3 operands in tiles of that shape.
fn variant(program: &Program, (world, scales): (u32, Option<Scales>), tile: Setting) -> Variant {
    let variant = Variant::new(world).dtype(Dtype::E4M3);
    let mut variant = scales.into_iter().fold(variant, Variant::scales);
    let tiles = ["tiles", "hidden_tiles", "more_tiles"];
    for tunable in &program.tunables {
        if tiles.contains(&&tunable.name[..]) {
            variant.choices.insert(tunable.name.clone(), tile);
        }
    }
    variant
}

/// What refuses it, if anything does: its kernel for a GPU is checked, and the emulator runs two launches of it.
fn refused(
    program: &Program,
    world: u32,
    scales: Option<Scales>,
    with: impl Fn(Variant) -> Variant,
) -> Result<(), String> {
    // Tiles that leave registers for promoted sums.
    let kernel = lower(
        program,
        &with(variant(program, (world, scales), (128, 64).into())),
    );
    let kernel = kernel.and_then(verify::kernel);
    let warps = kernel.and_then(|kernel| verify::warps(&kernel).map(drop));
    warps.map_err(|error| told(&error))?;

    // Where ranks divide what has scales of 128×128, one has a whole block, one a part, and one nothing.
    let squares = scales
        .and_then(Scales::blocks)
        .unwrap_or([ScaleBlock::F32_1X128; 2]);
    let [m, n] = squares.map(|block| {
        if block == ScaleBlock::F32_128X128 {
            144
        } else {
            32
        }
    });
    let shape = Shape::new(m - 1, n, 144);
    let mut variant = with(variant(program, (world, scales), (4, 8).into())).arch(Arch::Cpu);
    if program
        .tunables
        .iter()
        .any(|tunable| tunable.name == "chunks")
    {
        let rows = if squares.contains(&ScaleBlock::F32_128X128) {
            128
        } else {
            3
        };
        variant.choices.insert("chunks".into(), rows.into());
    }
    let name = format!("{} {variant}", program.name);
    let kernel = lower(program, &variant).and_then(verify::kernel);
    let kernel = kernel.map_err(|error| told(&error))?;
    let series = verify::series(&kernel, &shape, &Machine::h200());
    let series = series.map_err(|error| told(&error))?;
    let plans: Vec<Checked<Plan>> = [m - 1, 1]
        .map(|m| series.plan(&Shape { m, ..shape.clone() }))
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let launches: Vec<&Checked<Plan>> = plans.iter().collect();
    let outcome = interp::run(&series, &launches, &Options::seed(1), interp::uniform(1));
    let outcome = outcome.unwrap_or_else(|failure| panic!("{name}: {failure}"));
    for (launch, plan) in plans.iter().enumerate() {
        let expected = interp::reference(&kernel, plan, launch, interp::uniform(1));
        let expected = expected.unwrap_or_else(|error| panic!("{name}: {error}"));
        let agreed = interp::compare(&outcome, &expected);
        let agreed = agreed.unwrap_or_else(|error| panic!("{name} launch {launch}: {error}"));
        assert!(agreed.elements > 0, "{name}");
    }
    Ok(())
}

/// What the table says of a schedule with a kind of scales.
fn tabulated(schedule: usize, kind: usize) -> Result<(), String> {
    let cell = |line: &str| line.split_whitespace().nth(1 + kind).map(str::to_owned);
    let cell = TABLE.lines().nth(1 + schedule).and_then(cell);
    match cell.expect("a cell").as_str() {
        "yes" => Ok(()),
        letter => {
            let reason = |line: &'static str| line.strip_prefix(letter)?.strip_prefix(": ");
            Err(TABLE.lines().find_map(reason).expect("a reason").to_owned())
        }
    }
}

/// The same table in every world. What is refused is so before anything is said of its sizes. Without `WIDE` one cell of each
/// line, and a sixth of each column, in turn.
#[test]
fn every_schedule_takes_every_kind_of_scales_or_says_why_not() {
    let worlds: &[u32] = if wide() { &[1, 2, 3, 8] } else { &[3] };
    for world in worlds {
        let mut table = format!("{:19}", "schedule");
        for scales in KINDS {
            let (name, width) = column(scales);
            let _ = write!(table, "{name:>width$}");
        }
        table.push('\n');
        let mut reasons: Vec<String> = Vec::new();
        for (line, schedule) in schedules::ALL.iter().enumerate() {
            let program = schedule();
            let _ = write!(table, "{:19}", program.name);
            for (kind, scales) in KINDS.into_iter().enumerate() {
                let found = match wide() || (line + kind) % 6 == 0 {
                    true => refused(&program, *world, scales, |plain| plain),
                    false => tabulated(line, kind),
                };
                let cell = match found {
                    Ok(()) => "yes".to_owned(),
                    Err(why) => {
                        let known = reasons.iter().position(|reason| *reason == why);
                        let at = known.unwrap_or_else(|| {
                            reasons.push(why);
                            reasons.len() - 1
                        });
                        char::from(b'a' + at as u8).to_string()
                    }
                };
                let (_, width) = column(scales);
                let _ = write!(table, "{cell:>width$}");
            }
            table.push('\n');
        }
        for (letter, reason) in ('a'..).zip(&reasons) {
            let _ = writeln!(table, "{letter}: {reason}");
        }
        assert!(table == TABLE, "world {world}:\n{table}");
    }
}

/// A layer between two products, in FP8 with one given scale, has the numbers of the reference.
#[test]
fn a_hidden_layer_of_fp8_agrees_with_the_reference() {
    let worlds: &[u32] = if wide() { &[1, 2, 3, 5, 8] } else { &[1, 3] };
    for (world, scales) in worlds
        .iter()
        .flat_map(|world| [Scales::PerTensor, Scales::PerRow].map(|scales| (*world, scales)))
    {
        let done = refused(&schedules::mlp(), world, Some(scales), |variant| {
            variant.hidden("hidden", Dtype::E4M3)
        });
        done.unwrap_or_else(|why| panic!("world {world}, {}: {why}", scales.name()));
    }
}
