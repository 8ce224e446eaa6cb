//! Codes and scales as one value: mistakes are refused before anything is enqueued, and a refusal says what to do.

use crate::schedules::{self, Sender};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::rule::{Fp8, ScaleRule};
use counterflow_codegen::variant::Scales;
use counterflow_runtime::op::{Granularity, Part, ScaleUse};
use counterflow_runtime::{Communicator, Error, Op, OpBuilder, QuantTensor, Tensor};
use float8::{F8E4M3, F8E5M2};
use half::bf16;

const SIDE: usize = 128;
const K: usize = 256;

fn told<T>(result: Result<T, Error>) -> (String, String) {
    let error = result.map(drop).expect_err("refused");
    assert_eq!(error.kind(), "usage", "{error}");
    (
        error.to_string(),
        error.help().unwrap_or_default().to_owned(),
    )
}

fn product(
    rank: &Communicator,
    change: impl FnOnce(OpBuilder<'_>) -> OpBuilder<'_>,
) -> Result<Op, Error> {
    let program = schedules::product((128, 128));
    let builder = rank.op(&program).up_to(SIDE, SIDE, K);
    change(builder).build()
}

/// Codes of ones with scales of that granularity.
fn ones(rank: &Communicator, granularity: Granularity) -> Result<QuantTensor, Error> {
    let codes = rank.zeros::<F8E4M3>([SIDE, K])?;
    codes.fill(F8E4M3::ONE.to_bits())?;
    let scales = rank.zeros::<f32>(granularity.scales([SIDE, K]))?;
    scales.write(&vec![0.5; scales.len()])?;
    QuantTensor::new(codes, scales, granularity)
}

#[test]
fn an_operand_has_the_scales_that_its_op_reads() -> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    let all = [
        (Scales::PerTensor, [Granularity::PerTensor; 2]),
        (Scales::PerRow, [Granularity::PerRow; 2]),
        (
            Scales::Blocks1d2d,
            [Granularity::BLOCK_1X128, Granularity::BLOCK_128X128],
        ),
        (
            Scales::Blocks2d1d,
            [Granularity::BLOCK_128X128, Granularity::BLOCK_1X128],
        ),
        (Scales::Blocks1d1d, [Granularity::BLOCK_1X128; 2]),
    ];
    let kinds = [
        Granularity::PerTensor,
        Granularity::PerRow,
        Granularity::BLOCK_1X128,
        Granularity::BLOCK_128X128,
    ];
    for (scales, wanted) in all {
        let op = product(rank, |op| op.dtype(Dtype::E4M3).scales(scales))?;
        let needs = [op.needs("x")?, op.needs("w")?];
        for (needs, granularity) in needs.iter().zip(wanted) {
            assert_eq!(needs.scale_use(), Some(ScaleUse::Dequantises(granularity)));
            let shape = needs.scale.as_ref().expect("scales").shape;
            assert_eq!(shape, granularity.scales(needs.shape), "{granularity}");
        }
        for x_has in kinds {
            for w_has in kinds {
                let (x, w) = (ones(rank, x_has)?, ones(rank, w_has)?);
                let mut y = rank.zeros::<bf16>([SIDE, SIDE])?;
                let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
                let launched = launch.tensor("y", &mut y).launch();
                if [x_has, w_has] == wanted {
                    launched?.wait()?;
                    assert_eq!(
                        y.read()?,
                        vec![bf16::from_f32(0.25 * K as f32); SIDE * SIDE]
                    );
                    continue;
                }
                let (what, help) = told(launched);
                let (name, has, reads) = match x_has == wanted[0] {
                    true => ("w", w_has, wanted[1]),
                    false => ("x", x_has, wanted[0]),
                };
                assert_eq!(
                    what,
                    format!(
                        "{name} was given with scales of {has}, and this op has scales of {reads}"
                    )
                );
                assert!(help.contains("`OpBuilder::scales`"), "{help}");
                assert_eq!(y.read()?, vec![bf16::ZERO; SIDE * SIDE], "nothing ran");
            }
        }
    }
    Ok(())
}

#[test]
fn scales_and_amaxes_that_are_absent_or_surplus_are_refused() -> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    let quantised = ones(rank, Granularity::PerTensor)?;
    let number = || rank.zeros::<f32>([1]);
    let with_scales = product(rank, |op| op.dtype(Dtype::E4M3).scales(Scales::PerTensor))?;
    let without = product(rank, |op| op.dtype(Dtype::E4M3))?;
    let cases = [
        (
            told(with_scales.on(rank).tensor("x", quantised.codes()).launch()),
            "x was given without its scales",
            "give a `QuantTensor` with scales of the whole tensor: `needs(\"x\")`",
        ),
        (
            told(without.on(rank).tensor("x", &quantised).launch()),
            "x was given with scales of the whole tensor, and this op has no scales there",
            "build the op with `scales`, or give the codes alone",
        ),
        (
            told(with_scales.on(rank).tensor("x.scale", &number()?).launch()),
            "`x.scale` is no tensor of its own",
            "give `x` as a `QuantTensor`, which has its codes, scales and amax",
        ),
        (
            told(with_scales.needs("x.scale")),
            "`x.scale` is no tensor of its own",
            "give `x` as a `QuantTensor`",
        ),
    ];
    for ((what, help), wanted, to_do) in cases {
        assert_eq!(what, wanted);
        assert!(help.starts_with(to_do), "{help}");
    }
    // What multiplies results is not what multiplies codes.
    let output = |amax: Option<Tensor<f32>>| -> Result<QuantTensor, Error> {
        let y = QuantTensor::output(rank.zeros::<F8E4M3>([SIDE, SIDE])?, number()?)?;
        match amax {
            Some(amax) => y.with_amax(amax),
            None => Ok(y),
        }
    };
    let (what, help) = told(with_scales.on(rank).tensor("x", &output(None)?).launch());
    assert_eq!(
        what,
        "x was given with a number by which results are multiplied, and this op has scales of the whole tensor"
    );
    assert!(help.contains("`QuantTensor::new("), "{help}");
    let narrow = product(rank, |op| op.output(Dtype::E4M3))?;
    let measured = product(rank, |op| op.output(Dtype::E4M3).amax())?;
    let made = ScaleRule::transformer_engine(Fp8::E4M3);
    let made = product(rank, |op| op.output_scales(made))?;
    let mut wrong = ones(rank, Granularity::PerTensor)?;
    let (what, help) = told(narrow.on(rank).tensor("y", &mut wrong).launch());
    assert_eq!(
        what,
        "y was given with scales of the whole tensor, and this op has a number by which results are multiplied"
    );
    assert!(help.starts_with("`QuantTensor::output("), "{help}");
    let (what, _) = told(measured.on(rank).tensor("y", &mut output(None)?).launch());
    assert_eq!(what, "y was given without its amax, which this op measures");
    let mut surplus = output(Some(number()?))?;
    let (what, _) = told(narrow.on(rank).tensor("y", &mut surplus).launch());
    assert_eq!(what, "y was given with an amax, and this op measures none");
    let (what, _) = told(made.on(rank).tensor("y", &mut output(None)?).launch());
    assert_eq!(
        what,
        "y was given with a number by which results are multiplied, and this op has scales of 1×128"
    );
    assert!(measured.needs("y")?.amax && !narrow.needs("y")?.amax);
    assert_eq!(narrow.needs("y")?.scale_use(), Some(ScaleUse::Quantises));

    // An output is written, and so are its computed scales.
    let y = QuantTensor::zeros::<F8E4M3>(rank, &made.needs("y")?)?;
    let (x, w) = (
        rank.zeros::<bf16>([SIDE, K])?,
        rank.zeros::<bf16>([SIDE, K])?,
    );
    let launch = made.on(rank).tensor("x", &x).tensor("w", &w);
    let (what, _) = told(launch.tensor("y", &y).launch());
    assert!(
        what.starts_with("y is an output and was given by a shared"),
        "{what}"
    );
    Ok(())
}

#[test]
fn two_parts_that_do_not_belong_together_are_no_value() -> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    let codes = rank.zeros::<F8E4M3>([130, 300])?;
    type Shapes = &'static [[usize; 2]];
    let cases: [(Granularity, Shapes, Shapes); 4] = [
        (Granularity::PerTensor, &[[1, 1]], &[[1, 2], [130, 1]]),
        (
            Granularity::PerRow,
            &[[130, 1], [200, 1]],
            &[[1, 130], [129, 1]],
        ),
        // Of gathered shards, too: three lines of each. Swapped, too few, and rows that no line has.
        (
            Granularity::BLOCK_1X128,
            &[[3, 132], [6, 68], [4, 132]],
            &[[132, 3], [2, 132], [3, 131], [3, 128], [6, 64]],
        ),
        (
            Granularity::BLOCK_128X128,
            &[[2, 4], [3, 4]],
            &[[2, 3], [1, 4], [4, 2]],
        ),
    ];
    for (granularity, right, wrong) in cases {
        let new = |shape: &[usize; 2]| {
            let scales = rank.zeros::<f32>(shape)?;
            QuantTensor::new(codes.clone(), scales, granularity)
        };
        for shape in right {
            assert_eq!(new(shape)?.granularity(), granularity);
        }
        for shape in wrong {
            let (what, help) = told(new(shape));
            let [rows, columns] = shape;
            assert_eq!(
                what,
                format!("{rows} x {columns} scales of {granularity} for 130 x 300 codes")
            );
            let [rows, columns] = granularity.scales([130, 300]);
            assert!(
                help.starts_with(&format!("give {rows} x {columns}")),
                "{help}"
            );
        }
    }
    let (what, _) = told(QuantTensor::output(codes.clone(), rank.zeros::<f32>([2])?));
    assert_eq!(what, "1 x 2 scales of the whole tensor for 130 x 300 codes");
    let y = QuantTensor::output(codes.clone(), rank.zeros::<f32>([1])?)?;
    let (what, _) = told(y.with_amax(rank.zeros::<f32>([2])?));
    assert_eq!(what, "an amax of 2 numbers");

    // Rows whose scales are no rectangle of their own.
    let scales = rank.zeros::<f32>([6, 68])?;
    let x = QuantTensor::new(codes.clone(), scales, Granularity::BLOCK_1X128)?;
    assert_eq!(x.rows(68..130)?.scales().shape(), [3, 68]);
    assert_eq!(x.rows(130..130)?.scales().shape(), [3, 0]);
    let (what, help) = told(x.rows(4..8));
    assert_eq!(what, "rows 4..8, whose scales begin within those of others");
    assert!(help.contains("a multiple of 68 rows"), "{help}");
    // A rank that has fewer rows in a launch; more rows than a line has.
    assert_eq!(x.rows(68..100)?.scales().shape(), [3, 68]);
    let scales = rank.zeros::<f32>([3, 132])?;
    let plane = QuantTensor::new(codes.clone(), scales, Granularity::BLOCK_1X128)?;
    assert_eq!(plane.rows(0..130)?.scales().shape(), [3, 132]);
    // A launch of 129 rows has the same lines.
    assert_eq!(plane.rows(0..129)?.scales().shape(), [3, 132]);
    // A quantiser would zero the scales of the plane's other rows.
    for (of, rows, line) in [(&x, 0..130, 68), (&plane, 0..64, 132)] {
        let (what, help) = told(of.rows(rows.clone()));
        assert_eq!(
            what,
            format!("rows {rows:?}, whose scales lie in lines of {line} rows")
        );
        assert!(help.starts_with("give all rows of a shard"), "{help}");
    }
    let scales = rank.zeros::<f32>([2, 4])?;
    let x = QuantTensor::new(codes, scales, Granularity::BLOCK_128X128)?;
    assert_eq!(x.rows(128..130)?.scales().shape(), [1, 4]);
    let (_, help) = told(x.rows(64..130));
    assert!(help.contains("a multiple of 128 rows"), "{help}");

    // A kernel of the program's own takes parts.
    let step = rank.step(rank).part(Part::of::<F8E4M3>(16).read("x"), &x);
    #[allow(unsafe_code, reason = "nothing is enqueued")]
    // SAFETY: no kernel is launched.
    let (what, _) = told(unsafe { step.launch(|_| Ok(())) });
    assert_eq!(what, "x was given with scales");
    Ok(())
}

#[test]
fn memory_for_an_op_is_of_its_type_and_place() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        rank.reserve(4 << 20)?;
        let program = schedules::gather(Sender::Ctas(4));
        let op = rank.op(&program).dtype(Dtype::E4M3).scales(Scales::PerRow);
        let op = op.first_options().up_to(64, 64, K).build()?;
        let (what, help) = told(QuantTensor::zeros::<F8E4M3>(rank, &op.needs("x")?));
        assert_eq!(what, "memory of one rank for a tensor that peers address");
        assert!(help.contains("`QuantTensor::allocate`"), "{help}");
        let (what, _) = told(QuantTensor::zeros::<F8E5M2>(rank, &op.needs("w")?));
        assert_eq!(what, "codes of e5m2 for a tensor of e4m3");
        let (what, _) = told(QuantTensor::zeros::<F8E4M3>(rank, &op.needs("y")?));
        assert_eq!(what, "scales for a tensor that has none in this op");
        // Scales that travel are in the heap, as their codes are.
        let codes = rank.allocate::<F8E4M3>("codes", [64, K])?;
        let here = QuantTensor::new(codes, rank.zeros::<f32>([64, 1])?, Granularity::PerRow)?;
        let w = QuantTensor::zeros::<F8E4M3>(rank, &op.needs("w")?)?;
        let mut y = rank.zeros::<bf16>([64, 64])?;
        let launch = op.on(rank).tensor("x", &here).tensor("w", &w);
        let (what, _) = told(launch.tensor("y", &mut y).launch());
        assert_eq!(what, "the scale tensor of x is not in the symmetric heap");
        rank.barrier()
    })
    .map(drop)
}
