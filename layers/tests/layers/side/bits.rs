//! The kernels against the twin, bit for bit.

use super::super::reference::Matrix;
use crate::wide::wide;
use counterflow::cuda::Gpu;
use counterflow::prelude::{bf16, e4m3};
use counterflow::{Communicator, Error, Tensor};
use counterflow_layers::side::twin::{self, AttentionShape, IGNORED, Mask};
use counterflow_layers::side::{
    AttentionKernels, CodeKernels, ElementKernels, EmbeddingKernels, LossKernels, NormKernels,
    RopeKernels,
};
use counterflow_layers::{Activation, Norm, Normalization};
use std::sync::Arc;

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
        // One NaN is as good as another.
        let one = |x: f32| if x.is_nan() { f32::NAN } else { x };
        let bits = tensor.read()?.into_iter().map(|x| one(x).to_bits());
        numbers.push((name.to_owned(), bits.collect()));
        Ok::<(), Error>(())
    };
    for kind in [Normalization::LayerNorm, Normalization::RmsNorm] {
        let norm = NormKernels::load(rank, Norm::new(kind))?;
        // One row; some; more than there are slabs, each with more rows than are on their way, of one eight and of two for each thread; the
        // longer ones of another kernel; and those whose last columns come from memory.
        let shapes = [
            [1, 8],
            [37, 72],
            [2400, 72],
            [300, 8192],
            [400, 8200],
            [270, 16_392],
        ];
        for shape in shapes.into_iter().take(if whole { usize::MAX } else { 2 }) {
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
            let beside = (shape[0] != 2400).then_some(&y);
            norm.backward(shape, (&x, &dy), of, beside, &mut dx, to)?;
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
    // Activations of every number that there is.
    let every = Vec::from_iter((0..=u16::MAX).map(bf16::from_bits));
    let dy = tensor(rank, [1, every.len()], 2)?;
    for activation in [Activation::Gelu, Activation::SwiGlu] {
        let shape = [1, every.len()];
        let x = tensor(rank, [1, activation.inputs(every.len())], 1)?;
        let mut given = x.read()?;
        given[..every.len()].copy_from_slice(&every);
        x.write(&given)?;
        let (mut y, mut dx) = (rank.zeros(shape)?, rank.zeros(x.shape())?);
        elements.activation(activation, shape, &x, &mut y)?;
        elements.activation_backward(activation, shape, [&x, &dy], &mut dx)?;
        of_bf16(&format!("{activation:?} of every number"), &y)?;
        of_bf16(
            &format!("the gradient of {activation:?} of every number"),
            &dx,
        )?;
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
    // What has no sum; more rows than there are CTAs and stages; longer ones than a CTA keeps, in turns of stages and from memory, too.
    let shapes = [
        [4, 64],
        [1100, 264],
        [2, 33_000],
        [280, 40_000],
        [140, 57_352],
        [3, 114_696],
    ];
    for [rows, columns] in shapes.into_iter().take(if whole { usize::MAX } else { 3 }) {
        let scale = if rows == 1100 { -0.3 } else { 0.3 };
        let mut logits = tensor(rank, [rows, columns], 7)?;
        if rows == 4 {
            let mut some = logits.read()?;
            some[3] = bf16::NEG_INFINITY;
            some[64 + 5] = bf16::NAN;
            some[2 * 64 + 5] = bf16::INFINITY;
            some[3 * 64..].fill(bf16::NEG_INFINITY);
            logits.write(&some)?;
        }
        let (targets, mut losses) = (rank.zeros::<u32>([rows])?, rank.zeros([rows])?);
        targets.write(&Vec::from_iter(
            (0..rows).map(|row| (row * 4099 % (columns + 1)) as u32),
        ))?;
        let mut gradient = rank.zeros(logits.shape())?;
        loss.cross_entropy(&logits, &targets, scale, &mut losses, &mut gradient)?;
        of_bf16(
            &format!("{rows} x {columns} logits: the gradient"),
            &gradient,
        )?;
        of_f32(&format!("{rows} x {columns} logits: losses"), &losses)?;
        logits = tensor(rank, [rows, columns], 8)?;
        let mut part = rank.zeros::<f32>([rows, 4])?;
        loss.part(&logits, &targets, 0, &mut part)?;
        of_f32(&format!("{rows} x {columns} logits: parts"), &part)?;
    }
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
/// tensor only a GPU shows, so that without one, and without `WIDE=1`, norms and logits are of the small ones.
#[test]
fn kernels_have_the_bits_of_the_twin() {
    let gpu = Gpu::count().and_then(|_| Gpu::open(0)?.must_be_hopper());
    let whole = wide() || gpu.is_ok();
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
