//! What users of TransformerEngine's overlap met: a bias of each rank, gradients in another order, roundings too many.

use super::cases::{NONE, USUAL};
use super::one::{Held, linear};
use super::reference::Matrix;
use super::{each, userbuffers};
use counterflow_layers::LinearConfig;
use counterflow_layers::overlap::Parallel;

#[test]
fn a_bias_is_added_once() {
    let ways = [
        ("", NONE),
        ("", USUAL),
        ("fc2_fprop: {method: ring_exchange}", USUAL),
        ("fc2_fprop: {method: auto}", USUAL),
    ];
    for world in [1, 2, 3] {
        for (config, flags) in ways {
            let done = each(world, |rank| {
                let buffers = userbuffers(rank, [9, 16], config)?;
                let config = LinearConfig {
                    bias: true,
                    ..linear(Parallel::Row, [48, 16], flags)
                };
                let (weight, bias) = (
                    Matrix::random(16, 48, 1.0, 1),
                    Matrix::random(1, 16, 3.0, 2),
                );
                let held = Held::new(&buffers, &config, &weight, Some(&bias))?;
                let nothing = Matrix {
                    columns: 48,
                    values: vec![0.0; 9 * 48],
                };
                let (y, _) = held.forward(rank, &nothing)?;
                let wanted = bias.part(0..1, 0..16).repeat(y.shape()[0]);
                assert_eq!(y.read()?, wanted, "exactly");
                Ok(())
            });
            done.unwrap_or_else(|error| panic!("{world} ranks, {config}: {error}"));
        }
    }
}

#[test]
fn gradients_in_another_order() {
    let done = each(3, |rank| {
        let buffers = userbuffers(rank, [14, 24], "")?;
        let weights = [
            Matrix::random(48, 24, 1.0, 1),
            Matrix::random(24, 48, 1.0, 2),
        ];
        let of = |at: usize, parallel, features| {
            Held::new(
                &buffers,
                &linear(parallel, features, USUAL),
                &weights[at],
                None,
            )
        };
        let mut all = [
            of(0, Parallel::Column, [24, 48])?,
            of(1, Parallel::Row, [48, 24])?,
            of(0, Parallel::Column, [24, 48])?,
        ];
        let mut found = Vec::new();
        for order in [[2, 1, 0], [0, 1, 2], [1, 2, 0]] {
            let mut saved = Vec::new();
            for (at, held) in all.iter().enumerate() {
                let columns = held.layer.config().in_features;
                held.of_weight.fill(0)?;
                let rows = 14 - 3 * at;
                saved.push(Some(held.forward(
                    rank,
                    &Matrix::random(rows, columns, 1.0, 5 + at as u64),
                )?));
            }
            let mut gradients = vec![Vec::new(); 3];
            for at in order {
                let held = &mut all[at];
                let columns = held.layer.config().out_features;
                let dy = Matrix::random(14 - 3 * at, columns, 1.0, 15 + at as u64);
                let (_, saved) = saved[at].take().expect("once");
                let dx = held.backward(rank, saved, &dy)?;
                gradients[at].extend(dx.read()?.into_iter().map(|dx| u32::from(dx.to_bits())));
                gradients[at].extend(held.of_weight.read()?.into_iter().map(f32::to_bits));
            }
            found.push(gradients);
        }
        assert!(found[0] == found[1] && found[0] == found[2], "other bits");
        Ok(())
    });
    done.expect("three ranks");
}

/// One column of the other operand is 1 in one row, so that a weight's gradient is a row of what was gathered.
#[test]
fn what_is_gathered_is_not_rounded() {
    let done = each(3, |rank| {
        let buffers = userbuffers(rank, [24, 24], "")?;
        let ones = |columns: usize| Matrix {
            columns,
            values: (0..24 * columns)
                .map(|at| f64::from(u8::from(at % columns == at / columns)))
                .collect(),
        };
        for (parallel, features) in [(Parallel::Column, [24, 24]), (Parallel::Row, [24, 24])] {
            let weight = Matrix::random(24, 24, 1.0, 1);
            let mut held = Held::new(&buffers, &linear(parallel, features, USUAL), &weight, None)?;
            // Of many sizes: no type with fewer digits has them.
            let mut given = Matrix::random(24, 24, 1.0, 2);
            for (at, value) in given.values.iter_mut().enumerate() {
                *value *= f64::powi(2.0, at as i32 % 60 - 30);
            }
            let (x, dy) = match parallel {
                Parallel::Column => (given.clone(), ones(24)),
                Parallel::Row => (ones(24), given.clone()),
            };
            let (_, saved) = held.forward(rank, &x)?;
            held.backward(rank, saved, &dy)?;
            let [rows, columns] = held.weight.shape();
            let first = 8 * rank.rank() as usize;
            let found = held.of_weight.read()?;
            for (row, column) in
                (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)))
            {
                let wanted = match parallel {
                    Parallel::Column => given.values[(first + row) * 24 + column],
                    Parallel::Row => given.values[(first + column) * 24 + row],
                };
                assert_eq!(
                    f64::from(found[row * columns + column]),
                    wanted,
                    "{parallel} {row} {column}"
                );
            }
        }
        Ok(())
    });
    done.expect("three ranks");
}

/// 256 + 1 is 256 in bf16, so that 258 comes of a sum in f32 alone.
#[test]
fn sums_are_rounded_once() {
    for config in ["", "fc2_fprop: {method: ring_exchange}"] {
        for flags in [USUAL, NONE] {
            let done = each(3, |rank| {
                let buffers = userbuffers(rank, [6, 16], config)?;
                let weight = Matrix {
                    columns: 24,
                    values: (0..16 * 24)
                        .map(|at| f64::from(u8::from(at % 8 == 0)))
                        .collect(),
                };
                let held = Held::new(
                    &buffers,
                    &linear(Parallel::Row, [24, 16], flags),
                    &weight,
                    None,
                )?;
                let x = Matrix {
                    columns: 24,
                    values: (0..6 * 24)
                        .map(|at| if at % 24 == 0 { 256.0 } else { 1.0 })
                        .collect(),
                };
                let (y, _) = held.forward(rank, &x)?;
                assert!(
                    y.read()?.iter().all(|y| y.to_f32() == 258.0),
                    "{:?}",
                    y.read()?
                );
                Ok(())
            });
            done.unwrap_or_else(|error| panic!("{config}: {error}"));
        }
    }
}
