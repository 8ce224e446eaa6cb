//! Products of depth 0 between others: every sum is 0, and what comes after it as ever. There is nothing at the operands' addresses.

use crate::case::{Case, Device, Fill, Kind, on, variant_of};
use crate::parallel::in_parallel;
use crate::wide::wide;
use crate::{fine, gpus};
use counterflow::codegen::interp::Outcome;
use counterflow::codegen::program::Setting::{One, Pair};
use counterflow::jit::Probes;
use counterflow::prelude::bf16;
use counterflow::rule::{Fp8, ScaleRule};
use counterflow::{
    Communicator, Dtype, Error, Layout, Program, Scales, Shape, Tensor, Variant, schedules,
};

/// Depths of launches in a row, each with its rows: the same kernel, whose maps are now of tensors and now of zeros.
const LAUNCHES: [(u32, u32); 5] = [(264, 0), (136, 208), (264, 0), (8, 0), (264, 208)];
const N: u32 = 272;

fn shapes() -> Vec<Shape> {
    LAUNCHES.map(|(m, k)| Shape::new(m, N, k).up_to(264)).into()
}

const WIDE: Kind = (Dtype::Bf16, (128, 256), Layout::Nt);
const TRANSPOSED: Kind = (Dtype::Bf16, (128, 256), Layout::Tn);
const FP8: Kind = (Dtype::E4M3, (128, 128), Layout::Nt);

/// Every kind of operands, scales, epilogue and output, each in a world in which it means something.
fn variants() -> Vec<(Program, Variant)> {
    let of = |schedule: fn() -> Program, world, kind| {
        let program = schedule();
        let variant = variant_of(&program, world, kind);
        (program, variant)
    };
    let mut all = vec![
        of(schedules::gemm, 1, WIDE),
        of(schedules::gemm, 1, TRANSPOSED),
        of(schedules::gemm, 1, (Dtype::F16, (128, 128), Layout::Nn)),
        of(schedules::linear_gelu, 1, WIDE),
        of(schedules::linear_residual, 1, WIDE),
        of(schedules::swiglu, 1, WIDE),
        of(schedules::wgrad, 1, TRANSPOSED),
        of(schedules::gemm_rs, 3, WIDE),
        of(schedules::gemm_ar, 2, WIDE),
        of(schedules::rs_ring, 4, WIDE),
        of(schedules::gemm_ag, 2, WIDE),
        of(schedules::all_to_all, 2, WIDE),
        of(schedules::gemm, 1, FP8),
    ];
    let (program, plain) = of(schedules::gemm, 1, (WIDE.0, (128, 144), WIDE.2));
    let pairs = plain.clone().set("gemm.cluster", Pair(2, 1));
    let ping_pong = plain.set("gemm.ping_pong", One(1));
    all.extend([pairs, ping_pong].map(|variant| (program.clone(), variant)));
    for scales in Scales::ALL {
        for (schedule, world) in [
            (schedules::gemm as fn() -> Program, 1),
            (schedules::gemm_rs, 2),
        ] {
            let (program, variant) = of(schedule, world, FP8);
            all.push((program, variant.scales(scales)));
        }
    }
    let (program, variant) = of(schedules::wgrad, 1, FP8);
    all.push((program, variant.scales(Scales::Blocks1d1d)));
    let (program, variant) = of(schedules::linear_gelu, 1, WIDE);
    all.push((program, variant.output(Dtype::E4M3).amax(true)));
    let (program, variant) = of(schedules::swiglu, 1, WIDE);
    all.push((program, variant.output_scales(ScaleRule::deep_gemm())));
    let (program, variant) = of(schedules::gemm_rs, 2, FP8);
    let rule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
    all.push((program, variant.quantised_reduction(rule)));
    all
}

/// All of them, for what compiles them ahead.
pub fn kernels() -> impl Iterator<Item = (Probes, Program, Variant)> {
    let all = variants().into_iter();
    all.map(|(program, variant)| (Probes::default(), program, variant))
}

fn compare(case: &Case, outcome: &Outcome, fill: Fill) {
    for launch in 0..LAUNCHES.len() {
        case.compare(outcome, launch, fill);
    }
}

#[test]
fn sums_of_nothing_are_zero() {
    let mut launches = 0;
    for (number, (program, variant)) in (0..).zip(variants()) {
        let Some(world) = gpus::world(variant.world) else {
            continue;
        };
        let device = Device::gpus(&world, Probes::default(), 0);
        let case = on(&device, &program, &variant, &shapes());
        let fill = Fill::Uniform(number);
        let outcome = case.run(&device, fill);
        drop(world);
        compare(&case, &outcome, fill);
        launches += LAUNCHES.len();
    }
    println!("  {launches} launches right: products of depth 0 between others");
}

/// Bits of a layer whose operands are zeros of that depth, launched, and replayed on another bias, in two rows less than it may
/// have; behind them is NaN.
fn layer(rank: &Communicator, depth: usize) -> Result<[Vec<u16>; 2], Error> {
    const M: usize = 264;
    const N: usize = 272;
    let program = schedules::linear_gelu();
    let builder = rank.op(&program).dtype(Dtype::Bf16);
    let builder = builder.up_to(M, N, depth).set("tiles", (128, 256));
    let op = builder.first_options().build()?;
    let (x, w) = (
        rank.zeros::<bf16>([M, depth])?,
        rank.zeros::<bf16>([N, depth])?,
    );
    let (bias, mut y) = (rank.zeros::<bf16>([N])?, rank.zeros::<bf16>([M, N])?);
    let begin = |from: f32, y: &Tensor<bf16>| {
        let values = (0..N).map(|at| bf16::from_f32(at as f32 / 32.0 - from));
        bias.write(&values.collect::<Vec<_>>())?;
        y.fill(0xff)
    };
    let bits = |y: &Tensor<bf16>| -> Result<Vec<u16>, Error> {
        Ok(y.read()?.into_iter().map(bf16::to_bits).collect())
    };
    begin(3.0, &y)?;
    let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
    let launch = launch.tensor("bias", &bias).tensor("y", &mut y);
    launch.rows(M - 2).launch()?.wait()?;
    let launched = bits(&y)?;
    let graph = rank.capture(|s| {
        let launch = op.on(s).tensor("x", &x).tensor("w", &w);
        let launch = launch.tensor("bias", &bias).tensor("y", &mut y);
        launch.rows(M - 2).launch().map(drop)
    })?;
    begin(5.0, &y)?;
    graph.launch(rank)?.wait()?;
    let all = [launched, bits(&y)?];
    for bits in &all {
        let (rows, behind) = bits.split_at((M - 2) * N);
        assert!(behind.iter().all(|bits| *bits == 0xffff));
        // What is added is not 0.
        assert!(rows.iter().filter(|bits| **bits != 0).count() > rows.len() / 2);
    }
    assert_ne!(all[0], all[1]);
    Ok(all)
}

#[test]
fn an_operation_of_no_depth_is_launched_and_replayed() {
    let Some(world) = gpus::world(1) else {
        return;
    };
    let rank = &world.ranks[0];
    assert_eq!(fine(layer(rank, 0)), fine(layer(rank, 16)));
    println!("  4 launches right: an operation of depth 0, and its graph");
}

#[test]
fn an_emulated_operation_of_no_depth_is_launched_and_replayed() {
    let ranks = fine(Communicator::emulated(1));
    assert_eq!(fine(layer(&ranks[0], 0)), fine(layer(&ranks[0], 16)));
}

/// The schedule's emulator, and emulated ranks, whose operands have addresses and no bytes.
#[test]
fn emulated_sums_of_nothing_are_zero() {
    let all = variants();
    in_parallel(all.len(), |number| {
        if !wide() && number % 7 != 0 {
            return;
        }
        let (program, variant) = &all[number];
        let case = on(&Device::Cpu, program, variant, &shapes());
        let fill = Fill::Uniform(number as u64);
        let emulated = case.run(&Device::Cpu, fill);
        compare(&case, &emulated, fill);
        let ranks = fine(Communicator::emulated(variant.world));
        let each = Communicator::each(&ranks, |rank| case.on_rank(rank, None, fill, 0));
        let mut of_ranks = fine(each).into_iter().flatten();
        assert!(
            of_ranks.all(|output| {
                let same = emulated.output(output.launch, output.rank, output.tensor);
                same == Some(&output)
            }),
            "{} {variant}",
            program.name
        );
    });
}
