//! Classes that ranks divide, against f64: cross-entropy and its gradient; embeddings, exactly.

use super::reference::{Matrix, OF_BF16, OF_F32};
use super::{each, userbuffers};
use counterflow::prelude::bf16;
use counterflow::{Communicator, Error};
use counterflow_layers::side::twin::{self, IGNORED};
use counterflow_layers::side::{EmbeddingKernels, LossKernels};
use counterflow_layers::{VocabParallelCrossEntropy, VocabParallelEmbedding};
use std::sync::Arc;

const ROWS: usize = 7;
const SCALE: f32 = 0.25;

/// A class of a row that no mask drops.
fn target(row: usize, classes: usize) -> usize {
    row * (classes - 9) / ROWS
}

/// Logits over all ranks: usual ones, such as would overflow, a row that is sure of its target, and, of the last 8 classes, masked ones.
fn logits(classes: usize) -> Matrix {
    let mut all = Matrix::random(ROWS, classes, 9.0, 1);
    for (at, value) in all.values.iter_mut().enumerate() {
        match at / classes {
            1 => *value += 3000.0,
            2 => *value -= 3000.0,
            3 => *value *= 30.0,
            // The loss is e⁻⁸ for each other class: as much as some roundings of 1000.
            6 if at % classes == target(6, classes) => *value = 1000.0,
            6 => *value = 992.0,
            _ => {}
        }
        *value = f64::from(bf16::from_f64(*value));
        if at % classes >= classes - 8 {
            *value = f64::NEG_INFINITY;
        }
    }
    all
}

/// A rank's losses and gradient, as bits, held to f64.
fn of_rank(rank: &Arc<Communicator>, columns: usize) -> Result<[Vec<u32>; 2], Error> {
    let (me, world) = (rank.rank() as usize, rank.world() as usize);
    let classes = columns * world;
    let all = logits(classes);
    rank.reserve(VocabParallelCrossEntropy::heap_bytes(ROWS + 2, rank.world()) + (4 << 20))?;
    let cross_entropy = VocabParallelCrossEntropy::new(rank, ROWS + 2)?;
    let mut targets: Vec<u32> = (0..ROWS).map(|row| target(row, classes) as u32).collect();
    (targets[4], targets[5]) = (IGNORED, classes as u32);
    let mut bits = [Vec::new(), Vec::new()];
    // More rows, then fewer: what is left of the first call counts nothing.
    for rows in [ROWS, 3] {
        let given = rank.zeros::<bf16>([rows, columns])?;
        given.write(&all.part(0..rows, me * columns..(me + 1) * columns))?;
        let wanted = rank.zeros::<u32>([rows])?;
        wanted.write(&targets[..rows])?;
        let (mut losses, mut gradient) = (rank.zeros::<f32>([rows])?, rank.zeros([rows, columns])?);
        losses.fill(0xff)?;
        gradient.fill(0xff)?;
        cross_entropy.of(&given, &wanted, SCALE, &mut losses, &mut gradient)?;
        let (losses, gradient) = (losses.read()?, gradient.read()?);
        for row in 0..rows {
            let x = &all.values[row * classes..(row + 1) * classes];
            let (target, own) = (targets[row], &gradient[row * columns..(row + 1) * columns]);
            if target == IGNORED {
                assert!(losses[row] == 0.0 && own.iter().all(|dx| *dx == bf16::ZERO));
                continue;
            }
            if target as usize >= classes {
                assert!(losses[row].is_nan() && own.iter().all(|dx| dx.is_nan()));
                continue;
            }
            let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = x.iter().map(|x| (x - most).exp()).sum();
            let wanted = sum.ln() - (x[target as usize] - most);
            // Each term of the sum is off by a few roundings, and by those of adding; the logarithm and both differences by one, of
            // numbers that are no larger than the loss.
            let of_sum = (classes + 12) as f64 * OF_F32;
            let bound = of_sum + 4.0 * OF_F32 * wanted;
            let far = (f64::from(losses[row]) - wanted).abs();
            assert!(
                far <= bound,
                "row {row}: {} and {wanted} ± {bound}",
                losses[row]
            );
            for (at, dx) in own.iter().enumerate() {
                let at = me * columns + at;
                let part = (x[at] - most).exp() / sum;
                let wanted = f64::from(SCALE) * (part - f64::from(u8::from(at == target as usize)));
                // The difference to the largest is exact, or rounded once before e is raised to it.
                let of_part = part * (of_sum + OF_F32 * (x[at] - most).abs().min(100.0));
                let bound = OF_BF16 * wanted.abs() + of_part + 2.0 * f64::from(f32::MIN_POSITIVE);
                let far = (dx.to_f64() - wanted).abs();
                assert!(
                    far <= bound,
                    "row {row}, class {at}: {dx} and {wanted} ± {bound}"
                );
            }
        }
        bits[0].extend(losses.iter().map(|loss| loss.to_bits()));
        bits[1].extend(gradient.iter().map(|dx| u32::from(dx.to_bits())));
    }
    Ok(bits)
}

#[test]
fn cross_entropy_of_any_number_of_ranks() {
    for (world, columns) in [(1, 24), (2, 16), (3, 8), (4, 104)] {
        let found = each(world, |rank| of_rank(rank, columns));
        let found = found.unwrap_or_else(|error| panic!("{world} ranks: {error}"));
        assert!(
            found.iter().all(|one| one[0] == found[0][0]),
            "losses are the same on every rank"
        );
    }
}

#[test]
fn one_rank_has_the_bits_of_cross_entropy_of_all_classes() {
    let rank = &Arc::new(Communicator::emulated(1).expect("a rank").remove(0));
    let run = || -> Result<(), Error> {
        rank.reserve(4 << 20)?;
        let given = rank.zeros::<bf16>([ROWS, 24])?;
        given.write(&logits(24).part(0..ROWS, 0..24))?;
        let targets = rank.zeros::<u32>([ROWS])?;
        targets.write(&[0, 3, 5, IGNORED, 24, 7, 15])?;
        let mut found = Vec::new();
        for parts in [false, true] {
            let (mut losses, mut gradient) =
                (rank.zeros::<f32>([ROWS])?, rank.zeros(given.shape())?);
            let (to, of) = (&mut losses, &mut gradient);
            match parts {
                false => LossKernels::load(rank)?.cross_entropy(&given, &targets, SCALE, to, of)?,
                true => VocabParallelCrossEntropy::new(rank, ROWS)?
                    .of(&given, &targets, SCALE, to, of)?,
            }
            let losses: Vec<u32> = losses.read()?.into_iter().map(f32::to_bits).collect();
            let gradient: Vec<u16> = gradient.read()?.into_iter().map(bf16::to_bits).collect();
            found.push((losses, gradient));
        }
        assert!(found[0] == found[1]);
        Ok(())
    };
    run().expect("both");
}

#[test]
fn what_cannot_be_is_refused() {
    let done = each(2, |rank| {
        rank.reserve(4 << 20)?;
        let none = VocabParallelCrossEntropy::new(rank, 0)
            .map(drop)
            .expect_err("none");
        assert_eq!(none.to_string(), "cross-entropy of no rows");
        let cross_entropy = VocabParallelCrossEntropy::new(rank, 2)?;
        let mut losses = rank.zeros::<f32>([3])?;
        let mut told = |shape: [usize; 2], targets: usize| {
            let (logits, mut gradient) = (rank.zeros::<bf16>(shape)?, rank.zeros::<bf16>(shape)?);
            let targets = rank.zeros::<u32>([targets])?;
            let error = cross_entropy.of(&logits, &targets, 1.0, &mut losses, &mut gradient);
            Ok::<_, Error>(error.expect_err("refused").to_string())
        };
        assert_eq!(told([3, 8], 3)?, "cross-entropy of 3 rows, made for 2");
        assert_eq!(told([2, 12], 2)?, "rows of 12 elements");
        assert_eq!(told([2, 8], 3)?, "targets is 1 x 3");
        assert_eq!(told([2, 8], 2)?, "losses is 1 x 3");
        rank.barrier()
    });
    done.expect("refusals end nothing");
}

/// No ids change nothing, of the twin or of kernels.
#[test]
fn an_embedding_of_no_ids() {
    twin::embedding(&[], &[bf16::ONE; 16], 0..2, 2, &mut []);
    let mut gradient = [0.5; 16];
    twin::embedding_backward(&[], &[], 0..2, &mut gradient);
    assert_eq!(gradient, [0.5; 16]);

    let rank = &Arc::new(Communicator::emulated(1).expect("a rank").remove(0));
    let run = || -> Result<(), Error> {
        let kernels = EmbeddingKernels::load(rank)?;
        let (ids, weights) = (rank.zeros::<u32>([0])?, rank.zeros::<bf16>([2, 8])?);
        let mut y = rank.zeros::<bf16>([0, 8])?;
        kernels.forward(&ids, &weights, 0..2, 2, &mut y)?;
        let mut gradient = rank.zeros::<f32>([2, 8])?;
        gradient.write(&[0.5; 16])?;
        kernels.backward(&ids, &y, 0..2, &mut gradient)?;
        assert_eq!(gradient.read()?, [0.5; 16]);
        Ok(())
    };
    run().expect("nothing");
}

/// A row is what its rank has, bit for bit, and gradients are sums in f32 in the order of rows.
#[test]
fn embeddings_and_their_gradients_are_exact() {
    const COLUMNS: usize = 24;
    for world in 1..=4 {
        let vocabulary = 12;
        let weight = Matrix::random(vocabulary, COLUMNS, 2.0, 1);
        let done = each(world, |rank| {
            let buffers = userbuffers(rank, [10, COLUMNS], "")?;
            let embedding = VocabParallelEmbedding::new(&buffers, [vocabulary, COLUMNS])?;
            let [own, _] = embedding.weight_shape();
            let first = own * rank.rank() as usize;
            let given = rank.zeros::<bf16>([own, COLUMNS])?;
            given.write(&weight.part(first..first + own, 0..COLUMNS))?;
            let mut gradient = rank.zeros::<f32>([own, COLUMNS])?;
            gradient.write(&vec![0.5; own * COLUMNS])?;
            let mut wanted = vec![0.5f32; own * COLUMNS];
            // Twice the same id, an id of every rank, fewer rows than ranks, and one that nobody has.
            for rows in [10, 7, 1] {
                let ids: Vec<u32> = (0..rows)
                    .map(|row| [0, 11, 5, 0, 3, 12, 8][row % 7])
                    .collect();
                let of_ids = rank.zeros::<u32>([rows])?;
                of_ids.write(&ids)?;
                let shard = rank.shard(rank.rank(), rows);
                let mut y = rank.zeros(embedding.output_shape(rows))?;
                embedding.forward(&of_ids, &given, &mut y)?;
                for (row, found) in shard.clone().zip(y.read()?.chunks(COLUMNS)) {
                    let id = ids[row] as usize;
                    match id < vocabulary {
                        true => assert_eq!(found, weight.part(id..id + 1, 0..COLUMNS), "row {row}"),
                        false => assert!(found.iter().all(|y| y.is_nan()), "row {row}"),
                    }
                }
                let dy = Matrix::random(rows, COLUMNS, 1.0, rows as u64);
                let of_dy = rank.zeros(embedding.output_shape(rows))?;
                of_dy.write(&dy.part(shard, 0..COLUMNS))?;
                embedding.backward(&of_ids, &of_dy, &mut gradient)?;
                for (row, id) in ids.iter().enumerate() {
                    let Some(place) = (*id as usize)
                        .checked_sub(first)
                        .filter(|place| *place < own)
                    else {
                        continue;
                    };
                    for column in 0..COLUMNS {
                        wanted[place * COLUMNS + column] +=
                            dy.values[row * COLUMNS + column] as f32;
                    }
                }
                assert_eq!(gradient.read()?, wanted, "the gradient after {rows} rows");
            }
            let told = VocabParallelEmbedding::new(&buffers, [world as usize * 4 + 1, COLUMNS]);
            let is_refused = told.is_err();
            assert_eq!(is_refused, world > 1);
            rank.barrier()
        });
        done.unwrap_or_else(|error| panic!("{world} ranks: {error}"));
    }
}
