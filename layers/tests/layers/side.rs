//! The side kernels' twin against f64: values by their formulas, gradients by differences of those. And, where there is a GPU, the
//! kernels against the twin, bit for bit.

use super::products::is_wide;
use super::reference::{Matrix, OF_BF16, OF_F32};
use counterflow::cuda::Gpu;
use counterflow::prelude::{bf16, e4m3};
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::side::twin::{
    self, AttentionShape, IGNORED, Mask, cross_entropy, exp, ln, philox,
};
use counterflow_layers::side::{
    AttentionKernels, CodeKernels, ElementKernels, EmbeddingKernels, LossKernels, NormKernels,
    RopeKernels,
};
use counterflow_layers::{Activation, Norm, Normalization, RngTracker};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Fails where a number is further off than it may be. NaN is.
fn near(what: &str, found: f64, wanted: f64, bound: f64) {
    let far = (found - wanted).abs();
    assert!(far <= bound, "{what} is {found}, not {wanted} ± {bound}");
}

#[test]
fn exponentials_and_logarithms() {
    for at in -87_000..=88_000 {
        let x = at as f32 / 1000.0;
        let wanted = f64::from(x).exp();
        near(
            &format!("e^{x}"),
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
        near(&format!("ln {x}"), ln(x).into(), wanted, bound);
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
            ["const LN_2", "fn logistic"],
            18,
        ),
        (
            include_str!("../../src/side/kernels/activations.cuh"),
            ["Num twice_u(Num x) {", "silu_slope"],
            include_str!("../../src/side/twin/elements.rs"),
            ["fn twice_u(x: f32)", "impl Activation"],
            3,
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
        assert_eq!(cross_entropy(&given, IGNORED, 0.5, &mut dx), 0.0);
        assert!(dx.iter().all(|dx| *dx == bf16::ZERO));
        assert!(cross_entropy(&given, columns as u32, 0.5, &mut dx).is_nan());
        assert!(dx.iter().all(|dx| dx.is_nan()));
    }
}

fn tensor(rank: &Communicator, shape: [usize; 2], seed: u64) -> Result<Tensor<bf16>, Error> {
    let tensor = rank.zeros(shape)?;
    let [rows, columns] = shape;
    tensor.write(&Matrix::random(rows, columns, 3.0, seed).part(0..rows, 0..columns))?;
    Ok(tensor)
}

/// The bits of all that side kernels make of the same numbers on a rank, of every size or of the small ones.
fn all(rank: &Arc<Communicator>, whole: bool) -> Result<Vec<(String, Vec<u32>)>, Error> {
    let mut found = Vec::new();
    let mut of_bf16 = |name: &str, tensor: &Tensor<bf16>| {
        let bits = tensor.read()?.into_iter().map(|x| x.to_bits().into());
        found.push((name.to_owned(), bits.collect()));
        Ok::<(), Error>(())
    };
    let mut numbers = Vec::new();
    let mut of_f32 = |name: &str, tensor: &Tensor<f32>| {
        let bits = tensor.read()?.into_iter().map(f32::to_bits).collect();
        numbers.push((name.to_owned(), bits));
        Ok::<(), Error>(())
    };
    for kind in [Normalization::LayerNorm, Normalization::RmsNorm] {
        let norm = NormKernels::load(rank, Norm::new(kind))?;
        // One row; some; more than there are slabs, with 8, 4 and 2 of a slab's on their way; longer ones than registers hold.
        let shapes = [
            [1, 8],
            [37, 72],
            [2400, 72],
            [1330, 2056],
            [800, 4104],
            [530, 8200],
        ];
        for shape in shapes.into_iter().take(if whole { 6 } else { 2 }) {
            let (x, dy, gamma) = (
                tensor(rank, shape, 1)?,
                tensor(rank, shape, 2)?,
                tensor(rank, [1, shape[1]], 3)?,
            );
            let beta = (kind == Normalization::LayerNorm).then_some(&gamma);
            let (mut y, mut dx) = (rank.zeros(shape)?, rank.zeros(shape)?);
            let mut statistics = rank.zeros([shape[0], 2])?;
            norm.forward(shape, &x, (&gamma, beta), &mut y, &mut statistics)?;
            let (mut of_gamma, mut of_beta) =
                (rank.zeros([1, shape[1]])?, rank.zeros([1, shape[1]])?);
            let to = beta.is_some().then_some(&mut of_beta);
            let (of, to) = ((&gamma, &statistics), (&mut of_gamma, to));
            norm.backward(shape, (&x, &dy), of, Some(&y), &mut dx, to)?;
            for (name, tensor) in [("y", &y), ("dx", &dx)] {
                of_bf16(&format!("{kind:?} {shape:?}: {name}"), tensor)?;
            }
            for (name, tensor) in [
                ("statistics", &statistics),
                ("γ", &of_gamma),
                ("β", &of_beta),
            ] {
                of_f32(&format!("{kind:?} {shape:?}: {name}"), tensor)?;
            }
        }
    }
    let elements = ElementKernels::load(rank)?;
    let mask = Mask::new(11, 5, 0.2);
    for [rows, columns] in [[1, 8], [33, 264]] {
        for activation in [Activation::Gelu, Activation::SwiGlu] {
            let (x, dy) = (
                tensor(rank, [rows, activation.inputs(columns)], 1)?,
                tensor(rank, [rows, columns], 2)?,
            );
            let (mut y, mut dx) = (rank.zeros([rows, columns])?, rank.zeros(x.shape())?);
            elements.activation(activation, [rows, columns], &x, &mut y)?;
            elements.activation_backward(activation, [rows, columns], [&x, &dy], &mut dx)?;
            of_bf16(&format!("{activation:?} {rows}: y"), &y)?;
            of_bf16(&format!("{activation:?} {rows}: dx"), &dx)?;
            elements.dropout_add(&y, &dy, Some((&mask, 8)), &mut dx.shaped([rows, columns])?)?;
            of_bf16(&format!("{activation:?} {rows}: dropout"), &dx)?;
            elements.dropout_add(&y, &dy, None, &mut dx.shaped([rows, columns])?)?;
            of_bf16(&format!("{activation:?} {rows}: sum"), &dx)?;
            elements.dropout(&y, (&mask, 8), &mut dx.shaped([rows, columns])?)?;
            of_bf16(
                &format!("{activation:?} {rows}: the gradient of dropout"),
                &dx,
            )?;
        }
    }
    for (heads, groups, depth) in [(4, 2, 16), (2, 1, 64), (1, 1, 256)] {
        let of = AttentionShape {
            positions: 9,
            batch: 3,
            heads,
            groups,
            depth,
            causal: depth != 64,
            scale: 0.3,
        };
        let rope = RopeKernels::load(rank, 16, depth, 1e4)?;
        let mut qkv = tensor(rank, [of.rows(), of.columns()], 1)?;
        rope.turn(&mut qkv, [heads + groups, 3], false)?;
        of_bf16(&format!("rope {depth}"), &qkv)?;
        let attention = AttentionKernels::load(rank)?;
        let mask = (depth != 16).then_some(&mask);
        let (mut out, mut logs) = (
            rank.zeros([of.rows(), of.outputs()])?,
            rank.zeros([of.rows(), heads])?,
        );
        attention.forward(&of, &qkv, mask, &mut out, &mut logs)?;
        let (dout, mut dqkv) = (tensor(rank, out.shape(), 2)?, rank.zeros(qkv.shape())?);
        attention.backward(&of, &qkv, mask, [&out, &dout], &logs, &mut dqkv)?;
        of_bf16(&format!("attention {depth}: out"), &out)?;
        of_bf16(&format!("attention {depth}: dqkv"), &dqkv)?;
        of_f32(&format!("attention {depth}: logs"), &logs)?;
    }
    let embedding = EmbeddingKernels::load(rank)?;
    let ids = rank.zeros::<u32>([600])?;
    ids.write(&Vec::from_iter((0..600).map(|at| at * at % 13)))?;
    let (weights, mut y) = (tensor(rank, [7, 2064], 1)?, rank.zeros([600, 2064])?);
    embedding.forward(&ids, &weights, 4..11, 12, &mut y)?;
    of_bf16("embedding", &y)?;
    let (dy, mut gradient) = (tensor(rank, y.shape(), 2)?, rank.zeros([7, 2064])?);
    embedding.backward(&ids, &dy, 4..11, &mut gradient)?;
    of_f32("the gradient of an embedding", &gradient)?;
    let loss = LossKernels::load(rank)?;
    let logits = tensor(rank, [3, 3000], 1)?;
    let (targets, mut losses) = (rank.zeros::<u32>([3])?, rank.zeros([3])?);
    targets.write(&[2999, IGNORED, 3000])?;
    let mut gradient = rank.zeros(logits.shape())?;
    loss.cross_entropy(&logits, &targets, 0.3, &mut losses, &mut gradient)?;
    of_bf16("the gradient of cross-entropy", &gradient)?;
    of_f32("cross-entropy", &losses)?;
    // The second of two ranks, with what both have.
    let mut parts = rank.zeros::<f32>([6, 4])?;
    targets.write(&[5999, IGNORED, 17])?;
    let mut of_both = [parts.rows(0..3)?, parts.rows(3..6)?];
    for (first, own) in [0, 3000].into_iter().zip(&mut of_both) {
        loss.part(&logits, &targets, first, own)?;
    }
    let to = (&mut losses, &mut gradient);
    loss.of_parts(&logits, &targets, [3000, 2], &mut parts, 0.3, to)?;
    of_f32("parts of cross-entropy", &parts)?;
    of_bf16("the gradient of a part of cross-entropy", &gradient)?;
    of_f32("cross-entropy of parts", &losses)?;
    let codes = CodeKernels::load(rank)?;
    for [rows, columns] in [[1, 16], [37, 272], [130, 144]] {
        let from = tensor(rank, [rows, columns / 2], 3)?.reinterpret::<e4m3>([rows, columns])?;
        let pitch = rows.next_multiple_of(16);
        let mut turned = rank.zeros::<e4m3>([columns, pitch])?;
        turned.fill(0xff)?;
        codes.transpose([rows, columns], &from, &mut turned)?;
        let bytes = |of: Vec<e4m3>| Vec::from_iter(of.iter().map(e4m3::to_bits));
        let wanted = twin::transposed(&bytes(from.read()?), [rows, columns], pitch);
        assert_eq!(bytes(turned.read()?), wanted, "{rows} x {columns} codes");
        let bits = turned.reinterpret([columns, pitch / 2])?;
        of_bf16(&format!("{rows} x {columns} codes on their side"), &bits)?;
    }
    rank.reserve(2 << 20)?;
    let of_ranks = rank.allocate::<f32>("amaxes of ranks", [3, 300])?;
    let amax = |at: usize| {
        if at == 7 {
            f32::NAN
        } else {
            (at * at % 101) as f32
        }
    };
    of_ranks.write(&Vec::from_iter((0..900).map(amax)))?;
    let mut largest = rank.zeros::<f32>([1, 290])?;
    codes.largest_of_ranks(290, &of_ranks, &mut largest)?;
    let wanted = |at: usize| {
        let of = |rank: usize| Some(amax(at + 300 * rank)).filter(|amax| !amax.is_nan());
        (0..3).filter_map(of).fold(0.0, f32::max)
    };
    let wanted = Vec::from_iter((0..290).map(wanted));
    assert_eq!(largest.read()?, wanted, "the largest of ranks' amaxes");
    of_f32("the largest of ranks' amaxes", &largest)?;
    found.extend(numbers);
    Ok(found)
}

/// On emulated ranks it shows that launches do what the twin does; on a GPU, that kernels have its bits. How a kernel divides a large
/// tensor only a GPU shows, so that without one, and without `WIDE=1`, norms are of the small ones.
#[test]
fn kernels_have_the_bits_of_the_twin() {
    let gpu = Gpu::count().and_then(|_| Gpu::open(0)?.must_be_hopper());
    let whole = is_wide() || gpu.is_ok();
    let emulated = Communicator::emulated(1).expect("a rank").remove(0);
    let wanted = all(&Arc::new(emulated), whole).expect("the twin");
    assert!(wanted.len() > 40 && wanted.iter().any(|(_, bits)| bits.len() > 1000));
    for (name, bits) in &wanted {
        assert!(
            bits.iter().any(|bits| *bits != 0) || name.ends_with("β"),
            "{name}: zeros"
        );
    }
    let required = std::env::var("REQUIRE_GPU").unwrap_or_default();
    match gpu {
        Err(error) if !matches!(&required[..], "" | "0") => panic!("{error}"),
        Err(error) => eprintln!("SKIPPED: side kernels on a GPU: {error}"),
        Ok(()) => {
            let rank = Communicator::local(1).expect("a GPU").remove(0);
            let found = all(&Arc::new(rank), whole).expect("kernels");
            for ((name, found), (_, wanted)) in found.iter().zip(&wanted) {
                let first = found.iter().zip(wanted).position(|(a, b)| a != b);
                assert_eq!(first, None, "{name}: other bits");
            }
        }
    }
}
