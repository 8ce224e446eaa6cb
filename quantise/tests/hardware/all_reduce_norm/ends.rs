//! How all-reduces with a norm end that go wrong, and what is refused.

use super::{ROWS, launches, on_gpu};
use crate::fine;
use counterflow_codegen::dtype::Dtype;
use counterflow_quantise::{AllReduceNorm, Granularity, Recipe, ScaleRule, Scaling};
use counterflow_runtime::{Communicator, Error, QuantTensor};
use float8::F8E4M3;
use half::bf16;

/// The kernel's wait ends, and names the rank and the row. The GPU goes on.
#[test]
#[ignore = "needs UB_TIMEOUT=1 from the start of its process: .ci/hardware runs it so"]
fn a_rank_that_never_launches_is_named() {
    on_gpu([2], |all| {
        let told = Communicator::each(all, |rank| {
            let norm = AllReduceNorm::of(rank).up_to(40, 1000);
            rank.reserve(norm.workspace()?.heap + (2 << 20))?;
            let norm = norm.build()?;
            let all = [(); 3].map(|()| rank.zeros::<bf16>([40, 1000]));
            let [x, mut residual, mut y] = all.map(fine);
            rank.synchronize()?;
            rank.barrier()?;
            if rank.rank() == 1 {
                std::thread::sleep(std::time::Duration::from_secs(5));
                return Ok(String::new());
            }
            let launch = norm.on(rank).x(&x).residual(&mut residual).gamma(&x);
            launch.y(&mut y).launch()?;
            let error = rank.synchronize().expect_err("nobody comes");
            assert_eq!(error.kind(), "stalled", "{error}");
            Ok(error.to_string())
        });
        let told = fine(told);
        for part in [
            "rank 0 waited too long",
            "rows of rank 1",
            "all_reduce_norm",
        ] {
            assert!(told[0].contains(part), "{}", told[0]);
        }
    });
    on_gpu([2], |all| launches(all, 1000, &ROWS, 1));
}

/// What ends the communicator is told to every rank, with the kernel's name.
#[test]
fn ranks_that_launch_other_rows_or_leave_are_told() {
    let told = |rows: [Option<usize>; 2]| {
        let all = fine(Communicator::emulated(2));
        let told = Communicator::each(&all, |rank| {
            rank.reserve(4 << 20)?;
            let norm = AllReduceNorm::of(rank).up_to(4, 64).build()?;
            let all = [(); 3].map(|()| rank.zeros::<bf16>([4, 64]));
            let [x, mut residual, mut y] = all.map(fine);
            rank.barrier()?;
            let Some(rows) = rows[rank.rank() as usize] else {
                return Ok(());
            };
            let launch = norm.on(rank).x(&x).residual(&mut residual).gamma(&x);
            launch.y(&mut y).rows(rows).launch()?;
            rank.synchronize()
        });
        let error = told.expect_err("they differ");
        (error.kind(), error.to_string())
    };
    let (kind, text) = told([Some(4), Some(3)]);
    assert_eq!(kind, "mismatch", "{text}");
    assert!(text.contains("all_reduce_norm"), "{text}");
    let (kind, text) = told([Some(4), None]);
    assert_eq!(kind, "aborted", "{text}");
    assert!(text.contains("rank 1 ended early"), "{text}");
    for (columns, kind, text) in [
        ([64, 72], "mismatch", "4 rows of 72"),
        ([64, 12], "usage", "rows of 12 elements"),
    ] {
        let all = fine(Communicator::emulated(2));
        let told = Communicator::each(&all, |rank| {
            rank.reserve(4 << 20)?;
            let norm = AllReduceNorm::of(rank).up_to(4, columns[rank.rank() as usize]);
            Ok(norm.build().map(drop).expect_err("they differ"))
        });
        for error in fine(told) {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}

/// Each mistake is refused before anything is enqueued, and the launch may be made then.
#[test]
fn mistakes_are_refused_by_name() {
    let rank = &crate::emulated();
    let bf16s = |shape: [usize; 2]| fine(rank.zeros::<bf16>(shape));
    let build = |rows: usize, columns: usize| AllReduceNorm::of(rank).up_to(rows, columns);
    let recipe = |pieces| {
        Recipe::new(
            ScaleRule::deep_gemm(),
            Scaling::Current(pieces),
            Dtype::Bf16,
        )
    };
    let kind = |error: Error| (error.kind(), error.to_string());
    let refused = |built: Result<AllReduceNorm, Error>| kind(built.map(drop).expect_err("refused"));
    let usage = |text: &str| ("usage", text.to_owned());
    assert_eq!(
        refused(AllReduceNorm::of(rank).build()),
        usage("all_reduce_norm without a largest launch")
    );
    for columns in [0, 12] {
        let text = format!("all_reduce_norm of rows of {columns} elements");
        assert_eq!(refused(build(4, columns).build()), usage(&text));
    }
    let blocks = recipe(Granularity::BLOCK_1X128);
    let text = "all_reduce_norm of rows of 24 elements";
    assert_eq!(refused(build(4, 24).quantised(blocks).build()), usage(text));
    assert_eq!(
        refused(build(0, 64).build()),
        usage("all_reduce_norm for up to 0 rows")
    );
    assert_eq!(
        refused(build(4, 64).eps(-1.0).build()),
        usage("all_reduce_norm with an eps of -1")
    );
    assert_eq!(
        refused(build(4, 64).eps(f32::NAN).build()),
        usage("all_reduce_norm with an eps of NaN")
    );
    let text = "all_reduce_norm of rows of 24584 elements: a CTA holds 24576";
    assert_eq!(
        refused(build(4, 24584).build()),
        ("too_large", text.to_owned())
    );
    for recipe in [
        recipe(Granularity::PerTensor),
        recipe(Granularity::BLOCK_128X128),
        blocks.with_transposed(),
        Recipe {
            from: Dtype::F32,
            ..blocks
        },
    ] {
        let text = format!("all_reduce_norm quantised as {recipe}");
        assert_eq!(
            refused(build(4, 64).quantised(recipe).build()),
            usage(&text)
        );
    }

    let norm = fine(build(4, 64).build());
    let (x, gamma, short) = (bf16s([4, 64]), bf16s([1, 64]), bf16s([3, 64]));
    let (mut residual, mut y, mut other) = (bf16s([4, 64]), bf16s([4, 64]), x.clone());
    let mut half = fine(rank.zeros::<half::f16>([4, 64]));
    let codes = fine(rank.zeros::<F8E4M3>([4, 64]));
    let mut quantised = fine(QuantTensor::new(
        codes,
        fine(rank.zeros::<f32>([4, 1])),
        Granularity::PerRow,
    ));
    let mut number = fine(rank.zeros::<f32>([1]));
    macro_rules! told {
        ($launch:expr) => {
            kind($launch.launch().map(drop).expect_err("refused"))
        };
    }
    let all = [
        told!(
            norm.on(rank)
                .residual(&mut residual)
                .gamma(&gamma)
                .y(&mut y)
        ),
        told!(norm.on(rank).x(&x).gamma(&gamma).y(&mut y)),
        told!(norm.on(rank).x(&x).residual(&mut residual).y(&mut y)),
        told!(norm.on(rank).x(&x).residual(&mut residual).gamma(&gamma)),
        told!(
            norm.on(rank)
                .x(&short)
                .residual(&mut residual)
                .gamma(&gamma)
                .y(&mut y)
        ),
        told!(
            norm.on(rank)
                .x(&x)
                .residual(&mut other)
                .gamma(&gamma)
                .y(&mut y)
        ),
        told!(
            norm.on(rank)
                .x(&x)
                .residual(&mut residual)
                .gamma(&gamma)
                .y(&mut half)
        ),
        told!(
            norm.on(rank)
                .x(&x)
                .residual(&mut residual)
                .gamma(&gamma)
                .y(&mut quantised)
        ),
        told!(
            norm.on(rank)
                .x(&x)
                .residual(&mut residual)
                .gamma(&gamma)
                .y(&mut y)
                .rows(5)
        ),
        told!(
            norm.on(rank)
                .x(&x)
                .residual(&mut residual)
                .gamma(&gamma)
                .y(&mut y)
                .amax(&mut number)
        ),
    ];
    let wanted = [
        "all_reduce_norm without x",
        "all_reduce_norm without residual",
        "all_reduce_norm without gamma",
        "all_reduce_norm without y",
        "x has 192 elements",
        "x and residual overlap, and one is written",
        "y has elements of f16",
        "y was given with scales",
        "5 rows of all_reduce_norm",
        "an amax of all_reduce_norm that does not measure it",
    ];
    assert_eq!(all, wanted.map(usage));
    let norm = fine(
        build(4, 64)
            .quantised(recipe(Granularity::BLOCK_1X128))
            .build(),
    );
    let launch = norm.on(rank).x(&x).residual(&mut residual).gamma(&gamma);
    let text = format!(
        "y of all_reduce_norm is given with scales of {}",
        Granularity::PerRow
    );
    assert_eq!(told!(launch.y(&mut quantised)), usage(&text));
    let launch = norm.on(rank).x(&x).residual(&mut residual).gamma(&gamma);
    assert_eq!(
        told!(launch.y(&mut y)),
        usage("y of all_reduce_norm is given without scales")
    );
    let others = fine(Communicator::emulated(1));
    let launch = norm
        .on(&others[0])
        .x(&x)
        .residual(&mut residual)
        .gamma(&gamma);
    assert_eq!(told!(launch.y(&mut quantised)).0, "usage");
}
