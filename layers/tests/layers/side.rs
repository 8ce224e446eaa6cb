//! The side kernels' twin against f64: values by their formulas, gradients by differences of those. And, where there is a GPU, the
//! kernels against the twin, bit for bit.

mod bits;

use super::reference::{Matrix, OF_BF16, OF_F32};
use counterflow::prelude::bf16;
use counterflow_layers::side::twin::{
    self, AttentionShape, IGNORED, Mask, cross_entropy, exp, ln, philox,
};
use counterflow_layers::{Activation, RngTracker};
use std::collections::BTreeSet;
use std::fmt::Display;

/// Fails where a number is further off than it may be. NaN is.
fn near(what: impl Display, found: f64, wanted: f64, bound: f64) {
    let far = (found - wanted).abs();
    assert!(far <= bound, "{what} is {found}, not {wanted} ± {bound}");
}

#[test]
fn exponentials_and_logarithms() {
    for at in -87_000..=88_000 {
        let x = at as f32 / 1000.0;
        let wanted = f64::from(x).exp();
        near(
            format_args!("e^{x}"),
            exp(x).into(),
            wanted,
            4.0 * OF_F32 * wanted,
        );
    }
    assert_eq!((exp(-87.1), exp(88.1)), (0.0, f32::INFINITY));
    assert_eq!(
        (exp(f32::NEG_INFINITY), exp(f32::INFINITY)),
        (0.0, f32::INFINITY)
    );
    assert!(exp(f32::NAN).is_nan());
    for at in 1..200_000 {
        let x = (at as f32 / 1e4 - 10.0).exp2() * 3.7;
        let wanted = f64::from(x).ln();
        let bound = 4.0 * OF_F32 * wanted.abs().max(0.5);
        near(format_args!("ln {x}"), ln(x).into(), wanted, bound);
    }
    assert!(
        [0.0, -0.0, -1.0, f32::NEG_INFINITY, f32::NAN]
            .iter()
            .all(|x| ln(*x).is_nan())
    );
}

/// The numbers with a point that stand in a part of a text, but for those that are exact anyway.
fn numbers(text: &str, from: &str, to: &str) -> BTreeSet<u32> {
    let first = text.find(from).unwrap_or_else(|| panic!("no {from}"));
    let rest = &text[first..];
    let part = &rest[..rest.find(to).unwrap_or_else(|| panic!("no {to}"))];
    let code = part
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    let code = code.collect::<Vec<_>>().join("\n").replace('_', "");
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    let words = code.split(|c| !inside(c));
    let words =
        words.filter(|word| word.contains('.') && word.contains(|c: char| c.is_ascii_digit()));
    let parsed = words.filter_map(|word| word.trim_end_matches('f').parse::<f32>().ok());
    let exact = [
        0.0,
        0.5,
        1.0,
        87.0,
        88.0,
        12_582_912.0,
        f32::MAX,
        std::f32::consts::LOG2_E,
    ];
    let rest = parsed.filter(|number| !exact.contains(&number.abs()));
    rest.map(f32::to_bits).collect()
}

/// A digit that only one of them has would show on GPUs alone.
#[test]
fn kernels_and_twin_have_the_same_numbers() {
    let table = [
        (
            include_str!("../../src/side/kernels/numbers.cuh"),
            ["#define LN_2_HIGH", "from_bf16"],
            include_str!("../../src/side/twin/numbers.rs"),
            ["const LN_2", "fn larger"],
            21,
        ),
        (
            include_str!("../../src/side/kernels/activations.cuh"),
            ["#define OF_GELU", "silu_slope"],
            include_str!("../../src/side/twin/elements.rs"),
            ["const OF_GELU", "impl Activation"],
            6,
        ),
    ];
    for (kernel, [from, to], twin, [own_from, own_to], count) in table {
        let theirs = numbers(kernel, from, to);
        assert_eq!(theirs.len(), count, "{theirs:?}");
        assert_eq!(theirs, numbers(twin, own_from, own_to), "{from}");
    }
}

#[test]
fn activations_and_their_gradients() {
    let gelu = |x: f64| {
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        x / 2.0 * (1.0 + u.tanh())
    };
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let slope = |f: &dyn Fn(f64) -> f64, x: f64| (f(x + 1e-5) - f(x - 1e-5)) / 2e-5;
    let all = Matrix::random(64, 32, 12.0, 1);
    let (x, dy) = (all.part(0..64, 0..32), Matrix::random(64, 16, 1.0, 2));
    let dys = dy.part(0..64, 0..16);
    let (mut y, mut dx) = (vec![bf16::NAN; 64 * 16], vec![bf16::NAN; 64 * 32]);
    Activation::SwiGlu.forward(&x, 16, &mut y);
    Activation::SwiGlu.backward(&x, &dys, 16, &mut dx);
    let bound = |wanted: f64, terms: f64| OF_BF16 * wanted.abs() + 32.0 * OF_F32 * terms + 1e-9;
    for (at, y) in y.iter().enumerate() {
        let (row, column) = (at / 16, at % 16);
        let (gate, up) = (
            all.values[row * 32 + column],
            all.values[row * 32 + 16 + column],
        );
        let wanted = silu(gate) * up;
        near(
            "swiglu",
            y.to_f64(),
            wanted,
            bound(wanted, (gate * up).abs()),
        );
        let d = dy.values[at];
        let wanted = [d * up * slope(&silu, gate), d * silu(gate)];
        let terms = (d * up).abs() * (1.0 + gate.abs()) + (d * gate).abs();
        for (part, wanted) in wanted.into_iter().enumerate() {
            let found = dx[row * 32 + 16 * part + column].to_f64();
            near("its gradient", found, wanted, bound(wanted, terms) + 1e-7);
        }
    }
    let (mut y, mut dx) = (vec![bf16::NAN; 64 * 16], vec![bf16::NAN; 64 * 16]);
    Activation::Gelu.forward(&x[..64 * 16], 16, &mut y);
    Activation::Gelu.backward(&x[..64 * 16], &dys, 16, &mut dx);
    for at in 0..64 * 16 {
        let x = all.values[at];
        let wanted = gelu(x);
        near("gelu", y[at].to_f64(), wanted, bound(wanted, x.abs()));
        let wanted = dy.values[at] * slope(&gelu, x);
        let terms = dy.values[at].abs() * (1.0 + x.abs().powi(3));
        near(
            "its gradient",
            dx[at].to_f64(),
            wanted,
            bound(wanted, terms) + 1e-7,
        );
    }
}

/// Of every number that bf16 has, GELU and SwiGLU beside f64: within bf16's rounding, and within 1e-34 where they are nearly 0.
#[test]
fn activations_of_every_number() {
    let every = Vec::from_iter((0..=u16::MAX).map(bf16::from_bits));
    let both = every
        .iter()
        .flat_map(|x| [*x, bf16::ONE])
        .collect::<Vec<_>>();
    let mut of_gelu = vec![bf16::ZERO; every.len()];
    Activation::Gelu.forward(&every, every.len(), &mut of_gelu);
    let mut of_silu = of_gelu.clone();
    Activation::SwiGlu.forward(&both, 1, &mut of_silu);
    for (at, x) in every.iter().map(|x| x.to_f64()).enumerate() {
        let (gelu, silu) = (of_gelu[at].to_f64(), of_silu[at].to_f64());
        if x.is_nan() {
            assert!(gelu.is_nan() && silu.is_nan());
            continue;
        }
        let shared = |power: f64| x / (1.0 + power.exp());
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        let table = [("gelu", gelu, shared(-2.0 * u)), ("silu", silu, shared(-x))];
        for (name, found, wanted) in table {
            if x.is_infinite() {
                assert!(
                    found == x.max(0.0) || found.abs() < 1e-34,
                    "{name} {x}: {found}"
                );
                continue;
            }
            let bound = OF_BF16 * wanted.abs() + 1e-34;
            near(format_args!("{name} of {x}"), found, wanted, bound);
        }
    }
}

/// The known answers of the paper that Philox comes from.
#[test]
fn philox_draws_what_it_should() {
    let table = [
        (
            [0; 4],
            [0; 2],
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        ),
        (
            [u32::MAX; 4],
            [u32::MAX; 2],
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        ),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, wanted) in table {
        assert_eq!(philox(counter, key), wanted);
    }
}

#[test]
fn dropout_keeps_the_same_elements_however_they_are_divided() {
    let mask = Mask::new(7, 3, 0.3);
    let x: Vec<bf16> = (0..96).map(|at| bf16::from_f32(at as f32)).collect();
    let residual = vec![bf16::ONE; 96];
    let mut whole = vec![bf16::NAN; 96];
    twin::dropout_add(&x, &residual, Some((&mask, 0)), &mut whole);
    let kept = (1..96).filter(|at| whole[*at] != bf16::ONE).count();
    assert!((50..85).contains(&kept), "{kept} of 95 kept");
    let mut parts = vec![bf16::NAN; 96];
    for range in [0..40, 40..96] {
        let first = range.start as u64;
        let (x, residual) = (&x[range.clone()], &residual[range.clone()]);
        twin::dropout_add(x, residual, Some((&mask, first)), &mut parts[range]);
    }
    assert_eq!(parts, whole);
    let mut gradient = vec![bf16::NAN; 96];
    twin::dropout(&[bf16::ONE; 96], (&mask, 0), &mut gradient);
    for at in 1..96 {
        let kept = whole[at] != bf16::ONE;
        let wanted = if kept {
            bf16::from_f32(1.0 / 0.7)
        } else {
            bf16::ZERO
        };
        assert_eq!(gradient[at], wanted);
    }
}

#[test]
fn the_tracker_gives_each_rank_what_it_should_have() {
    let trackers: Vec<RngTracker> = (0..2).map(|rank| RngTracker::new(1234, rank)).collect();
    let draw = |rank: usize, name: &str| trackers[rank].draw(name, 0.5).expect("a state");
    let shared = [draw(0, RngTracker::DEFAULT), draw(1, RngTracker::DEFAULT)];
    assert_eq!(shared[0], shared[1], "rows that are whole");
    let own = [
        draw(0, RngTracker::MODEL_PARALLEL),
        draw(1, RngTracker::MODEL_PARALLEL),
    ];
    assert_ne!(own[0], own[1], "rows that are divided");
    assert_ne!(draw(0, RngTracker::DEFAULT), shared[0], "the next one");
    let held = trackers[0].states();
    let next = draw(0, RngTracker::DEFAULT);
    trackers[0].restore(held);
    assert_eq!(draw(0, RngTracker::DEFAULT), next, "restored");
    let told = trackers[0].draw("mine", 0.5).expect_err("no such state");
    assert_eq!(told.to_string(), "no random state `mine`");
    trackers[0].add("mine", 5).expect("a new name");
    assert!(trackers[0].add("mine", 6).is_err() && trackers[0].draw("mine", 1.0).is_err());
}

/// Softmax attention of one head of one row, in f64, with keys and values of all positions.
fn attended(q: &[f64], k: &[Vec<f64>], v: &[Vec<f64>], scale: f64) -> Vec<f64> {
    let dot = |k: &Vec<f64>| q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * scale;
    let scores: Vec<f64> = k.iter().map(dot).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let parts: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let all: f64 = parts.iter().sum();
    let value = |at: usize| {
        parts
            .iter()
            .zip(v)
            .map(|(part, v)| part / all * v[at])
            .sum()
    };
    (0..q.len()).map(value).collect()
}

#[test]
fn attention_and_its_gradients() {
    for (causal, heads, groups) in [(true, 4, 2), (false, 2, 2), (true, 3, 1)] {
        let of = AttentionShape {
            positions: 5,
            batch: 2,
            heads,
            groups,
            depth: 8,
            causal,
            scale: 0.4,
        };
        let (rows, columns, outputs) = (of.rows(), of.columns(), of.outputs());
        let qkv = Matrix::random(rows, columns, 2.0, 3);
        let dout = Matrix::random(rows, outputs, 1.0, 4);
        let forward = |qkv: &[f64]| {
            let part = |row: usize, first: usize| qkv[row * columns + 8 * first..][..8].to_vec();
            let mut out = vec![0.0; rows * outputs];
            for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                let (at, item) = (row / 2, row % 2);
                let keys = if causal { at + 1 } else { 5 };
                let group = head / (heads / groups);
                let of_keys = |first: usize| {
                    let keys = (0..keys).map(|key| part(2 * key + item, first + group));
                    keys.collect::<Vec<_>>()
                };
                let (k, v) = (of_keys(heads), of_keys(heads + groups));
                let found = attended(&part(row, head), &k, &v, 0.4);
                out[row * outputs + 8 * head..][..8].copy_from_slice(&found);
            }
            out
        };
        let given = qkv.part(0..rows, 0..columns);
        let (mut out, mut logs) = (
            vec![bf16::NAN; rows * outputs],
            vec![f32::NAN; rows * heads],
        );
        twin::attention(&of, &given, None, &mut out, &mut logs);
        let wanted = forward(&qkv.values);
        for (found, wanted) in out.iter().zip(&wanted) {
            near(
                "attention",
                found.to_f64(),
                *wanted,
                OF_BF16 * wanted.abs() + 1e-5,
            );
        }
        let mut dqkv = vec![bf16::NAN; rows * columns];
        let dout_given = dout.part(0..rows, 0..outputs);
        let both = [&out[..], &dout_given[..]];
        twin::attention_backward(&of, &given, None, both, &logs, &mut dqkv);
        let loss = |qkv: &[f64]| {
            let out = forward(qkv);
            out.iter()
                .zip(&dout.values)
                .map(|(y, dy)| y * dy)
                .sum::<f64>()
        };
        for at in (0..rows * columns).step_by(3) {
            let along = |step: f64| {
                let mut moved = qkv.values.clone();
                moved[at] += step;
                loss(&moved)
            };
            let wanted = (along(1e-4) - along(-1e-4)) / 2e-4;
            // The output was rounded to bf16 before it was multiplied by its gradient.
            let bound = OF_BF16 * wanted.abs() + OF_BF16 * 8.0;
            near("its gradient", dqkv[at].to_f64(), wanted, bound);
            assert!(wanted.abs() < 100.0);
        }
    }
}

#[test]
fn cross_entropy_and_its_gradient() {
    for columns in [8, 104] {
        let x = Matrix::random(1, columns, 9.0, 5);
        let given = x.part(0..1, 0..columns);
        let mut dx = vec![bf16::NAN; columns];
        let found = cross_entropy(&given, 3, 0.5, &mut dx);
        let all: f64 = x.values.iter().map(|x| x.exp()).sum();
        near("the loss", found.into(), all.ln() - x.values[3], 1e-5);
        for (at, dx) in dx.iter().enumerate() {
            let wanted = 0.5 * (x.values[at].exp() / all - f64::from(u8::from(at == 3)));
            near(
                "its gradient",
                dx.to_f64(),
                wanted,
                OF_BF16 * wanted.abs() + 1e-7,
            );
        }
        let mut masked = given.clone();
        masked[5] = bf16::NEG_INFINITY;
        masked[6] = bf16::from_f32(-1e30);
        masked[3] = bf16::from_f32(1e3);
        // Sure of its target: no loss, and no gradient.
        assert_eq!(cross_entropy(&masked, 3, 0.5, &mut dx), 0.0);
        assert!(dx.iter().all(|dx| *dx == bf16::ZERO));
        for none in [bf16::NAN, bf16::INFINITY] {
            masked[4] = none;
            assert!(cross_entropy(&masked, 3, 0.5, &mut dx).is_nan());
            assert!(dx.iter().all(|dx| dx.is_nan()));
        }
        assert_eq!(cross_entropy(&given, IGNORED, 0.5, &mut dx), 0.0);
        assert!(dx.iter().all(|dx| *dx == bf16::ZERO));
        assert!(cross_entropy(&given, columns as u32, 0.5, &mut dx).is_nan());
        assert!(dx.iter().all(|dx| dx.is_nan()));
    }
}
