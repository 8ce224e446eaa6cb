//! Norms of rows, against f64: the forward pass by its formula, gradients by differences of that.

use super::reference::{Matrix, OF_BF16, OF_F32};
use counterflow_layers::{Norm, Normalization};
use half::bf16;

/// A row as f64 normalises it, and one over its deviation.
pub fn exactly(norm: &Norm, x: &[f64], gamma: &[f64], beta: &[f64]) -> (Vec<f64>, f64) {
    let columns = x.len() as f64;
    let mean = match norm.kind {
        Normalization::LayerNorm => x.iter().sum::<f64>() / columns,
        Normalization::RmsNorm => 0.0,
    };
    let squares = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
    let rstd = 1.0 / (squares / columns + f64::from(norm.eps)).sqrt();
    let one = if norm.zero_centered_gamma { 1.0 } else { 0.0 };
    let scaled = x.iter().zip(gamma.iter().zip(beta));
    let y = scaled.map(|(x, (gamma, beta))| (x - mean) * rstd * (gamma + one) + beta);
    (y.collect(), rstd)
}

pub const KINDS: [Normalization; 2] = [Normalization::LayerNorm, Normalization::RmsNorm];

/// Fails where a number is further off than it may be. NaN is.
fn near(what: &str, found: f64, wanted: f64, bound: f64) {
    let far = (found - wanted).abs();
    assert!(far <= bound, "{what} is {found}, not {wanted} ± {bound}");
}

#[test]
fn a_row_and_its_gradients() {
    for (kind, zero_centered_gamma) in KINDS
        .into_iter()
        .flat_map(|kind| [(kind, false), (kind, true)])
    {
        for columns in [3, 8, 33, 96] {
            let norm = Norm {
                zero_centered_gamma,
                ..Norm::new(kind)
            };
            let random = |seed, largest| Matrix::random(1, columns, largest, seed);
            let [x, gamma, beta, dy] = [(1, 3.0), (2, 1.0), (3, 1.0), (4, 1.0)]
                .map(|(seed, largest)| random(seed, largest));
            let narrow = |row: &Matrix| row.part(0..1, 0..columns);
            let has_beta = kind == Normalization::LayerNorm;
            let zeros = vec![0.0; columns];
            let of_beta = if has_beta { &beta.values } else { &zeros };
            let given_beta = narrow(&beta);
            let given_beta = has_beta.then_some(&given_beta[..]);
            let mut y = vec![bf16::NAN; columns];
            let statistics = norm.forward(&narrow(&x), (&narrow(&gamma), given_beta), &mut y);
            let (wanted, rstd) = exactly(&norm, &x.values, &gamma.values, of_beta);
            // Sums of f32 are off by so much of their terms; a small deviation makes more of it.
            let largest = x.values.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            let off = (columns as f64 / 32.0 + 16.0) * OF_F32 * (1.0 + rstd * largest).powi(3);
            let name = format!("{norm:?}, {columns} columns");
            near(
                &format!("{name}: rstd"),
                statistics.rstd.into(),
                rstd,
                rstd * off,
            );
            for (at, wanted) in wanted.iter().enumerate() {
                let bound = OF_BF16 * wanted.abs() + 4.0 * off;
                near(&format!("{name}: y[{at}]"), y[at].to_f64(), *wanted, bound);
            }

            let mut dx = vec![bf16::NAN; columns];
            let (mut dgamma, mut dbeta) = (vec![0.5f32; columns], vec![0.5f32; columns]);
            let gradients = (&mut dgamma[..], has_beta.then_some(&mut dbeta[..]));
            let (x_row, dy_row) = (narrow(&x), narrow(&dy));
            let of = (&narrow(&gamma)[..], statistics);
            norm.backward(&x_row, &dy_row, of, None, &mut dx);
            Norm::gradients(&x_row, &dy_row, &[statistics], gradients);
            // The derivative of Σ dy · y along one number of a vector.
            let along = |vector: usize, at: usize| {
                const STEP: f64 = 1e-5;
                let loss = |step: f64| {
                    let mut all = [x.values.clone(), gamma.values.clone(), of_beta.clone()];
                    all[vector][at] += step;
                    let (y, _) = exactly(&norm, &all[0], &all[1], &all[2]);
                    y.iter().zip(&dy.values).map(|(y, dy)| y * dy).sum::<f64>()
                };
                (loss(STEP) - loss(-STEP)) / (2.0 * STEP)
            };
            // Differences are off by the square of the step, more where the deviation is small.
            let rough = 1e-8 * (1.0 + rstd).powi(4);
            for at in 0..columns {
                let wanted = along(0, at);
                let bound = OF_BF16 * wanted.abs() + 16.0 * rstd * off + rough;
                near(&format!("{name}: dx[{at}]"), dx[at].to_f64(), wanted, bound);
                let bound = 4.0 * off + rough;
                near(
                    &format!("{name}: dgamma[{at}]"),
                    dgamma[at].into(),
                    0.5 + along(1, at),
                    bound,
                );
                let wanted = if has_beta { 0.5 + along(2, at) } else { 0.5 };
                near(
                    &format!("{name}: dbeta[{at}]"),
                    dbeta[at].into(),
                    wanted,
                    bound,
                );
            }
        }
    }
}

#[test]
fn a_row_of_one_number_is_finite_and_nan_stays() {
    for kind in KINDS {
        let norm = Norm::new(kind);
        let ones = [bf16::ONE; 8];
        let mut y = [bf16::NAN; 8];
        let statistics = norm.forward(&[bf16::ZERO; 8], (&ones, None), &mut y);
        assert_eq!(y, [bf16::ZERO; 8]);
        assert!(statistics.rstd.is_finite());
        let mut x = [bf16::ONE; 8];
        x[3] = bf16::NAN;
        norm.forward(&x, (&ones, None), &mut y);
        assert!(y.iter().all(|y| y.is_nan()));
    }
}

/// Sums over rows: none, some, as many as there are slabs, one more, and many.
#[test]
fn gradients_of_weights_are_sums_over_rows() {
    const COLUMNS: usize = 24;
    for kind in KINDS {
        let norm = Norm::new(kind);
        for rows in [0, 1, 7, 264, 265, 1500] {
            let [x, dy] =
                [(1, 3.0), (2, 1.0)].map(|(seed, most)| Matrix::random(rows, COLUMNS, most, seed));
            let [all_x, all_dy] = [&x, &dy].map(|of| of.part(0..rows, 0..COLUMNS));
            let mut y = [bf16::NAN; COLUMNS];
            let statistics = all_x.chunks_exact(COLUMNS);
            let ones = [bf16::ONE; COLUMNS];
            let statistics: Vec<_> = statistics
                .map(|x| norm.forward(x, (&ones, None), &mut y))
                .collect();
            let (mut of_gamma, mut of_beta) = ([0.5f32; COLUMNS], [-0.25f32; COLUMNS]);
            let to = (&mut of_gamma[..], Some(&mut of_beta[..]));
            Norm::gradients(&all_x, &all_dy, &statistics, to);
            let (mut gammas, mut betas) = ([0.5; COLUMNS], [-0.25; COLUMNS]);
            // Magnitudes of the terms, of which f32 is off by a part.
            let (mut terms, mut plain) = ([0.5; COLUMNS], [0.25; COLUMNS]);
            for row in 0..rows {
                let row = row * COLUMNS..(row + 1) * COLUMNS;
                let (x, dy) = (&x.values[row.clone()], &dy.values[row]);
                let (normed, _) = exactly(&norm, x, &[1.0; COLUMNS], &[0.0; COLUMNS]);
                for column in 0..COLUMNS {
                    gammas[column] += dy[column] * normed[column];
                    betas[column] += dy[column];
                    terms[column] += (dy[column] * normed[column]).abs();
                    plain[column] += dy[column].abs();
                }
            }
            // A term comes through its statistics, 6 sums within a slab, 33 slabs, 3 pairs and the gradient.
            let off = 64.0 * OF_F32;
            for at in 0..COLUMNS {
                let name = format!("{kind:?}, {rows} rows: column {at} of");
                let (gamma, beta) = (of_gamma[at].into(), of_beta[at].into());
                near(&format!("{name} γ"), gamma, gammas[at], off * terms[at]);
                near(&format!("{name} β"), beta, betas[at], off * plain[at]);
            }
        }
    }
}
