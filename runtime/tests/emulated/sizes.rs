//! Launches that state their depth, columns and rows beside their product: one op for each number of tokens.

use crate::schedules::{product, scatter};
use counterflow_codegen::builder::{GemmOptions, ScheduleBuilder, me, ranks, tune};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Layout;
use counterflow_runtime::op::Sizes;
use counterflow_runtime::{Communicator, Error, Op};
use half::bf16;

/// Rows and columns of a gradient, and the most tokens.
const M: usize = 96;
const N: usize = 40;
const MOST: usize = 250;
/// Twenty of them, beside steps of 64 and at their edges.
const TOKENS: [usize; 20] = [
    250, 1, 2, 7, 8, 15, 16, 31, 63, 64, 65, 100, 127, 128, 129, 191, 192, 193, 249, 250,
];

/// A small number of that tensor of a rank: sums of products stay exact in bf16.
fn number(tensor: usize, rank: u32, token: usize, column: usize) -> f64 {
    let mixed = (token * 131 + column * 37 + tensor * 101 + rank as usize * 53) % 29;
    [1.0, -1.0].get(mixed).copied().unwrap_or(0.0)
}

/// A rank's operand [tokens, columns] for so many tokens: what is beyond them is not to be read.
fn operand(tensor: usize, rank: u32, tokens: usize, columns: usize) -> Vec<bf16> {
    let value = |at: usize| match at / columns < tokens {
        true => number(tensor, rank, at / columns, at % columns),
        false => f64::NAN,
    };
    (0..MOST * columns)
        .map(|at| bf16::from_f64(value(at)))
        .collect()
}

/// The operand whose columns the ranks divide: each rank's columns of all tokens, one after another.
fn divided(rank: u32, world: u32, tokens: usize) -> Vec<bf16> {
    let shard = M / world as usize;
    let value = |at: usize| {
        let (line, column) = (at / shard, at % shard);
        let owner = line / tokens;
        match owner < world as usize {
            true => number(0, rank, line % tokens, owner * shard + column),
            false => f64::NAN,
        }
    };
    (0..MOST * M).map(|at| bf16::from_f64(value(at))).collect()
}

/// The gradient's element, of all ranks' tokens.
fn gradient(world: u32, tokens: usize, row: usize, column: usize) -> f64 {
    let of = |rank: u32| {
        let products =
            (0..tokens).map(move |t| number(0, rank, t, row) * number(1, rank, t, column));
        products.sum::<f64>()
    };
    (0..world).map(of).sum()
}

/// A weight's gradient, whose depth is the tokens, added up by the ranks that own its rows.
fn wgrad(rank: &Communicator, program: &Program, buckets: &[usize]) -> Result<Op, Error> {
    let builder = rank.op(program).layout(Layout::Tn).up_to(M, N, MOST);
    builder.buckets(buckets.iter().copied()).build()
}

#[test]
fn one_op_has_the_gradients_of_every_number_of_tokens() -> Result<(), Error> {
    let wide = crate::wide::wide();
    // The largest world has the buckets.
    let skipped = if wide { 0 } else { 2 };
    let worlds = [(1, &[][..]), (2, &[][..]), (3, &[48][..])];
    for (world, buckets) in worlds.into_iter().skip(skipped) {
        let ranks = Communicator::emulated(world)?;
        let program = scatter("gradient");
        Communicator::each(&ranks, |rank| {
            rank.reserve(4 << 20)?;
            let op = wgrad(rank, &program, buckets)?;
            let shard = M / world as usize;
            let (dy, x) = (
                rank.zeros::<bf16>([MOST * world as usize, shard])?,
                rank.zeros::<bf16>([MOST, N])?,
            );
            let mut grad = rank.allocate::<bf16>("grad", [shard, N])?;
            let needs = op.needs_at("x", Sizes::default().depth(100))?;
            assert_eq!(needs.shape, [100 * world as usize, shard]);
            for tokens in TOKENS {
                dy.write(&divided(rank.rank(), world, tokens))?;
                x.write(&operand(1, rank.rank(), tokens, N))?;
                grad.fill(0xff)?;
                rank.synchronize()?;
                rank.barrier()?;
                let launch = op.on(rank).tensor("x", &dy).tensor("w", &x);
                launch
                    .tensor("y", &mut grad)
                    .depth(tokens)
                    .launch()?
                    .wait()?;
                let first = shard * rank.rank() as usize;
                for (at, value) in grad.read()?.iter().enumerate() {
                    let (row, column) = (first + at / N, at % N);
                    let wanted = gradient(world, tokens, row, column);
                    assert_eq!(value.to_f64(), wanted, "{tokens} tokens: {row}, {column}");
                }
                rank.barrier()?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_graph_keeps_the_depth_of_each_of_its_launches() -> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    rank.reserve(4 << 20)?;
    let program = scatter("gradient");
    let op = wgrad(rank, &program, &[])?;
    let (dy, x) = (
        rank.zeros::<bf16>([MOST, M])?,
        rank.zeros::<bf16>([MOST, N])?,
    );
    dy.write(&divided(0, 1, MOST))?;
    x.write(&operand(1, 0, MOST, N))?;
    let mut grads = Vec::new();
    for _ in 0..3 {
        grads.push(rank.allocate::<bf16>("grad", [M, N])?);
    }
    let tokens = [65, 8, 200];
    let graph = rank.capture(|s| {
        for (tokens, grad) in tokens.into_iter().zip(&mut grads) {
            let launch = op.on(s).tensor("x", &dy).tensor("w", &x);
            launch.tensor("y", grad).depth(tokens).launch()?;
        }
        Ok(())
    })?;
    for _ in 0..2 {
        grads.iter().try_for_each(|grad| grad.fill(0xff))?;
        graph.launch(rank)?.wait()?;
        for (tokens, grad) in tokens.into_iter().zip(&grads) {
            for (at, value) in grad.read()?.iter().enumerate() {
                assert_eq!(
                    value.to_f64(),
                    gradient(1, tokens, at / N, at % N),
                    "{tokens}: {at}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn ranks_that_state_other_depths_are_told() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    let program = scatter("gradient");
    let told = Communicator::each(&ranks, |rank| {
        rank.reserve(4 << 20)?;
        let op = wgrad(rank, &program, &[])?;
        let (dy, x) = (
            rank.zeros::<bf16>([2 * MOST, M / 2])?,
            rank.zeros::<bf16>([MOST, N])?,
        );
        let mut grad = rank.allocate::<bf16>("grad", [M / 2, N])?;
        let launch = op
            .on(rank)
            .tensor("x", &dy)
            .tensor("w", &x)
            .tensor("y", &mut grad);
        let tokens = [100, 101][rank.rank() as usize];
        let launched = launch.depth(tokens).launch().and_then(|done| done.wait());
        let error = launched.expect_err("they differ");
        Ok((error.kind().to_owned(), error.to_string()))
    })?;
    for (kind, text) in told {
        assert_eq!(kind, "mismatch", "{text}");
        let plans: Vec<&str> = (text.split("plan ").skip(1))
            .filter_map(|plan| plan.split(' ').next())
            .collect();
        assert!(plans.len() > 1 && plans[0] != plans[1], "{text}");
    }
    Ok(())
}

/// The first columns of a product, of as many of the first rows of `w`.
#[test]
fn launches_have_columns_of_their_own() -> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    let program = product((64, 64));
    let op = rank.op(&program).up_to(24, 200, 64).build()?;
    let (x, w) = (
        rank.zeros::<bf16>([24, 64])?,
        rank.zeros::<bf16>([200, 64])?,
    );
    let value = |row: usize, k: usize| f64::from((row * 7 + k) as u32 % 5) - 2.0;
    let fill = |rows: usize| {
        (0..rows * 64)
            .map(|at| bf16::from_f64(value(at / 64, at % 64)))
            .collect::<Vec<_>>()
    };
    x.write(&fill(24))?;
    w.write(&fill(200))?;
    for columns in [200, 8, 64, 72, 136] {
        let mut y = rank.zeros::<bf16>([24, columns])?;
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        launch
            .tensor("y", &mut y)
            .columns(columns)
            .launch()?
            .wait()?;
        for (at, got) in y.read()?.iter().enumerate() {
            let (row, column) = (at / columns, at % columns);
            let products = (0..64).map(|k| value(row, k) * value(column, k));
            assert_eq!(
                *got,
                bf16::from_f64(products.sum()),
                "{columns} columns: {row}, {column}"
            );
        }
    }
    Ok(())
}

#[test]
fn what_an_op_was_not_built_for_is_refused_with_what_to_do() -> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    rank.reserve(4 << 20)?;
    let program = scatter("gradient");
    // Tiles of 128 columns: two columns of counter cells.
    let op = rank.op(&program).up_to(M, 136, 64).build()?;
    let refused = |sizes: Sizes| {
        let error = op.needs_at("y", sizes).expect_err("refused");
        assert_eq!(error.kind(), "rejected");
        error.to_string()
    };
    assert!(
        op.needs_at("y", Sizes::default().columns(144)).is_err(),
        "beyond the most"
    );
    assert!(
        op.needs_at("y", Sizes::default().columns(130)).is_err(),
        "no row of 16 bytes"
    );
    assert!(op.needs_at("x", Sizes::default().depth(56)).is_ok());
    let moves = refused(Sizes::default().columns(128));
    assert!(
        moves.contains("every column of `tiles` has counter cells, which would move"),
        "{moves}"
    );
    let deep = refused(Sizes::default().depth(72));
    assert!(deep.contains("k is 72 in a series of up to 64"), "{deep}");
    let odd = refused(Sizes::default().depth(60));
    assert!(odd.contains("it must be a multiple of 16 bytes"), "{odd}");
    let beyond = refused(Sizes::default().rows(usize::MAX));
    assert!(beyond.contains("4294967295"), "{beyond}");
    Ok(())
}

/// y = x · wᵀ in f32, whose K some CTAs may split.
fn split() -> Program {
    let mut s = ScheduleBuilder::new("split");
    let (x, w) = (s.local("x", Dtype::Bf16), s.local("w", Dtype::Bf16));
    let y = s.out("y", Dtype::F32);
    let tiles = s.tiles("tiles", y, (128, 128));
    let options = GemmOptions {
        split: Some(tune([1u32, 2])),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

#[test]
fn buckets_of_one_class_give_a_row_the_same_bits() -> Result<(), Error> {
    const ROWS: usize = 65;
    const COLUMNS: usize = 256;
    const DEPTH: usize = 4096;
    let rank = &Communicator::emulated(1)?[0];
    let program = split();
    let mixed = |at: usize| ((at * 2_654_435_761) >> 7) % 509;
    let fill = |count: usize| {
        (0..count)
            .map(|at| bf16::from_f64(mixed(at) as f64 / 254.0 - 1.0))
            .collect::<Vec<_>>()
    };
    let (x, w) = (
        rank.zeros::<bf16>([ROWS, DEPTH])?,
        rank.zeros::<bf16>([COLUMNS, DEPTH])?,
    );
    x.write(&fill(ROWS * DEPTH))?;
    w.write(&fill(COLUMNS * DEPTH))?;
    for invariant in [false, true] {
        let builder = rank
            .op(&program)
            .up_to(16384, COLUMNS, DEPTH)
            .buckets([ROWS - 1]);
        let op = match invariant {
            true => builder.batch_invariant(),
            false => builder,
        }
        .build()?;
        let split = |rows| op.variant_of(rows).choices.get("gemm.split").copied();
        // Few tiles are split over more CTAs.
        assert_eq!(
            split(ROWS - 1) == split(ROWS),
            invariant,
            "{:?}",
            [split(ROWS - 1), split(ROWS)]
        );
        let mut bits = Vec::new();
        for rows in [ROWS - 1, ROWS] {
            let mut y = rank.zeros::<f32>([rows, COLUMNS])?;
            let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
            launch.tensor("y", &mut y).rows(rows).launch()?.wait()?;
            let values = y.read()?;
            bits.push(
                values[..(ROWS - 1) * COLUMNS]
                    .iter()
                    .map(|value| value.to_bits())
                    .collect::<Vec<_>>(),
            );
        }
        assert_eq!(bits[0] == bits[1], invariant);
    }
    Ok(())
}

/// y = x · wᵀ beside z = all_gather(z).
fn beside() -> Program {
    let mut s = ScheduleBuilder::new("beside");
    let (x, w) = (s.local("x", Dtype::Bf16), s.local("w", Dtype::Bf16));
    let (y, z) = (s.out("y", Dtype::Bf16), s.gathered("z", Dtype::Bf16));
    let chunks = s.chunks("chunks", z, 64);
    let tiles = s.tiles("tiles", y, (64, 64));
    let arrived = s.counters("arrived", [chunks.into()]);
    s.comm(2, |s| {
        s.for_ranks("peer", ranks().before_me(), |s, peer| {
            s.for_items("c", chunks.of(me()), |s, c| {
                s.copy(z.on(&peer).at(c), z.at(c));
                s.signal(arrived.on(&peer).at(c), 1);
            });
        });
        s.for_ranks("shard", ranks().after_me(), |s, shard| {
            s.for_items("c", chunks.of(&shard), |s, c| s.wait(arrived.at(c)));
        });
    });
    s.gemm(GemmOptions::default(), |s| {
        s.for_items("t", tiles.all(), |s, t| {
            let acc = s.dot(x.at(t), w.at(t));
            s.store(y.at(t), acc);
        });
    });
    s.finish()
}

/// Rows of `z` at most, and their columns.
const MOVED: [usize; 2] = [390, 16];

/// An op of 40 by 64 by 32 beside those.
fn built_beside(rank: &Communicator) -> Result<Op, Error> {
    rank.reserve(4 << 20)?;
    let [rows, columns] = MOVED.map(|size| size as u32);
    let shape = Shape::new(40, 64, 32);
    let shape = shape.dim("z.rows", rows).dim("z.columns", columns);
    let program = beside();
    rank.op(&program).shape(shape).build()
}

#[test]
fn one_op_moves_every_number_of_rows_beside_its_product() -> Result<(), Error> {
    let ranks = Communicator::emulated(3)?;
    Communicator::each(&ranks, |rank| {
        let op = built_beside(rank)?;
        let before = rank.modules_loaded();
        let [most, columns] = MOVED;
        let (x, w) = (rank.zeros::<bf16>([40, 32])?, rank.zeros::<bf16>([64, 32])?);
        x.write(&[bf16::ONE; 40 * 32])?;
        w.write(&[bf16::ONE; 64 * 32])?;
        let all = rank.allocate::<bf16>("z", [most, columns])?;
        for (rows, depth) in [(most, 32), (1, 32), (7, 16), (64, 32), (193, 8), (most, 32)] {
            let sizes = Sizes::default().beside(rows);
            let shape = op.needs_at("z", sizes)?.shape;
            assert_eq!(shape, [rows.next_multiple_of(3), columns]);
            let z = all.shaped(shape)?;
            z.fill(0xff)?;
            let own = rank.shard(rank.rank(), rows);
            let value = |at: usize| bf16::from_f64((at % 251) as f64);
            if !own.is_empty() {
                let values = own.start * columns..own.end * columns;
                z.rows(own.clone())?
                    .write(&Vec::from_iter(values.map(value)))?;
            }
            let mut y = rank.zeros::<bf16>([40, 64])?;
            rank.synchronize()?;
            rank.barrier()?;
            let (x, w) = (x.shaped([40, depth])?, w.shaped([64, depth])?);
            let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
            let launch = launch.tensor("y", &mut y).tensor("z", &z);
            launch.depth(depth).beside(rows).launch()?.wait()?;
            let wanted: Vec<bf16> = (0..rows * columns).map(value).collect();
            assert_eq!(z.rows(0..rows)?.read()?, wanted, "{rows} rows");
            assert_eq!(y.read()?, [bf16::from_f64(depth as f64); 40 * 64]);
            rank.barrier()?;
        }
        assert_eq!(rank.modules_loaded(), before);
        let refused = |sizes: Sizes| op.needs_at("z", sizes).expect_err("refused").to_string();
        let beyond = refused(Sizes::default().beside(most + 1));
        assert!(beyond.contains("z.rows is 391"), "{beyond}");
        Ok(())
    })
    .map(drop)
}

#[test]
fn ranks_that_state_other_rows_beside_a_product_are_told() -> Result<(), Error> {
    let ranks = Communicator::emulated(2)?;
    let told = Communicator::each(&ranks, |rank| {
        let op = built_beside(rank)?;
        let (x, w) = (rank.zeros::<bf16>([40, 32])?, rank.zeros::<bf16>([64, 32])?);
        let (z, mut y) = (
            rank.allocate::<bf16>("z", MOVED)?,
            rank.zeros::<bf16>([40, 64])?,
        );
        let rows = [100, 99][rank.rank() as usize];
        let z = z.shaped([100, MOVED[1]])?;
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        let launch = launch.tensor("y", &mut y).tensor("z", &z);
        let launched = launch.beside(rows).launch().and_then(|done| done.wait());
        Ok(launched.expect_err("they differ").kind().to_owned())
    })?;
    assert_eq!(told, ["mismatch"; 2]);
    Ok(())
}

#[test]
fn rows_beside_a_product_that_has_none_are_refused() -> Result<(), Error> {
    let rank = &Communicator::emulated(1)?[0];
    let op = rank.op(&product((64, 64))).up_to(24, 64, 64).build()?;
    let refused = op.needs_at("y", Sizes::default().beside(8));
    let error = refused.expect_err("nothing moves");
    assert_eq!(error.kind(), "usage");
    assert!(
        error
            .to_string()
            .contains("rows beside the product of product"),
        "{error}"
    );
    Ok(())
}
